"""The configuration: file, environment and command line, and what a slip is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from appliance.config.runconfig import CHECKOUT, RunConfig, from_record, leaves, resolve, sources
from appliance.errors import ConfigError


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text("seed = 3\nharnesses = ['pi']\n[train]\nsteps = 2\ngroups = 4\n")
    return path


def test_command_line_over_environment_over_file(toml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_RUN_TRAIN__STEPS", "5")
    monkeypatch.setenv("CORRAL_RUN_TRAIN__GROUPS", "6")
    config = resolve(toml, {"train.groups": "7", "harnesses": "codex, pi"})
    assert (config.seed, config.train.steps, config.train.groups, config.harnesses) == (3, 5, 7, ("codex", "pi"))
    decided = sources(toml, {"train.groups": "7"})
    assert decided["seed"] == str(toml)
    assert decided["train.steps"] == "environment CORRAL_RUN_TRAIN__STEPS"
    assert decided["train.groups"] == "command line"
    assert decided["train.clip_low"] == "default"


@pytest.mark.parametrize(
    ("text", "message", "remedy"),
    [
        ("[train]\nlearning_rat = 1", "unknown key 'train.learning_rat'", "'train.learning_rate'"),
        ("[trian]\nsteps = 1", "unknown key 'trian'", "'train'"),
        ("[train]\nsteps = -1", "train.steps", "config show"),
        ("[train\n", "not valid TOML", "mend"),
        ("harnesses = []", "harnesses", "config show"),
    ],
)
def test_a_slip_in_the_file_is_named_with_its_remedy(tmp_path: Path, text: str, message: str, remedy: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        resolve(path)
    assert message in raised.value.message and str(path) in raised.value.message
    assert remedy in raised.value.remedy


def test_a_slip_in_the_environment_or_on_the_command_line_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"--set: unknown key 'train\.group'"):
        resolve(None, {"train.group": "4"})
    monkeypatch.setenv("CORRAL_RUN_TRAIN__STEP", "5")
    with pytest.raises(ConfigError, match=r"CORRAL_RUN_TRAIN__STEP: unknown key 'train\.step'"):
        resolve(None)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        resolve(tmp_path / "none.toml")


def test_a_recorded_configuration_ignores_the_environment(toml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = resolve(toml)
    monkeypatch.setenv("CORRAL_RUN_SEED", "9")
    assert from_record(json.loads(config.model_dump_json())) == config


def test_a_recorded_run_may_hold_keys_that_a_later_version_dropped() -> None:
    stored = json.loads(resolve(None, {"train.steps": "3"}).model_dump_json())
    stored["gone"] = 1
    stored["engine"]["gone"] = {"too": 1}
    assert from_record(stored) == resolve(None, {"train.steps": "3"})


def test_every_key_has_a_meaning() -> None:
    assert all(meaning for _, _, meaning in leaves(resolve(None)))


def test_a_misspelt_variable_and_a_list_that_is_no_json_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_RUN_SEEED", "3")
    with pytest.raises(ConfigError, match="CORRAL_RUN_SEEED: unknown key"):
        resolve(None)
    monkeypatch.delenv("CORRAL_RUN_SEEED")
    monkeypatch.setenv("CORRAL_RUN_HARNESSES", "pi")
    with pytest.raises(ConfigError) as raised:
        resolve(None)
    assert "lists are JSON" in raised.value.remedy


def test_rows_must_hold_a_whole_context() -> None:
    with pytest.raises(ConfigError, match="row_tokens must be at least"):
        resolve(None, {"train.row_tokens": "100"})


def test_choices_of_numbers_and_lists_of_numbers_are_taken_from_the_command_line() -> None:
    found = resolve(None, {"model.lora_rank": "8", "train.harness_weights": "2, 1"})
    assert found.model.lora_rank == 8 and found.train.harness_weights == (2.0, 1.0)
    assert resolve(None, {"tasks.families": "count,join"}).tasks.families == ("count", "join")
    assert resolve(CHECKOUT / "data" / "demo.toml", {"tasks.families": ""}).tasks.families == ()


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"train.harness_weights": "1,2,3"}, "one weight for each of pi, codex"),
        ({"train.overlong_soft": "9", "train.overlong_hard": "9"}, "train.overlong_hard must be above"),
        ({"train.parity_alarm": "2"}, "train.parity_alarm must not be above"),
        ({"engine.sleep": "true", "train.ahead": "1"}, "an engine that sleeps samples nothing ahead"),
    ],
)
def test_settings_that_do_not_fit_each_other_are_refused(keys: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        resolve(None, keys)


def test_a_pack_is_taken_from_data_by_its_bare_name_alone() -> None:
    def folder(pack: str) -> Path:
        return RunConfig.model_validate({"tasks": {"pack": pack}}).pack_path

    assert folder("pocket") == CHECKOUT / "data" / "pocket"
    for path in ("./pocket", "../tests", "pocket/samples", "own", "/pocket", ".", ""):
        assert folder(path) == Path(path)
