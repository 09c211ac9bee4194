#!/bin/sh
# The sealed room: installs from a bundle and runs the demo in a network namespace with nothing but loopback, beside a
# name server that only counts who asks it. Ends with 0 only when both worked, no name was asked for and no packet
# wanted a way out. Root, about 12 GB of disk; a quarter of an hour with the short demo, an hour with the whole one.
#
#   tests/soak/sealed_room.sh BUNDLE WORK [short]
#
# WORK must be a new folder; everything is made there (WORK/corral, WORK/state) and WORK/sealed.json says what was seen.
set -eu

[ "$#" -ge 2 ] || { sed -n '2,9p' "$0"; exit 2; }
if [ "${CORRAL_SEALED:-}" != 1 ]; then
    [ "$(id -u)" -eq 0 ] || { echo "sealed_room: a network namespace is made as root" >&2; exit 1; }
    bundle=$(realpath "$1")
    [ ! -e "$2" ] || { echo "sealed_room: $2 is there already" >&2; exit 1; }
    mkdir -p "$2"
    work=$(realpath "$2")
    chmod 711 "$work"
    # Nothing of this user's settings may help: no pip configuration, no proxies, no wheels from elsewhere.
    exec env -i PATH="$PATH" CORRAL_SEALED=1 LANG=C.UTF-8 HOME="$work/user" CORRAL_HOME="$work/state" \
        unshare --net --mount sh "$0" "$bundle" "$work" "${3:-}"
fi

bundle=$1 work=$2
mkdir -p "$HOME" "$CORRAL_HOME"
ip link set lo up
printf 'nameserver 127.0.0.1\noptions timeout:1 attempts:1\n' >"$work/resolv.conf"
mount --bind "$work/resolv.conf" "$(realpath /etc/resolv.conf)"

cat >"$work/sink.py" <<'PY'
import socket, sys
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
log = open(sys.argv[1], "a", buffering=1)
while True:
    question, sender = server.recvfrom(4096)
    labels, at = [], 12
    while at < len(question) and question[at]:
        labels.append(question[at + 1 : at + 1 + question[at]].decode("latin-1"))
        at += 1 + question[at]
    log.write(".".join(labels) + "\n")
PY
: >"$work/lookups"
python3 "$work/sink.py" "$work/lookups" &
sink=$!
trap 'kill "$sink" 2>/dev/null || true' EXIT

# What wanted to leave and found no route; both counters belong to this namespace alone.
no_route() {
    awk '/^Ip: / { if (seen++) { print $column } else { for (i = 1; i <= NF; i++) if ($i == "OutNoRoutes") column = i } }' /proc/net/snmp
}
no_route6() { awk '$1 == "Ip6OutNoRoutes" { print $2 }' /proc/net/snmp6 2>/dev/null || echo 0; }

# The sink itself is shown to work before silence counts for anything.
python3 -c "
import socket
try: socket.getaddrinfo('sealed-room-probe.invalid', 80)
except OSError: pass
" || true
grep -q sealed-room-probe "$work/lookups" || { echo "sealed_room: the name sink hears nothing" >&2; exit 1; }
: >"$work/lookups"
before=$(no_route) before6=$(no_route6)

cp -r "$bundle/corral" "$work/corral"
started=$(date +%s)
sh "$work/corral/install.sh" --offline "$bundle" 2>&1 | tee "$work/install.log"
[ -f "$work/corral/.venv/.locked" ] || { echo "sealed_room: not installed" >&2; exit 1; }
installed=$(date +%s)
short=
if [ "${3:-}" = short ]; then
    short="--set coldstart.rollouts=6 --set coldstart.steps=30 --set train.steps=1 --set train.groups=2"
    short="$short --set train.group_size=3 --set evaluation.max_tasks=3"
fi
status=0
# $short is a list of words and is meant to be split.
sh "$work/corral/install.sh" --offline "$bundle" demo $short >"$work/demo.log" 2>&1 || status=$?
ended=$(date +%s)
lookups=$(wc -l <"$work/lookups") packets=$(($(no_route) - before + $(no_route6) - before6))
printf '{"installed_s": %d, "demo_s": %d, "demo_exit_code": %d, "lookups": %d, "packets": %d}\n' \
    "$((installed - started))" "$((ended - installed))" "$status" "$lookups" "$packets" | tee "$work/sealed.json"
[ "$status" -eq 0 ] && [ "$lookups" -eq 0 ] && [ "$packets" -eq 0 ]
