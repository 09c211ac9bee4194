"""`corral view`: what the UI's views show, as lines and as JSON, from the same readers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.cli import main
from appliance.commands.view import NAMES
from appliance.types import Purpose
from tests.support.tui_record import Builder
from tui.navigation import PLACES

ELSEWHERE = {"calls": "calls", "tree": "tree", "sandboxes": "sandboxes", "harnesses": "harness", "settings": "config"}
ELSEWHERE |= {"doctor": "doctor"}


@pytest.fixture
def builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Builder]:
    monkeypatch.setenv("CORRAL_HOME", str(tmp_path))
    made = Builder(tmp_path)
    yield made
    made.close()


def told(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["view", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_view_of_the_ui_has_a_command() -> None:
    assert set(NAMES) | set(ELSEWHERE) == {place.name for place in PLACES}


@pytest.mark.parametrize("name", NAMES)
def test_a_view_is_said_in_lines_and_as_one_object(
    builder: Builder, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    builder.run("r1")
    (rollout,) = builder.rollouts("r1", Purpose.TRAIN, 1, "count-train-00", 1)
    builder.grade(rollout, 1.0)
    builder.conversation(rollout)
    found = told(capsys, name)
    assert found["view"] == name
    assert main(["view", name, "--plain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.partition(":")[0] for line in lines} >= set(found) - {"view"} and "\x1b" not in "".join(lines)


def test_lines_are_found_by_text_and_a_log_ends_with_its_newest(
    builder: Builder, capsys: pytest.CaptureFixture[str]
) -> None:
    builder.run("r1")
    for number in range(5):
        builder.store.log("error" if number % 2 else "info", "engine", f"event {number}", "r1")
    assert [e["message"] for e in told(capsys, "log", "--limit", "2")["events"]] == ["event 3", "event 4"]
    assert [e["message"] for e in told(capsys, "log", "--find", "ERROR")["events"]] == ["event 1", "event 3"]
    assert told(capsys, "log", "--at", "1h")["events"][-1]["message"] == "event 4"


def test_what_cannot_be_shown_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CORRAL_HOME", str(tmp_path))
    assert main(["view", "runs"]) == 1
    assert "there is no record" in capsys.readouterr().err
    made = Builder(tmp_path)
    made.run("r1")
    made.close()
    assert main(["view", "log", "other"]) == 1
    assert "run other is not on the record" in capsys.readouterr().err
    assert main(["view", "log", "--at", "soon"]) == 1
    assert "--at soon: no time" in capsys.readouterr().err
