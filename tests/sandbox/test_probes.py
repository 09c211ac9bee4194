"""What an agent may try: to get out, to starve others, to cheat. Each probe is one attempt from inside a real sandbox.

Probes are Python statements that set `seen`; each runs in a process of its own and its test compares `seen` with the
one pattern that means contained. A group shares a sandbox, so that sixty attempts take five. The first ones are
allowed acts: a sandbox that could do nothing would contain everything.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream, SocketAttribute

from appliance.capture.proxy import Proxy
from appliance.config.runconfig import home, podman_home
from appliance.record.store import Store
from appliance.runs.teachers import ScriptedTeacher
from appliance.sandbox.images.build import base_ref, build_images
from appliance.sandbox.podman import Limits, Podman
from appliance.sandbox.pool import Host, Kind, Pool, Slot
from appliance.sandbox.settings import leave_proxy_directory, proxy_directory
from appliance.sandbox.spec import LAUNCH_FOLDER
from appliance.types import Purpose, RolloutPlan

pytestmark = pytest.mark.real

LIMITS = Limits(
    memory_bytes=256_000_000, pids=64, cpus=2.0, timeout_s=90.0, disk_bytes=24_000_000, num_files=2_000,
    file_bytes=16_000_000,
)  # fmt: skip
REFUSED = r"E(PERM|ACCES|NOSYS|INVAL|AFNOSUPPORT|ROFS|NETUNREACH|HOSTUNREACH|CONNREFUSED|NOENT|NODEV)"
# Runs in the sandbox: every probe in a child, its answer on one line of a file that a test reads.
RUNNER = """
import json, subprocess, sys
for name, code in json.loads(sys.argv[1]).items():
    done = subprocess.run([sys.executable, "-c", sys.argv[2], code], capture_output=True, text=True, errors="replace")
    print("PROBE " + json.dumps([name, done.stdout.strip() or "died " + str(done.returncode) + done.stderr[-300:]]))
    sys.stdout.flush()
"""
PRELUDE = """
import ctypes, errno, os, socket, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    return errno.errorcode[ctypes.get_errno()] if libc.syscall(number, *arguments) < 0 else "DID IT"
def run(command):
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    return (done.stdout + done.stderr).strip()[-300:] or "DID IT"
def reach(family, address, kind=socket.SOCK_STREAM):
    s = socket.socket(family, kind)
    s.settimeout(2)
    s.connect(address)
    return "REACHED"
space = {"seen": "nothing seen"}
try:
    exec(sys.argv[1], globals() | space, space)
except OSError as error:
    space["seen"] = errno.errorcode.get(error.errno, type(error).__name__)
except Exception as error:
    space["seen"] = type(error).__name__ + ": " + str(error)
