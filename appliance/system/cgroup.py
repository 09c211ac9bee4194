"""What the kernel counted for a sandbox: CPU time, refused forks, kills for memory; cgroup v1 and v2 alike.

The counters are gone as soon as the container has ended, so they are read while it runs; `Counters` keeps the
largest that was seen.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


@dataclass(slots=True)
class Counters:
    """`cpu_s` seconds of CPU, `refused_forks`, `memory_kills`, `peak_bytes`: each the largest seen so far."""

    folders: dict[str, Path]
    cpu_s: float = 0.0
    refused_forks: int = 0
    memory_kills: int = 0
    peak_bytes: int = 0

    @classmethod
    def of(cls, pid: int, root: Path = ROOT, proc: Path = Path("/proc")) -> Counters:
        """The counters of the cgroups that the process `pid` is in; none for one that is gone."""
        return cls(_folders(pid, root, proc))

    def look(self) -> None:
        """Read them once more; what cannot be read any more stays as it was."""
        if "" in self.folders:
            folder = self.folders[""]
            self.cpu_s = max(self.cpu_s, _number(folder / "cpu.stat", "usage_usec") / 1e6)
            self.memory_kills = max(self.memory_kills, _number(folder / "memory.events", "oom_kill"))
            self.refused_forks = max(self.refused_forks, _number(folder / "pids.events", "max"))
            self.peak_bytes = max(self.peak_bytes, _number(folder / "memory.peak"))
            return
        for controller, folder in self.folders.items():
            if controller == "cpuacct":
                self.cpu_s = max(self.cpu_s, _number(folder / "cpuacct.usage") / 1e9)
            elif controller == "pids":
                self.refused_forks = max(self.refused_forks, _number(folder / "pids.events", "max"))
            elif controller == "memory":
                self.memory_kills = max(self.memory_kills, _number(folder / "memory.oom_control", "oom_kill"))
                self.peak_bytes = max(self.peak_bytes, _number(folder / "memory.max_usage_in_bytes"))


def remove_empty(root: Path, name: str, known: set[str]) -> list[str]:
    """Remove the cgroups under `name`, in every hierarchy, of containers that are not `known`; their ids."""
    gone = set()
    for parent in (*root.glob(f"*/{name}"), root / name):
        for folder in parent.glob("libpod-*"):
            container_id = folder.name.rpartition("-")[2].removesuffix(".scope")
            if container_id in known or not folder.is_dir():
                continue
            with suppress(OSError):  # a process is in it still: the runtime's list has it, or its monitor ends it
                folder.rmdir()
                gone.add(container_id)
    return sorted(gone)


def ids_under(root: Path, name: str) -> set[str]:
    """Ids of the containers, and of monitors, that have a cgroup under `name` in any hierarchy."""
    folders = [folder for parent in (*root.glob(f"*/{name}"), root / name) for folder in parent.glob("libpod-*")]
    return {folder.name.rpartition("-")[2].removesuffix(".scope") for folder in folders}


def remove_parents(root: Path, name: str) -> bool:
    """Remove `name` in every hierarchy with the empty cgroups under it; False where a process is in one still.

    The kernel removes none that is in use, so this ends nothing.
    """
    remove_empty(root, name, set())
    for parent in (*root.glob(f"*/{name}"), root / name):
        for folder in (parent / "conmon", parent):
            with suppress(OSError):
                folder.rmdir()
    return not (*root.glob(f"*/{name}"), *root.glob(name))


def _folders(pid: int, root: Path, proc: Path) -> dict[str, Path]:
    """Controller → folder on v1; '' → folder on v2."""
    found: dict[str, Path] = {}
    if pid <= 0:
        return found
    with suppress(OSError):
        for line in (proc / str(pid) / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if path == "/":
                continue
            if controllers:
                found |= {name: root / name / path[1:] for name in controllers.split(",")}
            elif (root / "cgroup.controllers").exists():
                found = {"": root / path[1:]}
    return found


def _number(path: Path, key: str = "") -> int:
    """The number in a file, or in its line `key`; 0 where there is none."""
    with suppress(OSError):
        found = re.search(rf"^{key} ?(\d+)", path.read_text(), re.M)
        return int(found[1]) if found else 0
    return 0
