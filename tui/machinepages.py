"""What views read from the machine rather than from the record: hardware, sandboxes, harness files, checks.

No Textual here. Each read starts programs or walks /proc, so it is done only while its view is in front, in a
thread of its own, and no more often than `Machine` says.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from appliance.errors import CorralError
from tui.hardwaredata import Hardware
from tui.text import plain, plain_line


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
    from appliance.config import podman_home
    from appliance.reconcile import sandboxes

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
    from appliance.memory import FIELDS, stat_file

    file = stat_file(pid)
    try:
        found = FIELDS.search(file.read_text()) if file else None
        procs = len((file.parent / "cgroup.procs").read_text().split()) if file else None
    except OSError:
        return None, None
    return (int(found[1]) if found else None), procs


@dataclass(frozen=True, slots=True)
class HarnessLine:
    """A harness file; `problem` says why it cannot be used. `is_own`: outside the checkout, so it may be edited."""

    name: str
    version: str
    wire: str
    file: str
    text: str
    problem: str
    is_own: bool


@dataclass(frozen=True, slots=True)
class HarnessesPage:
    """All harness files at hand; those with a problem first."""

    harnesses: tuple[HarnessLine, ...] = ()


def read_harnesses(home: Path) -> HarnessesPage:
    """The shelf of this home."""
    from appliance.config import CHECKOUT
    from appliance.shelf import Shelf

    shelf = Shelf.of(home)
    lines = [
        HarnessLine(plain_line(path.stem), "", "", str(path), _text(path), plain(str(error)),
                    CHECKOUT not in path.parents)
        for path, error in shelf.problems.items()
    ]  # fmt: skip
    for name, harness in shelf.harnesses.items():
        path = shelf.paths[name]
        lines.append(
            HarnessLine(plain_line(name), plain_line(harness.version), plain_line(harness.wire), str(path),
                        _text(path), "", CHECKOUT not in path.parents)
        )  # fmt: skip
    return HarnessesPage(tuple(lines))


def _text(path: Path) -> str:
    try:
        return plain(path.read_text(encoding="utf-8", errors="backslashreplace")[:20_000])
    except OSError as error:
        return plain(str(error))


@dataclass(frozen=True, slots=True)
class CheckLine:
    """One check of this machine."""

    name: str
    is_ok: bool
    found: str
    remedy: str


@dataclass(frozen=True, slots=True)
class DoctorPage:
    """Every check, in the order in which a failure matters, and when they were made."""

    checks: tuple[CheckLine, ...] = ()
    at: float = 0.0


def read_doctor(home: Path) -> DoctorPage:
    """Makes every check; takes seconds on a large record."""
    from appliance.doctor import checks

    found = checks(home)
    lines = tuple(
        CheckLine(plain_line(str(c["name"])), bool(c["ok"]), plain(str(c["found"])), plain(str(c["remedy"])))
        for c in found
    )
    return DoctorPage(lines, time.time())


class Machine:
    """Which pages there are, when each is due, and what was read last. `read` runs in a thread of its own."""

    def __init__(self) -> None:
        self._readers: dict[str, tuple[Callable[[Path], object], float | None]] = {
            "hardware": (Hardware(), 2.0),
            "sandboxes": (read_sandboxes, 3.0),
            "harnesses": (read_harnesses, 3.0),
            "doctor": (read_doctor, None),
        }
        self._pages: dict[str, object] = {}
        self._due_at: dict[str, float] = {}

    def has(self, name: str) -> bool:
        """Whether a view of this name draws a page of the machine."""
        return name in self._readers

    def page(self, name: str) -> object:
        """What was read last; None before that."""
        return self._pages.get(name)

    def begin(self, name: str) -> bool:
        """Whether the page is to be read now; nobody else begins until that has ended."""
        is_due = time.monotonic() >= self._due_at.get(name, 0.0)
        if is_due:
            self._due_at[name] = math.inf
        return is_due

    def forget(self, name: str) -> None:
        """The page is shown as not read yet, and is due at once; one that is being read stays so."""
        if self._pages.pop(name, None) is not None:
            self._due_at[name] = 0.0

    def read(self, name: str, home: Path) -> str:
        """Reads the page; what went wrong, or ``. A view whose page cannot be read keeps the one before."""
        read, every_s = self._readers[name]
        problem = ""
        try:
            self._pages[name] = read(home)
        except (CorralError, OSError, ValueError) as error:
            problem = plain(str(error))
        self._due_at[name] = math.inf if every_s is None and not problem else time.monotonic() + (every_s or 10.0)
        return problem