print(space["seen"])
"""
NO_ROUTE = r"ENETUNREACH|EHOSTUNREACH|EADDRNOTAVAIL|EAFNOSUPPORT"

# name → (what is tried, what must be seen)
ALLOWED = {
    "writes in its workspace": ("open('/workspace/mine', 'w').write('x'); seen = 'wrote'", "wrote"),
    "writes in its home": ("open('/home/agent/mine', 'w').write('x'); seen = 'wrote'", "wrote"),
    "starts processes": ("seen = subprocess.run('echo hi', shell=True, capture_output=True, text=True).stdout", "hi"),
    "talks to itself over loopback": (
        "s = socket.create_server(('127.0.0.1', 0)); seen = reach(socket.AF_INET, s.getsockname())", "REACHED"),
    "reaches its proxy": ("seen = reach(socket.AF_INET, ('127.0.0.1', 8123))", "REACHED"),
}  # fmt: skip
NETWORK = {
    "the internet": ("seen = reach(socket.AF_INET, ('93.184.216.34', 80))", NO_ROUTE),
    "the internet by IPv6": ("seen = reach(socket.AF_INET6, ('2606:2800:220:1::1', 80))", NO_ROUTE),
    "a name server": ("socket.getaddrinfo('example.com', 80); seen = 'RESOLVED'", "gaierror.*|E.*"),
    "a name server by address": ("seen = reach(socket.AF_INET, ('8.8.8.8', 53), socket.SOCK_DGRAM)", NO_ROUTE),
    "cloud metadata": ("seen = reach(socket.AF_INET, ('169.254.169.254', 80))", NO_ROUTE),
    "the usual host gateway": ("seen = reach(socket.AF_INET, ('10.88.0.1', 22))", NO_ROUTE),
    "a port on the host's loopback": ("seen = reach(socket.AF_INET, ('127.0.0.1', {port}))", "ECONNREFUSED"),
    "an abstract socket of the host": ("seen = reach(socket.AF_UNIX, '\\0corral-probe-{port}')", "ECONNREFUSED"),
    "the hypervisor by a VM socket": ("seen = reach(40, (2, 1024))", REFUSED),
    "raw packets": ("socket.socket(socket.AF_INET, socket.SOCK_RAW, 1); seen = 'OPEN'", REFUSED),
    "link-level packets": ("socket.socket(17, socket.SOCK_RAW, 0); seen = 'OPEN'", REFUSED),
    "the kernel's crypto sockets": ("socket.socket(38, socket.SOCK_SEQPACKET, 0); seen = 'OPEN'", REFUSED),
    "another interface": ("seen = ' '.join(sorted(os.listdir('/sys/class/net')))", "lo"),
}
HOST = {
    "host files through /proc/1/root": (
        "seen = 'HOST' if os.path.exists('/proc/1/root/var/lib/dpkg/info/podman.list') else 'own root'", "own root"),
    "the container engine's socket": (
        "seen = ' '.join(p for p in ('/run/podman/podman.sock', '/var/run/docker.sock', '/run/corral/podman.sock') "
        "if os.path.exists(p)) or 'none'", "none"),
    "writing its root": ("open('/etc/passwd', 'a'); seen = 'OPEN'", REFUSED),
    "writing a kernel setting": ("open('/proc/sys/kernel/core_pattern', 'w'); seen = 'OPEN'", REFUSED),
    "the magic key": ("open('/proc/sysrq-trigger', 'w').write('b'); seen = 'WROTE'", REFUSED),
    "kernel memory": ("open('/proc/kcore', 'rb').read(8)[0]; seen = 'READ'", REFUSED + "|IndexError.*"),
    "the kernel's log": ("seen = call(103, 3, ctypes.create_string_buffer(99), 99)", REFUSED),
    "disks of the host": ("os.mknod('/workspace/disk', 0o060600, os.makedev(254, 0)); seen = 'MADE'", REFUSED),
    "devices in /dev": (
        "seen = ' '.join(sorted(n for n in os.listdir('/dev') if n in ('vda', 'sda', 'kvm', 'mem', 'fuse', 'loop0'))) "
        "or 'none'", "none"),
    "the host's processes": ("seen = str(sum(n.isdigit() for n in os.listdir('/proc')) < 20)", "True"),
    "the host's user ids": ("seen = open('/proc/self/uid_map').read().split()[1]", r"[1-9]\d{4,}"),
    "capabilities": (
        "seen = ' '.join(l.split()[1] for l in open('/proc/self/status') if l.startswith(('CapEff', 'CapBnd')))",
        "0+ 0+"),
    "a set-uid program": ("seen = run('cp /bin/sh /workspace/s && chmod 4755 /workspace/s && /workspace/s -p -c id')",
                          "(?!.*euid=0).*|DID IT"),
    "becoming root": ("os.setuid(0); seen = 'ROOT'", REFUSED),
    "writing another's cgroup": (
        "seen = run('echo 1 > /sys/fs/cgroup/pids/cgroup.procs || echo 1 > /sys/fs/cgroup/cgroup.procs')",
        "(?s).*(denied|Read-only|nonexistent).*"),
    "the launch pipe": (f"os.open('{LAUNCH_FOLDER}/go', os.O_WRONLY | os.O_NONBLOCK); seen = 'OPEN'",
                        "E(ACCES|ROFS|NXIO|PERM)"),
    "the grader's tests and rewards": ("seen = str(os.listdir('/tests') + os.listdir('/logs/verifier'))", r"\[\]"),
    "writing a reward": ("open('/logs/verifier/reward.txt', 'w'); seen = 'WROTE'", REFUSED),
    "a hard link to the system": ("os.link('/etc/passwd', '/workspace/p'); seen = 'LINKED'", "EXDEV|" + REFUSED),
    "a hard link out of its workspace": (
        "open('/workspace/a', 'w').close(); os.link('/workspace/a', '/home/agent/a'); seen = 'LINKED'", "EXDEV"),
    "replacing the proxy's socket": ("os.unlink('/run/corral/proxy.sock'); seen = 'GONE'", REFUSED),
}  # fmt: skip
KERNEL = {
    "a user namespace": ("seen = call(272, 0x10000000)", REFUSED),
    "a user namespace by clone": ("seen = call(56, 0x10000011, 0, 0, 0, 0)", REFUSED),
    "a user namespace by clone3": ("seen = call(435, 0, 0)", "ENOSYS"),
    "another's namespace": ("seen = call(308, os.open('/proc/self/ns/net', 0), 0)", REFUSED),
    "a mount": ("seen = call(165, b'none', b'/workspace', b'tmpfs', 0, 0)", REFUSED),
    "tracing": ("seen = call(101, 0, 0, 0, 0)", REFUSED),
    "another's memory": ("seen = call(310, os.getppid(), 0, 0, 0, 0, 0)", REFUSED),
    "kernel keys": ("seen = call(250, 0, -3, 1)", REFUSED),
    "kernel programs": ("seen = call(321, 0, 0, 0)", REFUSED),
    "io_uring": ("seen = call(425, 8, ctypes.create_string_buffer(200))", REFUSED),
    "performance events": ("seen = call(298, 0, 0, -1, -1, 0)", REFUSED),
    "a kernel module": ("seen = call(175, 0, 0, b'')", REFUSED),
    "the clock": ("time.clock_settime(time.CLOCK_REALTIME, 0); seen = 'SET'", REFUSED),
    "the host's name": ("socket.sethostname('mine'); seen = 'SET'", "PermissionError|" + REFUSED),
    "a file by handle": ("seen = call(304, -100, 0, 0)", REFUSED),
    "killing init": (
        "os.kill(1, 9); time.sleep(0.2); seen = 'init lives ' + open('/proc/1/comm').read().strip()", "init lives .*"),
}  # fmt: skip
STARVE = {
    "memory": ("seen = run('python3 -c \"bytearray(900_000_000)\"; echo ended $?')", "(?s).*ended 137.*"),
    "processes": (
        "n = 0\ntry:\n  while n < 500:\n    if not os.fork(): time.sleep(3); os._exit(0)\n    n += 1\n"
        "except OSError: pass\n"
        "seen = f'{n} forks'", r"[1-9]\d? forks"),
    "the disk": ("seen = run('for i in 1 2 3 4; do head -c 12000000 /dev/zero > /workspace/big$i || break; done; "
                 "rm -f /workspace/big*')",
                 "(?s).*No space left.*"),
    "inodes": (
        "n = 0\nos.mkdir('/workspace/many')\ntry:\n"
        "  while n < 100000: open(f'/workspace/many/{n}', 'w').close(); n += 1\n"
        "except OSError as e: seen = f'{errno.errorcode[e.errno]} after {n}'", r"ENOSPC after 1\d{3}"),
    "one endless file": ("seen = run('rm -r /workspace/many; yes > /workspace/f; echo ended $?; rm /workspace/f')",
                         "(?s).*ended 1(53)?.*|DID IT"),
    "a sparse file of a terabyte": ("os.truncate(os.open('/workspace/f', 66, 384), 1 << 40); seen = 'GREW'",
                                    "EFBIG|died -25.*"),
    "open files": (
        "n = 0\ntry:\n  while n < 2000000: os.dup(0); n += 1\nexcept OSError as e: seen = errno.errorcode[e.errno]",
        "EMFILE"),
    "shared memory": ("seen = run('for i in 1 2 3; do head -c 9000000 /dev/zero > /dev/shm/$i; done; rm /dev/shm/*')",
                      "(?s).*No space left.*"),
}  # fmt: skip
GROUPS = {"allowed": ALLOWED, "network": NETWORK, "host": HOST, "kernel": KERNEL, "starve": STARVE}
CASES = [pytest.param(group, name, id=f"{group}: {name}") for group, probes in GROUPS.items() for name in probes]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """Group → probe → what it saw; every group in a sandbox of its own."""
    folder = tmp_path_factory.mktemp("probes")
    for parent in (folder, *folder.parents[:2]):
        parent.chmod(parent.stat().st_mode | 0o055)
    build_images(podman_home(home()), [], print)
    return anyio.run(probe_all, folder)


async def probe_all(folder: Path) -> dict[str, dict[str, str]]:
    proxy, labels = folder / "proxy", {"corral.owner": f"probe{os.getpid()}"}
    proxy.mkdir()
    found = {}
    async with AsyncExitStack() as stack:
        listeners = [await anyio.create_unix_listener(proxy / "proxy.sock", mode=0o666)]
        listeners.append(await anyio.create_tcp_listener(local_host="127.0.0.1"))
        port = listeners[1].extra(SocketAttribute.local_port)
        listeners.append(await anyio.create_unix_listener(f"\0corral-probe-{port}"))
        tasks = await stack.enter_async_context(anyio.create_task_group())
        for listener in listeners:
            stack.push_async_callback(listener.aclose)
            tasks.start_soon(listener.serve, hang_up)
        podman = await stack.enter_async_context(Podman(podman_home(home())))
        async with Pool([Host(podman)], folder / "sandboxes", labels, at_most=2) as pool:
            for group in GROUPS:
                async with pool.slot(Kind(base_ref(), LIMITS, proxy), group) as slot:
                    found[group] = await probe(slot, group, port)
        assert await podman.list(labels) == []
        assert list((folder / "sandboxes").iterdir()) == []
        tasks.cancel_scope.cancel()
    return found


async def hang_up(stream: ByteStream) -> None:
    await stream.aclose()


async def probe(slot: Slot, group: str, port: int) -> dict[str, str]:
    codes = {name: code.replace("{port}", str(port)) for name, (code, _) in GROUPS[group].items()}
    argv = ("python3", "-c", RUNNER, json.dumps(codes), PRELUDE)
    outcome = await slot.watch(await slot.go(argv, {}, LIMITS), lambda: False)
    lines = [line for line in outcome.output.splitlines() if line.startswith("PROBE ")]
    return dict(json.loads(line[6:]) for line in lines) or {"": str(outcome)}


@pytest.mark.parametrize(("group", "name"), CASES)
def test_I9_a_sandbox_contains(seen: dict[str, dict[str, str]], group: str, name: str) -> None:
    assert name in seen[group], seen[group]
    assert re.fullmatch(GROUPS[group][name][1], seen[group][name]), seen[group][name]


# What bubblewrap does for a harness that sandboxes its own commands; then what root in such a namespace still may not.
CLONED = "import ctypes, os; p = ctypes.CDLL(None).syscall(56, 0x10000011, 0, 0, 0, 0); p or os._exit(0); print(p > 0)"
NESTED = f"""
unshare -Urm sh -c '
  echo uid $(id -u)
  mkdir -p /tmp/m && mount -t tmpfs none /tmp/m && echo secret > /tmp/m/f && echo mounted
  touch /etc/x 2>/dev/null && echo ESCAPED root
  mount -o remount,rw / 2>/dev/null && touch /etc/x 2>/dev/null && echo ESCAPED remount
  mount --bind /tmp/m /run/corral 2>/dev/null; ls /proc/1/root/tmp/m 2>/dev/null && echo ESCAPED mount
  mknod /tmp/m/disk b 8 0 2>/dev/null && echo ESCAPED device
  nsenter -t 1 -n true 2>/dev/null && echo ESCAPED network
