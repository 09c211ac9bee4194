"""How far a command is and how long it will still take, on standard error, once it has taken two seconds.

What can be counted is told as done and of; of what cannot, the time left is what the same command took here last time.
A terminal has one line that is written anew; with --plain, --json or without a terminal it is a line now and then.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from appliance.config.runconfig import home
from appliance.system.files import new_file

FIRST_S = 2.0
"""A command that is quicker says nothing."""
EVERY_S = 10.0
ON_SCREEN_S = 1.0
MEMORY = "durations.json"
CLEAR = "\r\x1b[K"


class Progress:
    """`progress(done, of)` whenever more is done; `found` and `text` say how far it is."""

    def __init__(self, what: str, unit: str, expected_s: float | None, clock: Callable[[], float]) -> None:
        self._what, self._unit, self._expected_s, self._clock = what, unit, expected_s, clock
        self.started = clock()
        self._first: tuple[float, int] | None = None
        self._done = self._of = 0

    def __call__(self, done: int, of: int) -> None:
        """So many of so many are done."""
        self._done, self._of = done, of
        if self._first is None:
            self._first = self._clock(), done

    def found(self) -> dict[str, Any]:
        """What is known; `left_s` is None while it cannot be estimated."""
        found: dict[str, Any] = {"part": self._what, "seconds": round(self._clock() - self.started, 1)}
        if self._of:
            found |= {"done": self._done, "of": self._of}
        left = self._left_s()
        return found | {"left_s": None if left is None else round(left, 1)}

    def text(self) -> str:
        """The same as words."""
        found = self.found()
        counted = f"{self._done} of {self._of} {self._unit}, " if self._of else ""
        left = found["left_s"]
        said = "how long it takes is not known yet" if left is None else f"about {left:.0f} s left"
        if left == 0 and self._done < self._of:
            said = "longer than last time"
        return f"{self._what}: {counted}{found['seconds']:.0f} s so far, {said}"

    def _left_s(self) -> float | None:
        now = self._clock()
        if self._first is not None and self._done > self._first[1]:
            since, before = self._first
            return (now - since) / (self._done - before) * (self._of - self._done)
        return None if self._expected_s is None else max(0.0, self._expected_s - (now - self.started))


@contextmanager
def progress(
    arguments: argparse.Namespace, what: str, unit: str = "", err: TextIO | None = None, first_s: float = FIRST_S
) -> Iterator[Progress]:
    """Shows how far the body is until it ends; keeps how long it took for the next estimate."""
    out = err or sys.stderr
    on_screen = out.isatty() and not (arguments.json or arguments.plain)
    memory = home() / MEMORY
    one = Progress(what, unit, _remembered(memory).get(what), time.monotonic)
    ended = threading.Event()

    def show() -> None:
        wait = first_s
        while not ended.wait(wait):
            wait = ON_SCREEN_S if on_screen else EVERY_S
            line = json.dumps(one.found()) if arguments.json else one.text()
            out.write(f"{CLEAR}{line}" if on_screen else f"{line}\n")
            out.flush()

    thread = threading.Thread(target=show, name="progress", daemon=True)
    thread.start()
    try:
        yield one
        took = time.monotonic() - one.started
        if took > first_s:
            _remember(memory, what, took)
    finally:
        ended.set()
        thread.join()
        if on_screen:
            out.write(CLEAR)
            out.flush()


def _remembered(file: Path) -> dict[str, float]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return {str(what): float(took) for what, took in found.items()}
    except (OSError, ValueError, AttributeError, TypeError):  # absent or not ours: nothing is known
        return {}


def _remember(file: Path, what: str, took_s: float) -> None:
    """Kept where a folder of state is there already; a command that only reads makes none."""
    if file.parent.is_dir():
        with suppress(OSError), new_file(file) as draft:
            draft.write_text(json.dumps(_remembered(file) | {what: round(took_s, 1)}) + "\n", encoding="utf-8")
