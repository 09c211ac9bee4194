"""What goes wrong around the terminal UI: a locked record, a supervisor that dies, a run that goes, a tiny terminal."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from textual.pilot import Pilot

from appliance.types import Purpose, RunState
from tests.support.tui_drive import drive, press, session, shown
from tests.support.tui_record import Builder
from tui.app import CorralApp
from tui.pages.reader import Reader
from tui.pages.snapshot import Wanted


@pytest.fixture
def builder(tmp_path: Path) -> Iterator[Builder]:
    made = Builder(tmp_path)
    yield made
    made.close()


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Another program holds the whole record."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA locking_mode=EXCLUSIVE")
    db.execute("BEGIN EXCLUSIVE")
    db.execute("UPDATE runs SET message='held'")
    try:
        yield
    finally:
        db.execute("ROLLBACK")
        db.close()


@contextmanager
def attended(builder: Builder, run: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of its own that the lock names as the run's supervisor."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    lock = {"pid": process.pid, "run": run, "started_at": time.time()}
    (builder.home / "supervisor.lock").write_text(json.dumps(lock))
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_record_that_is_locked_from_the_start_is_explained_and_read_when_it_is_free(builder: Builder) -> None:
    builder.run("r1")
    builder.close()
    reader = Reader(builder.home)
    try:
        with held(builder.home / "record.db"):
            locked = reader.poll(Wanted())
        free = reader.poll(Wanted())
    finally:
        reader.close()
    assert locked.problem and "another process has held the record" in locked.problem[0]
    assert "corral status" in locked.problem[1]
    assert free.problem is None and [run.id for run in free.runs] == ["r1"]


@pytest.mark.slow
def test_a_record_that_is_locked_while_looking_stays_on_screen_and_is_said_to_be_locked(builder: Builder) -> None:
    builder.run("r1", "the-run")
    builder.close()
    path = builder.home / "record.db"
    with sqlite3.connect(path) as db:  # where readers and a writer shut each other out
        assert db.execute("PRAGMA journal_mode=DELETE").fetchone() == ("delete",)
    db.close()
    app, screens = CorralApp(builder.home), []

    async def look(pilot: Pilot[None]) -> None:
        await press(pilot, "")
        with held(path):
            await press(pilot, "2 1")
            screens.append(shown(app))
        await press(pilot, "2 1")
        screens.append(shown(app))

    session(app, look)
    assert "record locked" in screens[0] and "the-run" in screens[0]
    assert "record locked" not in screens[1] and "the-run" in screens[1]


@pytest.mark.slow
def test_a_supervisor_that_dies_while_looking_is_said_to_be_gone_and_y_starts_another(builder: Builder) -> None:
    builder.hopeless_run("r1")
    app, screens = CorralApp(builder.home), []

    async def look(pilot: Pilot[None]) -> None:
        with attended(builder, "r1") as supervisor:
            await press(pilot, "2")
            screens.append(shown(app))
            supervisor.kill()
            supervisor.wait()
            await press(pilot, "")
            await press(pilot, "")
            screens.append(shown(app))
        await press(pilot, "y")
        screens.append(shown(app))

    session(app, look)
    assert "gone" not in screens[0]
    assert "The supervisor is gone" in screens[1] and "Start a supervisor" in screens[1]
    assert "going on with r1" in screens[2]
    assert "no-such-pack" in builder.ended("r1")  # a supervisor has really started


@pytest.mark.slow
def test_who_may_only_look_is_told_that_the_supervisor_is_gone_and_offered_nothing(builder: Builder) -> None:
    builder.run("r1")
    app, screens = CorralApp(builder.home, readonly=True), []

    async def look(pilot: Pilot[None]) -> None:
        with attended(builder, "r1"):
            await press(pilot, "")
        await press(pilot, "")
        screens.append(shown(app))

    session(app, look)
    assert "is gone" in screens[0] and "y yes" not in screens[0] and "! lost" in screens[0]


@pytest.mark.slow
def test_a_rollout_whose_run_is_deleted_while_its_calls_are_shown_gives_way(builder: Builder) -> None:
    builder.run("r1")
    (rollout,) = builder.rollouts("r1", Purpose.TRAIN, 1, "count-1", 1)
    builder.begin(rollout)
    builder.conversation(rollout)
    builder.store.move_run("r1", RunState.STOPPED)
    app, screens = CorralApp(builder.home), []

    async def look(pilot: Pilot[None]) -> None:
        from appliance.record.retention import prune

        await press(pilot, "2 enter")
        screens.append(shown(app))
        prune(builder.store, "r1", "all")
        await press(pilot, "")
        screens.append(shown(app))

    session(app, look)
    assert "Count the lines" in screens[0]
    assert "Count the lines" not in screens[1] and "Nothing has been trained here yet" in screens[1]


@pytest.mark.slow
@pytest.mark.parametrize("size", [(1, 1), (10, 3), (24, 6)])
def test_a_terminal_too_small_to_read_breaks_nothing(builder: Builder, size: tuple[int, int]) -> None:
    builder.run("r1")
    steps = ("1", "2", "3", "7", "8", "colon escape", "question_mark escape", "n escape")
    for screen in drive(CorralApp(builder.home), *steps, size=size):
        assert len(screen.split("\n")) == size[1]


@pytest.mark.slow
def test_without_colours_states_are_still_told_apart(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    builder.run("r1")
    builder.run("r2", state=RunState.STOPPED)
    builder.run("r3", state=RunState.FAILED)
    (screen,) = drive(CorralApp(builder.home))
    assert "! lost" in screen and "■ stopped" in screen and "✗ failed" in screen