'
test -e /tmp/m/f && echo ESCAPED file
echo cloned $(python3 -c '{CLONED}')
ls /sys/class/net
"""


@pytest.mark.parametrize("may_nest", [True, False])
def test_only_a_harness_with_the_exception_makes_namespaces_and_gets_no_further(tmp_path: Path, may_nest: bool) -> None:
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(parent.stat().st_mode | 0o055)
    build_images(podman_home(home()), [], print)
    said = anyio.run(nested, tmp_path, may_nest)
    assert not [line for line in said if line.startswith("ESCAPED")], said
    assert said[-1] == "lo"
    if may_nest:
        assert {"uid 0", "mounted", "cloned True"} <= set(said), said
    else:
        assert "cloned False" in said and not {"uid 0", "mounted"} & set(said), said
        assert any("unshare" in line and "not permitted" in line for line in said), said


async def nested(folder: Path, may_nest: bool) -> list[str]:
    """The lines that it printed, through the waiting sandbox that a harness with this exception gets."""
    (folder / "proxy").mkdir()
    async with Podman(podman_home(home())) as podman:
        labels = {"corral.owner": f"nest{os.getpid()}"}
        kind = Kind(base_ref(), LIMITS, folder / "proxy", may_nest)
        pool = Pool([Host(podman)], folder / "sandboxes", labels, at_most=0)
        async with pool, pool.slot(kind, "nest") as slot:
            outcome = await slot.watch(await slot.go(("sh", "-c", NESTED), {}, LIMITS), lambda: False)
    return outcome.output.splitlines()


# One sandbox that keeps secrets, and another that looks for them and calls their common proxy with both tokens.
NEIGHBOUR = """
import os, socket, time
for folder in ("/workspace", "/home/agent", "/tmp", "/dev/shm"):
    open(folder + "/kept-by-neighbour", "w").close()
