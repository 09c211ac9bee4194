"""The life of a small real run, driven by keys in a real terminal: started, watched, paused, stopped, left, resumed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from appliance.config.runconfig import home as own_home
from appliance.config.runconfig import podman_home
from appliance.record.lock import supervisor_of
from tests.support.tmux_drive import Terminal, plain_environment, terminal

PHASE_S = 420.0
"""How long anything real may take on a machine that is busy with other things."""
SMALL = """
name = "small"
harnesses = ["pi"]
model.lora_rank = 16
coldstart.rollouts = 2
coldstart.steps = 20
train.steps = 50
train.groups = 1
train.group_size = 4
rollout.parallel = 2
rollout.timeout_s = 240
rollout.grade_timeout_s = 120
evaluation.enabled = false
"""
UI = [sys.executable, "-m", "appliance.cli"]


EVENT = re.compile(r"\d\d:\d\d:\d\d +\S+ +\w+ +(supervisor|coldstart|engine|trainer) ")
"""A line of the log. Whose it is depends on the moment: where steps are short, the supervisor says nothing of them."""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder for the record; a supervisor that still works there when the test has ended is ended."""
    (tmp_path / "small.toml").write_text(SMALL)
    yield tmp_path
    if holder := supervisor_of(tmp_path):
        supervisor = psutil.Process(int(holder["pid"]))
        supervisor.terminate()  # drains
        try:
            supervisor.wait(60)
        except psutil.TimeoutExpired:
            supervisor.kill()  # its guards end what is below it


def status(place: Path) -> dict[str, Any]:
    """What another shell says of the run."""
    told = subprocess.run(
        [*UI, "status", "--json"], env=os.environ | variables(place), capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(told.stdout)
    return found


def variables(place: Path) -> dict[str, str]:
    return plain_environment(place, podman_home(own_home()))


def choose(at: Terminal, name: str) -> None:
    """Does or opens something by its name in the palette."""
    at.keys(":")
    at.until("Go to, or do")
    at.text(name)
    at.until(lambda screen: f"▸ {name} " in next(iter(re.findall(r".*[▸→].*", screen)), ""))  # the first one found
    at.keys("Enter")


def until_status(place: Path, **wanted: object) -> dict[str, Any]:
    """The status once it says this."""
    until = time.monotonic() + PHASE_S
    while True:
        found = status(place)
        if all(found.get(key) == value for key, value in wanted.items()):
            return found
        assert time.monotonic() < until, (wanted, found)
        time.sleep(0.5)


@pytest.mark.slow
@pytest.mark.real
def test_a_runs_whole_life_is_driven_by_keys_in_a_terminal(place: Path) -> None:
    with terminal(place, UI, (80, 24), variables(place)) as small:
        small.until("Nothing has been trained here yet")
        choose(small, "start")
        small.until("TOML of the run")
        small.keys("C-u")  # Textual does this after letters that come in the same moment
        small.until(lambda screen: "data/demo.toml" not in screen)
        small.text(str(place / "small.toml"))
        small.until("small.toml")
        small.keys("Enter")
        small.until(lambda screen: "● running" in screen and "small-" in screen, PHASE_S)
        small.keys("2")
        small.until(lambda screen: "2 Rollouts" in screen and "✓ graded" in screen, PHASE_S)
        small.keys("4")
        small.until(lambda screen: "4 Log" in screen and EVENT.search(screen) is not None)
        small.keys("q")  # leaves; the run goes on
        small.until(lambda _: small.has_ended)
    assert supervisor_of(place) and status(place)["state"] == "running"

    with terminal(place, UI, (100, 60), variables(place)) as wide:
        wide.until("small-")
        open_a_tree(wide)
        for key, title in (("1", "Runs"), ("3", "Curve"), ("7", "Rewards"), ("8", "Hardware"), ("9", "Sandboxes")):
            wide.keys(key)
            wide.until(f"{key} {title}")
        wide.keys("4")
        choose(wide, "pause")
        wide.until("paused: no new rollouts", PHASE_S)
        choose(wide, "unpause")
        wide.until("going on after a pause", PHASE_S)
        wide.keys("s")
        wide.until("Stop this run?", PHASE_S)
        wide.keys("y")
        wide.until("stopped", PHASE_S)
        until_status(place, state="stopped")
        wide.keys("1")
        wide.until("1 Runs")
        wide.keys("r")
        wide.until("● running", PHASE_S)
        until_status(place, state="running")
        choose(wide, "stop now")
        wide.until("End this run at once?", PHASE_S)
        wide.keys("y")
        wide.until("■ stopped", PHASE_S)
    assert until_status(place, state="stopped")["graded"] > 0


def open_a_tree(wide: Terminal) -> None:
    """From the rollouts to the tree of one that was trained on: a teacher's has no tokens."""
    wide.keys("2")
    wide.until("2 Rollouts")
    wide.keys("/")
    wide.until("filter: words")
    wide.text("step 1")
    wide.until(lambda screen: "step 1 " in screen and " pi " in screen, PHASE_S)
    wide.keys("Enter")
    wide.until("⏎ Calls")
    wide.keys("Enter")  # one that is under way may still have said nothing
    wide.until(lambda screen: "5 Calls" in screen and "── user ──" in screen, PHASE_S)
    wide.keys("6")
    wide.until(lambda screen: "6 Tree" in screen and "prompt tokens" in screen)
