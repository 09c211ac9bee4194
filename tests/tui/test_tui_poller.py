"""The poller and a user who is quicker than it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

from tests.support.tui_record import a_busy_record
from tui.app import CorralApp
from tui.pages.snapshot import Snapshot
from tui.poller import Poller


def test_a_page_that_was_read_for_another_view_is_not_drawn_in_this_one(tmp_path: Path) -> None:
    a_busy_record(tmp_path).close()
    taken: list[Snapshot] = []
    goes_on_to = ""

    def clock() -> float:
        """Read once a look, in the middle of it: the moment at which the user presses a key."""
        if goes_on_to:
            poller.wanted = replace(poller.wanted, view=goes_on_to)
        return time.time()

    poller = Poller(CorralApp(tmp_path), tmp_path, clock, taken.append)
    poller.wanted = replace(poller.wanted, view="tasks")
    asyncio.run(poller.once())
    goes_on_to = "checkpoints"
    asyncio.run(poller.once())
    goes_on_to = ""
    asyncio.run(poller.once())
    poller.close()
    assert [type(snapshot.page).__name__ for snapshot in taken] == ["TasksPage", "NoneType", "CheckpointsPage"]