abstract = socket.socket(socket.AF_UNIX)
abstract.bind("\\0corral-neighbour")
abstract.listen()
port = socket.create_server(("127.0.0.1", 9999))
print("keeps", flush=True)
time.sleep(600)
"""
LOOKS = """
import errno, json, os, socket, urllib.request, urllib.error
def refusal(family, address):
    try:
        socket.socket(family).connect(address)
    except OSError as error:
        return errno.errorcode[error.errno]
def status(token):
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:8123/s/{token}/v1/models").status
    except urllib.error.HTTPError as error:
        return error.code
def read(pid, name):
    try:
        return open(f"/proc/{pid}/{name}", "rb").read().decode(errors="replace")
    except OSError:
        return ""
others = [pid for pid in os.listdir("/proc") if pid.isdigit() and pid != str(os.getpid())]
roots = [f"/proc/{pid}/root/workspace" for pid in others]
open("/workspace/kept-by-me", "w").close()  # so that a look that sees nothing at all is noticed
files = []
for root in ("/workspace", "/home", "/tmp", "/dev/shm", "/run", "/var", "/mnt", "/srv", *roots):
    files += [f for at, _, names in os.walk(root) for f in names if f.startswith("kept-by-")]
token = os.environ["NEIGHBOURS"]
print(json.dumps({
    "files": sorted(set(files)),
    "processes": [pid for pid in others if "kept-by-" in read(pid, "cmdline") or "KEEPS" in read(pid, "environ")],
    "abstract socket": refusal(socket.AF_UNIX, "\\0corral-neighbour"),
    "port": refusal(socket.AF_INET, ("127.0.0.1", 9999)),
    "own token": status(os.environ["OWN"]), "a guess": status("A" * len(token)), "its token": status(token),
}))
"""


def test_I9_a_sandbox_finds_nothing_of_another_and_only_a_token_tells_them_apart(tmp_path: Path) -> None:
    """Both have the run's one proxy socket: a token that was known would be taken, so none may be found."""
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(parent.stat().st_mode | 0o055)
    build_images(podman_home(home()), [], print)
    seen = anyio.run(neighbours, tmp_path)
    assert seen.pop("its token") == 200  # as docs/security.md says: who holds a token is its rollout
    assert seen == {
        "files": ["kept-by-me"], "processes": [], "abstract socket": "ECONNREFUSED", "port": "ECONNREFUSED",
        "own token": 200, "a guess": 401,
    }  # fmt: skip


