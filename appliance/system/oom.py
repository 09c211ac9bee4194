"""Was a process of a container killed for memory? Asked of the kernel where Podman cannot tell.

On cgroup v2 Podman's own `OOMKilled` is right and `OomWatch` stays silent. On v1 it is never set, and the
counter is gone as soon as the container has ended; an eventfd on it keeps what happened.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

MEMORY_ROOT = Path("/sys/fs/cgroup/memory")
# The kernel signals a removed cgroup from a work queue: a moment later, on a busy machine a long one.
SIGNAL_DELAY_S, LONGEST_DELAY_S = 0.02, 1.0


def kernel_kills() -> int:
    """How many processes this kernel has ended for want of memory since it booted, in whichever cgroup."""
    try:
        found = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.M)
    except OSError:
        return 0
    return int(found[1]) if found else 0


def describe_exit(code: int, kills_before: int) -> str:
    """A child's exit code in words; `kills_before`: `kernel_kills` when it was started.

    Also an exit of another code may come of it: of a server whose worker was killed.
    """
    how, kills = "was killed" if code == 137 else f"ended with code {code}", kernel_kills() - kills_before
    return f"{how} (since it started, the kernel has ended {kills} processes for want of memory)" if kills else how


class OomWatch:
    """The out-of-memory notices of one memory cgroup (v1), or nothing where there is none."""

    def __init__(self, folder: Path | None, event: int) -> None:
        self._folder = folder
        self._event = event

    async def was_killed(self, is_likely: bool = False) -> bool:
        """True if the kernel ran out of the container's memory since the watch began.

        `is_likely`: worth waiting for; it ended by a signal, say.
        """
        if self._folder is None:
            return False
        try:
            return _kills(self._folder) > 0
        except OSError:
            # The cgroup is gone, which itself is one notice: a second one means memory ran out.
            count = _drain(self._event)
            waited_s = 0.0
            while count == 1 and waited_s < (LONGEST_DELAY_S if is_likely else SIGNAL_DELAY_S):
                await anyio.sleep(SIGNAL_DELAY_S)
                waited_s += SIGNAL_DELAY_S
                count += _drain(self._event)
            return count > 1


@asynccontextmanager
async def watch_oom(pid: int) -> AsyncIterator[OomWatch]:
    """Watch the memory cgroup of the process `pid` (a container's first one)."""
    folder = _v1_folder(pid)
    if folder is None:
        yield OomWatch(None, -1)
        return
    event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    try:
        try:
            with (folder / "memory.oom_control").open() as control:
                (folder / "cgroup.event_control").write_text(f"{event} {control.fileno()}")
        except OSError:
            folder = None  # it ended before the watch began
        yield OomWatch(folder, event)
    finally:
        os.close(event)


def _v1_folder(pid: int) -> Path | None:
    """The v1 memory cgroup of `pid`; None on cgroup v2, or when the process is gone."""
    if pid <= 0 or not (MEMORY_ROOT / "cgroup.event_control").exists():
        return None
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(",") and path != "/":
            return MEMORY_ROOT / path.lstrip("/")
    return None


def _kills(folder: Path) -> int:
    found = re.search(r"^oom_kill (\d+)", (folder / "memory.oom_control").read_text(), re.M)
    return int(found[1]) if found else 0


def _drain(event: int) -> int:
    try:
        return os.eventfd_read(event)
    except BlockingIOError:
        return 0
