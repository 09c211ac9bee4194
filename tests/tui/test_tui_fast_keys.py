"""Keys that come faster than the screen is drawn, in a real terminal: each goes where its writer meant it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.tmux_drive import plain_environment, terminal
from tests.support.tui_record import a_busy_record

UI = [sys.executable, "-m", "appliance.cli"]


@pytest.mark.slow
def test_a_filter_and_an_opened_row_typed_in_one_moment_do_nothing_else(tmp_path: Path) -> None:
    """`/` and `s` at once asked to stop the run; the second Enter at once went to the filter again."""
    a_busy_record(tmp_path)
    with terminal(tmp_path, UI, (100, 40), plain_environment(tmp_path, tmp_path)) as wide:
        wide.until("demo-1a2b")
        for _ in range(3):
            wide.keys("2")
            wide.until("2 Rollouts")
            wide.keys("/", "s", "t", "e", "p", "Enter", "Enter")
            screen = wide.until(lambda screen: "── user ──" in screen or "Stop this run?" in screen)
            assert "5 Calls" in screen
