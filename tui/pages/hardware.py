"""The machine in numbers, and who of Corral's processes uses it: /proc, statvfs, nvidia-smi. No Textual."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from appliance.record import queries
from appliance.record.store import Store
from tui.pages.snapshot import EngineLine
from tui.text import plain_line

PROC = Path("/proc")
SMI_DEADLINE_S = 3.0
_OWNERS = (("enginecore", "engine"), ("vllm", "engine"), ("engine", "engine"), ("trainer", "trainer"),
           ("torchrun", "trainer"), ("podman", "podman"), ("conmon", "sandbox"))  # fmt: skip


@dataclass(frozen=True, slots=True)
class ProcessLine:
    """A process of the supervisor's family. `cpu_s`: processor seconds it has used."""

    pid: int
    owner: str
    command: str
    memory_bytes: int
    cpu_s: float


@dataclass(frozen=True, slots=True)
class GpuLine:
    """A GPU; `by_owner`: what each part of Corral, and everybody else, holds of its memory."""

    name: str
    used_bytes: int
    total_bytes: int
    busy_share: float
    by_owner: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class HardwarePage:
    """`busy_share` is None at the first look: it needs two. `gpus` empty: none was found."""

    at: float = 0.0
    num_cores: int = 1
    load: float = 0.0
    busy_share: float | None = None
    memory_used: int = 0
    memory_total: int = 0
    swap_used: int = 0
    disk_free: int = 0
    disk_total: int = 0
    record_bytes: int = 0
    journal_bytes: int = 0
    gpus: tuple[GpuLine, ...] = ()
    processes: tuple[ProcessLine, ...] = ()


class Hardware:
    """Looks at the machine; remembers the last look, since processor time is a difference."""

    def __init__(self) -> None:
        self._before: tuple[int, int] | None = None

    def __call__(self, home: Path) -> HardwarePage:
        """One look."""
        now, before = _cpu_ticks(), self._before
        self._before = now
        share = (now[0] - before[0]) / (now[1] - before[1]) if before and now[1] > before[1] else None
        return _look(home, share)


def _look(home: Path, busy_share: float | None) -> HardwarePage:
    memory = _meminfo()
    place = next(p for p in (home, *home.parents) if p.exists())
    disk = shutil.disk_usage(place)
    processes = _family(home)
    return HardwarePage(
        at=time.time(),
        num_cores=os.cpu_count() or 1,
        load=os.getloadavg()[0],
        busy_share=busy_share,
        memory_used=memory.get("MemTotal", 0) - memory.get("MemAvailable", 0),
        memory_total=memory.get("MemTotal", 0),
        swap_used=memory.get("SwapTotal", 0) - memory.get("SwapFree", 0),
        disk_free=disk.free,
        disk_total=disk.total,
        record_bytes=_size(home / "record.db"),
        journal_bytes=_size(home / "record.db-wal"),
        gpus=_gpus({p.pid: p.owner for p in processes}),
        processes=processes,
    )


def _cpu_ticks() -> tuple[int, int]:
    """(busy, all) since boot, over all cores (proc(5): user nice system idle iowait …)."""
    fields = [int(n) for n in (PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(fields) - fields[3] - fields[4], sum(fields)


def _meminfo() -> dict[str, int]:
    found = {}
    for line in (PROC / "meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        found[name] = int(rest.split()[0]) * 1024
    return found


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _family(home: Path) -> tuple[ProcessLine, ...]:
    """The supervisor that the lock names, and everything below it; the largest first."""
    try:
        root = int(json.loads((home / "supervisor.lock").read_text())["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return ()
    parents: dict[int, int] = {}
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            try:
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
    family, grown = {root}, True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in family} - family
        family, grown = family | more, bool(more)
    lines = [line for pid in family if pid in parents and (line := _process(pid, pid == root))]
    return tuple(sorted(lines, key=lambda line: -line.memory_bytes))


def _process(pid: int, is_root: bool) -> ProcessLine | None:
    folder = PROC / str(pid)
    try:
        words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        pages = int((folder / "statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    lower = words.lower()
    owner = "supervisor" if is_root else next((name for word, name in _OWNERS if word in lower), "other")
    cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return ProcessLine(pid, owner, plain_line(words)[:300], pages * os.sysconf("SC_PAGE_SIZE"), cpu_s)


def _gpus(owners: dict[int, str]) -> tuple[GpuLine, ...]:
    """What nvidia-smi says; empty where it is not installed or does not answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    devices = _smi(program, "--query-gpu=uuid,name,memory.used,memory.total,utilization.gpu")
    apps = _smi(program, "--query-compute-apps=gpu_uuid,pid,used_memory")
    return gpu_lines(devices, apps, owners)


def _smi(program: str, query: str) -> str:
    try:
        done = subprocess.run(
            [program, query, "--format=csv,noheader,nounits"],
            capture_output=True, text=True, check=False, timeout=SMI_DEADLINE_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def gpu_lines(devices: str, apps: str, owners: dict[int, str]) -> tuple[GpuLine, ...]:
    """GPUs from two answers of nvidia-smi (CSV; MiB and percent); `owners`: process → part of Corral."""
    held: dict[str, dict[str, int]] = {}
    for row in _csv(apps, 3):
        uuid, pid, used = row
        owner = owners.get(_whole(pid), "others")
        own = held.setdefault(uuid, {})
        own[owner] = own.get(owner, 0) + (_whole(used) << 20)
    return tuple(
        GpuLine(
            plain_line(name), _whole(used) << 20, _whole(total) << 20, _whole(busy) / 100,
            tuple(sorted(held.get(uuid, {}).items(), key=lambda item: -item[1])),
        )
        for uuid, name, used, total, busy in _csv(devices, 5)
    )  # fmt: skip


def _csv(text: str, width: int) -> list[list[str]]:
    rows = [[field.strip() for field in line.split(",")] for line in text.splitlines()]
    return [row for row in rows if len(row) == width]


def _whole(text: str) -> int:
    """The number, or 0 for `[N/A]`."""
    return int(text) if text.isdigit() else 0


def read_engines(store: Store, run_id: str) -> tuple[EngineLine, ...]:
    """What the engines of a run last told of their queues and caches, as the supervisor recorded it."""
    return tuple(
        EngineLine(
            number, at, int(load.get("running", 0)), int(load.get("waiting", 0)), load.get("cache_share"),
            load["prefix_hits"] / load["prefix_queries"] if load.get("prefix_queries") else None,
        )
        for number, at, load in queries.engines(store, run_id)
    )  # fmt: skip
