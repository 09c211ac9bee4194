"""What views read from the machine rather than from the record: which pages there are and when each is due.

No Textual here. Each read starts programs or walks /proc, so it is done only while its view is in front, in a
thread of its own, and no more often than `Machine` says.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

from appliance.errors import CorralError
from tui.pages.doctor import read_doctor
from tui.pages.hardware import Hardware
from tui.pages.harnesses import read_harnesses
from tui.pages.sandboxes import read_sandboxes
from tui.text import plain


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
