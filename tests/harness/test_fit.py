"""A run says before it starts that one of its harnesses cannot be told of a task's MCP servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.cli import main
from appliance.config.runconfig import CHECKOUT, home, resolve
from appliance.errors import ConfigError
from appliance.harness.fit import check_fit
from appliance.harness.harness import load_harnesses
from appliance.runs.evaluate import Asked, Policy, evaluate
from appliance.runs.lifecycle import create
from appliance.tasks.pack import Task
from tests.support.task_folders import MCP_SERVERS_TOML, TASK_TOML, make_task

HARNESSES = load_harnesses(CHECKOUT / "harnesses")


@pytest.fixture
def pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pack with a plain task for practice and a held-out one that brings servers, in a home of its own."""
    monkeypatch.setenv("CORRAL_HOME", str(tmp_path / "home"))
    make_task(tmp_path / "pack", "plain")
    make_task(tmp_path / "pack", "served", TASK_TOML.replace('"train"', '"held-out"') + MCP_SERVERS_TOML)
    return tmp_path / "pack"


def test_the_task_the_harness_and_the_way_out_are_named(pack: Path) -> None:
    served, plain = Task.from_dir(pack / "served"), Task.from_dir(pack / "plain")
    check_fit([served], [HARNESSES["codex"], HARNESSES["claude-code"]])
    check_fit([plain], HARNESSES.values())
    with pytest.raises(ConfigError) as caught:
        check_fit([plain, served], [HARNESSES["codex"], HARNESSES["pi"]])
    assert caught.value.message == (
        "task served needs the MCP server stock, notes, and harness pi cannot be told of it: "
        "its file has no [mcp] table"
    )
    assert caught.value.remedy.startswith("leave out pi (codex can), or the task, by tasks.families")


def settings(pack: Path, harness: str) -> dict[str, str]:
    return {"tasks.pack": str(pack), "harnesses": harness, "tasks.families": "greeting", "train.groups": "1"}


def test_no_run_is_made_of_a_pack_that_a_harness_cannot_take(pack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sets = [f"--set={key}={value}" for key, value in settings(pack, "pi").items()]
    assert main(["train", str(CHECKOUT / "data" / "demo.toml"), *sets]) == 1
    assert "task served needs the MCP server stock, notes, and harness pi" in capsys.readouterr().err
    assert not (home() / "record.db").exists()


def test_an_evaluation_looks_at_the_tasks_it_is_about(pack: Path) -> None:
    run_id = create(home(), resolve(None, settings(pack, "codex")))
    asked = Asked(harnesses=("codex", "pi"))
    with pytest.raises(ConfigError, match="task served needs the MCP server"):
        evaluate(home(), [Policy(run_id)], asked, lambda event: None)
