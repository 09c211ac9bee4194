"""The command line: what it prints, plain and as JSON, and what a slip is told. One process, no subprocess."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.cli import build_parser, main
from appliance.config.runconfig import CHECKOUT
from appliance.record.store import Store
from appliance.report.summary import summary, table, write
from appliance.types import Purpose, Reward, RolloutPlan, RunState

DEMO = str(CHECKOUT / "data" / "demo.toml")


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CORRAL_HOME", str(tmp_path))
    return tmp_path


def a_finished_run(home: Path) -> None:
    """Two held-out tasks before and after in pi, one training step, one failure."""
    store = Store.open(home / "record.db")
    store.create_run("demo-1", "demo", {"harnesses": ["pi"], "train": {"steps": 1}}, 7, "test")
    store.move_run("demo-1", RunState.RUNNING)
    store.note_tasks("pocket", [("a", "count", "held-out", "Count."), ("b", "join", "held-out", "Join.")])
    rewards = {Purpose.EVAL_BEFORE: (0.0, 0.5), Purpose.EVAL_AFTER: (1.0, 1.0), Purpose.TRAIN: (1.0, None)}
    for purpose, values in rewards.items():
        plans = [RolloutPlan("demo-1", purpose, 1, "pi", task, 0) for task in "ab"]
        for rollout, value in zip(store.plan(plans), values, strict=True):
            store.begin(rollout.id, 0)
            if value is None:
                store.fail(rollout.id, "sandbox:lost", "gone")
            else:
                store.grade(rollout.id, Reward(value), "", {})
    store.open_step("demo-1", 1)
    metrics = {"reward": 1.0, "logprob_gap": 0.001, "sampled_tokens": 100.0, "trained_tokens": 96.0}
    store.close_step("demo-1", 1, metrics, (1, home / "v1", "0" * 64))
    store.move_run("demo-1", RunState.DONE)
    store.close()


def commands_below(parser: argparse.ArgumentParser, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command that does something, as the words that name it."""
    below = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    for action in below:
        for name, sub in action.choices.items():
            yield from commands_below(sub, (*words, name))
    if words and not below:
        yield words


def test_every_command_has_help_with_an_example_that_is_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    parser = build_parser()
    found = list(commands_below(parser))
    assert {("demo",), ("train",), ("tasks", "import")} <= set(found) and len(found) > 20
    for words in found:
        with pytest.raises(SystemExit) as ended:
            parser.parse_args([*words, "--help"])
        shown = capsys.readouterr().out
        assert ended.value.code == 0 and "example: corral" in shown and "--json" in shown and "--plain" in shown, words
        for example in " ".join(shown.rpartition("example: ")[2].split()).split(" · "):
            said = shlex.split(example)
            assert said[0] == "corral" and tuple(said[1 : 1 + len(words)]) == words
            parser.parse_args(said[1:])


def test_the_closing_object_has_exactly_the_keys_that_are_promised(own_home: Path) -> None:
    a_finished_run(own_home)
    with_path = write(own_home, Store.open(own_home / "record.db", readonly=True), "demo-1")
    found = json.loads(with_path.read_text())
    promised = {"seed", "minutes_total", "minutes_training", "logprob_gap_mean", "utilisation", "harnesses"}
    assert promised <= set(found) and found["seed"] == 7
    assert found["logprob_gap_mean"] == 0.001 and found["utilisation"] == 0.96
    (entry,) = found["harnesses"]
    assert set(entry) == {
        "name", "before", "before_interval", "after", "after_interval", "gain", "gain_interval", "rollouts", "failures",
    }  # fmt: skip
    assert (entry["before"], entry["after"], entry["gain"]) == (0.0, 1.0, 1.0)
    assert entry["failures"] == {"sandbox:lost": 1} and entry["rollouts"] == 6
    assert (own_home / "runs" / "demo-1" / "curve.svg").read_text().startswith("<svg")


def test_the_table_says_what_failed_and_fits_a_terminal(own_home: Path) -> None:
    a_finished_run(own_home)
    text = table(summary(Store.open(own_home / "record.db", readonly=True), "demo-1"))
    assert "failed sandbox:lost: 1" in text and "+100.0" in text and "96.0 %" in text and "0.001000 nats" in text
    assert max(len(line) for line in text.splitlines()) <= 100


