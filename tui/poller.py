"""The one poller: asks the record every second, the machine where a view needs it, and hands each snapshot on.

Reading is done in threads, so a slow disk never holds up a key. `wanted` says what the view in front looks at.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from textual.app import App

from tui.machine import Machine
from tui.pages.reader import Reader
from tui.pages.snapshot import Snapshot, Wanted

POLL_S = 1.0


class Poller:
    """One for the application; `took` is given every snapshot, on the screen's thread."""

    def __init__(self, app: App[Any], home: Path, clock: Callable[[], float], took: Callable[[Snapshot], None]) -> None:
        self.wanted = Wanted()
        self.is_frozen = False
        self._app = app
        self._home = home
        self._took = took
        self._reader = Reader(home, clock)
        self._machine = Machine()
        self._wake = asyncio.Event()
        self._polling = asyncio.Lock()

    async def run(self) -> None:
        """Polls until it is cancelled."""
        while True:
            await self.once()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), POLL_S)
            self._wake.clear()

    async def once(self) -> None:
        """One look, unless the screen is frozen."""
        if self.is_frozen:
            return
        async with self._polling:
            wanted = self.wanted
            found = await asyncio.to_thread(self._reader.poll, wanted)
        if wanted.view != self.wanted.view:  # changed meanwhile: the page is not the one of the view in front
            found = replace(found, page=None)
        self._took(self._with_machine(found))

    def wake(self) -> None:
        """Looks again at once."""
        self._wake.set()

    def look_at(self, wanted: Wanted) -> None:
        """Looks at something else from now on; that ends a freeze."""
        if wanted != self.wanted:
            self.is_frozen = False
        self.wanted = wanted
        self._wake.set()

    def freeze(self) -> None:
        """Keeps the screen as it is while the record goes on, or goes on."""
        self.is_frozen = not self.is_frozen
        self._wake.set()

    def read_again(self, view: str) -> None:
        """What a view shows of the machine is read anew."""
        self._machine.forget(view)
        self._wake.set()

    @property
    def is_reading(self) -> bool:
        """Whether the view in front still waits for what it shows of the machine."""
        return self._machine.has(self.wanted.view) and self._machine.page(self.wanted.view) is None

    def close(self) -> None:
        """Closes the record."""
        self._reader.close()

    def _with_machine(self, found: Snapshot) -> Snapshot:
        """The snapshot with what was read of the machine; reading it again begins where it is due."""
        name = self.wanted.view
        if not self._machine.has(name):
            return found
        if self._machine.begin(name):
            self._app.run_worker(self._read_machine(name), group="machine")
        return replace(found, page=self._machine.page(name))

    async def _read_machine(self, name: str) -> None:
        if problem := await asyncio.to_thread(self._machine.read, name, self._home):
            self._app.notify(f"{name}: {problem}", severity="error", markup=False)
        self._wake.set()
