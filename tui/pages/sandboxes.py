"""Containers of ours that live now: whose they are and what they use. No Textual."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from appliance.errors import CorralError
from tui.text import plain, plain_line

LOG_LINES = 2000


@dataclass(frozen=True, slots=True)
class SandboxLine:
    """A container of ours. `is_orphan`: the process that made it is gone. `memory_bytes` None: not known."""

    name: str
    state: str
    image: str
    run: str
    rollout: str
    is_orphan: bool
    created_at: float
    memory_bytes: int | None
    num_processes: int | None


@dataclass(frozen=True, slots=True)
class SandboxesPage:
    """Every sandbox of this machine's Podman. `problem` is (what, remedy) when it cannot be asked."""

    sandboxes: tuple[SandboxLine, ...] = ()
    problem: tuple[str, str] | None = None


def read_sandboxes(home: Path) -> SandboxesPage:
    """What lives now, the oldest first."""
    from appliance.config.runconfig import podman_home
    from appliance.sandbox.admin import sandboxes

    try:
        rows = sandboxes(podman_home(home))
    except (CorralError, OSError, ValueError) as error:
        return SandboxesPage(problem=(plain(str(error)), "corral doctor says what is missing"))
    return SandboxesPage(tuple(_sandbox(row) for row in rows))


def _sandbox(row: Mapping[str, object]) -> SandboxLine:
    pid = int(str(row.get("pid") or 0))
    memory, processes = _usage(pid) if pid else (None, None)
    return SandboxLine(
        name=plain_line(str(row["name"])),
        state=plain_line(str(row["state"])),
        image=plain_line(str(row["image"])).rpartition("/")[2],
        run=plain_line(str(row["run"])),
        rollout=plain_line(str(row["rollout"])),
        is_orphan=row["owner"] == "gone",
        created_at=float(str(row["created_at"])),
        memory_bytes=memory,
        num_processes=processes,
    )


def _usage(pid: int) -> tuple[int | None, int | None]:
    """(bytes its processes hold, how many they are) by the cgroup of a container's first process."""
    from appliance.system.memory import FIELDS, stat_file

    file = stat_file(pid)
    try:
        found = FIELDS.search(file.read_text()) if file else None
        procs = len((file.parent / "cgroup.procs").read_text().split()) if file else None
    except OSError:
        return None, None
    return (int(found[1]) if found else None), procs


def read_log(home: Path, name: str) -> str:
    """What a sandbox's processes have written: stdout and stderr, the last of it."""
    from appliance.config.runconfig import podman_home
    from appliance.sandbox.admin import logs

    return plain(logs(podman_home(home), name, LOG_LINES)) or "It has written nothing yet."