async def neighbours(folder: Path) -> dict[str, Any]:
    store = Store.open(folder / "record.db")
    store.create_run("r", "test", {}, 0, "test")
    plans = [RolloutPlan("r", Purpose.SINGLE, 0, "tiny", "t", number) for number in range(2)]
    tokens = {rollout.id: secrets.token_urlsafe(24) for rollout in store.plan(plans)}
    labels = {"corral.owner": f"neighbour{os.getpid()}"}
    async with Podman(podman_home(home())) as podman, Proxy(store, proxy_directory(folder)) as proxy:
        for rollout_id, token in tokens.items():
            proxy.open(rollout_id, token, ScriptedTeacher(["true"]))
        own, its = tokens.values()
        kind = Kind(base_ref(), LIMITS, proxy.directory)
        async with (
            Pool([Host(podman)], folder / "sandboxes", labels, at_most=0) as pool,
            pool.slot(kind, "neighbour") as other, pool.slot(kind, "looker") as slot,
        ):  # fmt: skip
            await other.go(("python3", "-c", NEIGHBOUR), {"KEEPS": its}, LIMITS)
            with anyio.fail_after(120):
                while "keeps" not in await podman._output(other.waiting.spec.name):
                    await anyio.sleep(0.1)
            started = await slot.go(("python3", "-c", LOOKS), {"OWN": own, "NEIGHBOURS": its}, LIMITS)
            outcome = await slot.watch(started, lambda: False)
    leave_proxy_directory(folder)
    store.close()
    return dict(json.loads(outcome.output))
