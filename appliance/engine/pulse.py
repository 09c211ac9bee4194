"""Whether a server that owes an answer still does anything: how a hang is told from a busy machine.

Slowness says nothing on a machine whose cores are taken, so a late answer alone is no hang. A server hangs when it owes
an answer and, look after look, none of its threads has run, stands in line for a core or waits for a disk. Looks are
counted and not seconds, so that a supervisor that was itself held up does not blame the server.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import anyio

LOOK_S = 0.5
OLD_S = 1.0
"""An answer owed for less is not looked into."""
BUSY_STATES = frozenset("RD")
"""Running or in line for a core; waiting for a disk."""


class Pulse:
    """Consecutive looks at which some processes together had not moved."""

    def __init__(self) -> None:
        self._ran = -1
        self.still = 0

    def look(self, pids: Iterable[int]) -> None:
        """One look."""
        ran, is_busy = activity(pids)
        self.still = self.still + 1 if ran == self._ran and not is_busy else 0
        self._ran = ran


def activity(pids: Iterable[int]) -> tuple[int, bool]:
    """(nanoseconds run so far by all threads of these processes, whether one runs or waits for a core or a disk)."""
    ran, is_busy = 0, False
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").glob("*"):
            with suppress(OSError, ValueError, IndexError):
                ran += int((task / "schedstat").read_text().split()[0])
                is_busy |= (task / "stat").read_text().rpartition(")")[2].split()[0] in BUSY_STATES
    return ran, is_busy


def descendants(pid: int) -> list[int]:
    """All processes that `pid` started, and those they started."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError):
            for child in (task / "children").read_text().split():
                found += [int(child), *descendants(int(child))]
    return found


class Vitals:
    """What the server `pid` owes: an answer to a health question, answers to calls."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._server, self._workers = Pulse(), Pulse()
        self._asked_at: float | None = None
        self._healthy_at = 0.0

    def asked(self) -> None:
        """A health question was sent."""
        self._asked_at = anyio.current_time()

    def answered(self) -> None:
        """It was answered."""
        self._asked_at, self._healthy_at = None, anyio.current_time()

    def look(self, oldest_call: float | None, still_looks: int) -> str:
        """What is wrong, '' for nothing. `oldest_call`: when the oldest call that waits for its answer was sent."""
        now = anyio.current_time()
        if self._asked_at is not None and now - self._asked_at > OLD_S:
            self._server.look([self._pid])
            if self._server.still >= still_looks:
                return f"it has not answered a health question for {now - self._asked_at:.0f} s and does nothing"
        else:
            self._server.still = 0
        # A server that is itself held up has not passed the call on yet; its workers then owe nothing.
        if oldest_call is not None and now - oldest_call > OLD_S and self._healthy_at > oldest_call:
            if workers := descendants(self._pid):
                self._workers.look(workers)
            if self._workers.still >= still_looks:
                return f"a call has waited for {now - oldest_call:.0f} s and its workers do nothing"
        else:
            self._workers.still = 0
        return ""
