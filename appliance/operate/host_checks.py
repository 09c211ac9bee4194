"""Checks of this host that need nothing of Corral's to run: folder, clock, limits, sockets, GPU, offline switches.

Each returns (ok, found, remedy) and changes nothing. What it looks at comes in as an argument where a test needs it.
"""

from __future__ import annotations

import ctypes
import os
import resource
import socket
import stat
import subprocess
import tempfile
import time
from pathlib import Path

from appliance.config.runconfig import CHECKOUT
from appliance.sandbox.settings import PodmanPlaces
from appliance.system.mounts import network_filesystem
from appliance.system.offline import SWITCHES, still_on
from appliance.system.scratch import stale_scratch

Check = tuple[bool, str, str]

NEEDED_FILES = 1024
NEEDED_PROCESSES = 512
LONGEST_SOCKET = 107
"""Bytes of a Unix socket's path that the kernel takes."""
CLOCK_UNSYNCED = 5
"""What adjtimex(2) returns while no time service keeps the clock."""
FUTURE_S = 60.0
MOST_NAMED = 5
"""Open files that a finding names; the rest is counted."""


def folder(home: Path) -> Check:
    """State lies in a folder of our own, writable, on a local disk, closed to other users."""
    place = next(p for p in (home, *home.parents) if p.exists())
    if not os.access(place, os.W_OK | os.X_OK) or _is_readonly(place):
        return False, f"{place} is read-only for this user", "make it writable, or set CORRAL_HOME to another folder"
    if kind := network_filesystem(place):
        return False, f"{place} is on a network file system ({kind})", "set CORRAL_HOME to a folder on a local disk"
    if seen := [str(path.relative_to(home)) for path in open_to_others(home)]:
        more = f" and {len(seen) - MOST_NAMED} more" if len(seen) > MOST_NAMED else ""
        return False, f"{home}: others can read {', '.join(seen[:MOST_NAMED])}{more}", "corral doctor --fix"
    return True, f"{home}" if home.exists() else f"{home}, to be made", ""


def open_to_others(home: Path) -> list[Path]:
    """What is its owner's alone and yet open to others: of the record and its copies, and of the runs' folders.

    `home` itself and its other folders stay as they are: a sandbox's user must pass through them.
    """
    records = [path for path in sorted(home.glob("record.db*")) if path.is_file()]
    runs = [path for path in (home / "runs", *sorted(home.glob("runs/*"))) if path.is_dir() and not path.is_symlink()]
    return [path for path in (*records, *runs) if stat.S_IMODE(path.stat().st_mode) & 0o077]


def _is_readonly(place: Path) -> bool:
    return bool(os.statvfs(place).f_flag & os.ST_RDONLY)


def clock(newest_on_record: float = 0.0, now: float | None = None) -> Check:
    """The clock is not behind what is already written, and something keeps it right."""
    now = time.time() if now is None else now
    written = max((CHECKOUT / "pyproject.toml").stat().st_mtime, newest_on_record)
    shown = time.strftime("%Y-%m-%d %H:%M", time.localtime(now))
    remedy = "set the clock: `timedatectl set-ntp true`, or `date -s` where there is no network"
    if written > now + FUTURE_S:
        ahead = time.strftime("%Y-%m-%d %H:%M", time.localtime(written))
        return False, f"{shown}, but the record or the code was written at {ahead}", remedy
    kept = "kept by a time service" if _is_synchronised() else "no time service is known to keep it"
    return True, f"{shown}, {kept}", ""


def _is_synchronised() -> bool:
    """As the kernel says; no answer counts as no."""
    buffer = ctypes.create_string_buffer(512)  # struct timex, with modes = 0: only read
    try:
        return int(ctypes.CDLL(None).adjtimex(buffer)) not in (CLOCK_UNSYNCED, -1)
    except (AttributeError, OSError):
        return False


def limits(files: int | None = None, processes: int | None = None) -> Check:
    """Hard limits of this user, which no program can raise for itself."""
    files = _hard(resource.RLIMIT_NOFILE) if files is None else files
    processes = _hard(resource.RLIMIT_NPROC) if processes is None else processes
    found = f"{files} open files, {processes} processes"
    remedy = f"raise nofile to {NEEDED_FILES} and nproc to {NEEDED_PROCESSES} in /etc/security/limits.conf, log in anew"
    return files >= NEEDED_FILES and processes >= NEEDED_PROCESSES, found, remedy


def _hard(which: int) -> int:
    hard = resource.getrlimit(which)[1]
    return 1 << 20 if hard == resource.RLIM_INFINITY else hard


def sockets(home: Path) -> Check:
    """No port is opened; the Unix sockets' folder takes one, and nobody else's proxy sits there."""
    run = PodmanPlaces.under(home).run
    proxy = run / "proxy" / "proxy.sock"
    longest = len(bytes(run / "podman-4194304.sock"))
    if longest > LONGEST_SOCKET:
        found = f"{run}: a socket's path would have {longest} bytes, the kernel takes {LONGEST_SOCKET}"
        return False, found, "set XDG_RUNTIME_DIR to a shorter path"
    place = next(p for p in (run, *run.parents) if p.exists())
    if not os.access(place, os.W_OK | os.X_OK):
        return False, f"{place} cannot be written", f"make {place} writable, or set XDG_RUNTIME_DIR"
    probe = socket.socket(socket.AF_UNIX)
    with tempfile.TemporaryDirectory(prefix="corral-doctor-", dir=place) as scratch, probe:
        probe.bind(f"{scratch}/s")
    in_use = ", a proxy serves there now" if _listens(proxy) else ""
    return True, f"{run}{in_use}; no TCP port is used", ""


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
    return True


def device(gpus: Path = Path("/proc/driver/nvidia/gpus")) -> Check:
    """GPUs by the driver's own list; where there are some, its tool must answer."""
    found = list(gpus.glob("*")) if gpus.exists() else []
    if not found:
        return True, f"no GPU: CPU with {os.cpu_count()} cores", ""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,memory.free", "--format=csv,noheader"]
    try:
        told = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        remedy = "repair the NVIDIA driver: `nvidia-smi` must work"
        return False, f"{len(found)} GPUs, but nvidia-smi fails: {error}", remedy
    return True, "; ".join(told.strip().splitlines()), ""


def offline() -> Check:
    """The switches that this process and so its children run with."""
    missing = still_on(os.environ)
    found = f"not set: {', '.join(missing)}" if missing else f"all {len(SWITCHES)} switches are set"
    return not missing, found, "start Corral by its `corral` command, which sets them"


def leftovers(home: Path) -> Check:
    """Scratch folders that killed children left, and drafts in runs' folders."""
    left = stale_scratch()
    found = f"{len(left)} scratch folders of processes that are gone" if left else "nothing"
    return not left, found, "corral doctor --fix"