def test_status_and_report_as_json(own_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_finished_run(own_home)
    assert main(["status", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["run"], found["state"], found["graded"]) == ("demo-1", "done", 5)
    assert main(["report", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["harnesses"][0]["name"] == "pi"


def test_info_tells_the_modules_and_lines_of_each_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--json"]) == 0
    packages = json.loads(capsys.readouterr().out)["packages"]
    assert set(packages) == {
        "bench", "capture", "commands", "config", "engine", "harness", "operate", "record", "report", "runs", "sandbox",
        "system", "tasks", "train", "trees",
    }  # fmt: skip
    files = [f for f in (CHECKOUT / "appliance" / "capture").rglob("*.py") if f.name != "__init__.py"]
    assert packages["capture"]["modules"] == len(files) > 10
    listed = subprocess.run(
        ["find", "appliance/trees", "-name", "*.py", "-exec", "cat", "{}", "+"],
        cwd=CHECKOUT,
        capture_output=True,
        check=True,
    )
    assert packages["trees"]["lines"] == listed.stdout.count(b"\n")
    assert main(["info", "--plain"]) == 0
    assert f"capture {len(files)}" in capsys.readouterr().out


def test_config_show_names_value_meaning_and_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", DEMO, "--set", "train.steps=2", "--sources", "--json"]) == 0
    rows = {row["key"]: row for row in json.loads(capsys.readouterr().out)["keys"]}
    assert rows["train.steps"]["value"] == 2 and rows["train.steps"]["source"] == "command line"
    assert rows["name"]["source"] == DEMO and rows["train.clip_low"]["source"] == "default"
    assert all(row["meaning"] for row in rows.values() if row["key"] != "harnesses")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", DEMO, "--set", "train.step=1"], "did you mean 'train.steps'"),
        (["train", DEMO, "--set", "nonsense"], "not KEY=VALUE"),
        (["train", DEMO, "--set", "harnesses=pie"], "no harness 'pie'"),
        (["train", "none.toml"], "none.toml: no such file"),
        (["resume"], "there is no record yet"),
        (["stop"], "no supervisor is running"),
        (["report"], "there is no record yet"),
        (["calls", "3"], "there is no record yet"),
        (["tasks", "list", "nowhere"], "nowhere: does not exist"),
    ],
)
def test_a_slip_is_one_message_with_its_remedy(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    told = capsys.readouterr().err
    assert said in told and "remedy:" in told and "Traceback" not in told
    assert main([*arguments, "--json"]) == 1
    assert set(json.loads(capsys.readouterr().out)) == {"error", "remedy"}


def test_without_a_terminal_the_ui_says_so_instead_of_drawing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 1
    shown = capsys.readouterr()
    assert "this is no terminal" in shown.err and "corral status" in shown.err and shown.out == ""


@pytest.mark.parametrize(
    ("variables", "frames"),
    [({"SSH_CONNECTION": "a b c d"}, "15"), ({"SSH_CONNECTION": "a b c d", "TEXTUAL_FPS": "30"}, "30"), ({}, None)],
)
def test_over_ssh_the_ui_draws_fewer_frames_unless_told_how_many(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], frames: str | None
) -> None:
    for name in ("SSH_CONNECTION", "TEXTUAL_FPS"):
        monkeypatch.setenv(name, "")  # so that what the command sets is taken back
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    seen: list[str | None] = []
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("tui.app.run", lambda *_: seen.append(os.environ.get("TEXTUAL_FPS")))
    assert main([]) == 0
    assert seen == [frames]


@pytest.mark.parametrize(
    ("words", "meant"), [(["statuss"], "'status'"), (["tasks", "lnt"], "'lint'"), (["sandboxes", "prun"], "'prune'")]
)
def test_a_misspelt_word_is_told_what_it_may_have_meant(
    words: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2 and f"did you mean {meant}?" in capsys.readouterr().err


def test_a_run_that_is_done_cannot_be_resumed(own_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_finished_run(own_home)
    assert main(["resume", "demo-1"]) == 1 and "is done" in capsys.readouterr().err


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    heavy = {"torch", "transformers", "vllm", "peft", "bitsandbytes", "pandas"}
    code = "import sys, appliance.cli, appliance.runs.lifecycle, appliance.report.status, tui.app; "
    code += f"print(sorted({heavy} & set(sys.modules)))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=CHECKOUT)
    assert told.stdout.strip() == "[]"
