"""Rewards: what counts as one, and the cause recorded for everything else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance.errors import GraderError
from appliance.tasks.reward import MAX_REWARD_BYTES, read_reward
from appliance.types import Reward


def cause(folder: Path) -> str:
    """The cause under which the reward in `folder` is refused."""
    with pytest.raises(GraderError) as caught:
        read_reward(folder)
    return caught.value.cause


def test_a_json_reward_comes_with_its_parts(tmp_path: Path) -> None:
    (tmp_path / "reward.json").write_text('{"reward": 0.5, "parts": {"value": 1, "rest": 0.0}}')
    assert read_reward(tmp_path) == Reward(0.5, {"value": 1.0, "rest": 0.0})


def test_harbors_flat_numbers_are_parts_too(tmp_path: Path) -> None:
    (tmp_path / "reward.json").write_text('{"reward": 1, "style": 0.25}')
    assert read_reward(tmp_path) == Reward(1.0, {"style": 0.25})


@pytest.mark.parametrize(("text", "value"), [("1", 1.0), ("0.25\n", 0.25), (" .5 ", 0.5), ("5e-1", 0.5), ("0", 0.0)])
def test_a_text_reward_is_one_number(tmp_path: Path, text: str, value: float) -> None:
    (tmp_path / "reward.txt").write_text(text)
    assert read_reward(tmp_path) == Reward(value)


def test_json_is_read_before_text(tmp_path: Path) -> None:
    (tmp_path / "reward.txt").write_text("1")
    (tmp_path / "reward.json").write_text('{"reward": 0}')
    assert read_reward(tmp_path).value == 0.0


def test_broken_json_does_not_fall_back_to_text(tmp_path: Path) -> None:
    (tmp_path / "reward.txt").write_text("1")
    (tmp_path / "reward.json").write_text("{")
    assert cause(tmp_path) == "bad_reward"


def test_nothing_written_is_no_reward_and_never_zero(tmp_path: Path) -> None:
    assert cause(tmp_path) == "no_reward"
    assert cause(tmp_path / "never-made") == "no_reward"


def test_minus_zero_is_zero(tmp_path: Path) -> None:
    (tmp_path / "reward.txt").write_text("-0.0")
    assert str(read_reward(tmp_path).value) == "0.0"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nan",
        "inf",
        "1e999",
        "1.01",
        "-0.1",
        "0,5",
        "1 1",
        "one",
        "1_0e-1",
        "0x1",
        "\u0661",
        "+-1",
        "1" * 70_000,
    ],
)
def test_a_text_that_is_no_number_in_the_unit_interval_is_bad(tmp_path: Path, text: str) -> None:
    (tmp_path / "reward.txt").write_text(text)
    assert cause(tmp_path) == "bad_reward"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "[]",
        "null",
        "{}",
        '{"parts": {}}',
        '{"reward": null}',
        '{"reward": true}',
        '{"reward": "1"}',
        '{"reward": [1]}',
        '{"reward": NaN}',
        '{"reward": Infinity}',
        '{"reward": 1e999}',
        '{"reward": 1' + "0" * 400 + "}",
        '{"reward": 1' + "0" * 5000 + "}",
        '{"reward": 2}',
        '{"reward": -0.5}',
        '{"reward": 1, "reward": 0}',
        '{"reward": 1, "parts": [1]}',
        '{"reward": 1, "parts": {"a": "b"}}',
        '{"reward": 1, "parts": {"a": NaN}}',
        '{"reward": 1, "parts": {"a": 1}, "a": 0}',
        '{"reward": 1, "note": "fine"}',
        '{"reward": 1, "parts": {"a": 1}, "weights": {"a": 1}}',
        '{"a": 1.5}',
        '{"weights": {"a": 1}}',
        '{"a": 1, "weights": [1]}',
        '{"a": 1, "b": 0, "weights": {"a": 1}}',
        '{"a": 1, "weights": {"a": 1, "b": 1}}',
        '{"a": 1, "b": 0, "weights": {"a": 2, "b": -1}}',
        '{"a": 1, "weights": {"a": 0}}',
        '{"a": 1, "b": 1, "weights": {"a": 1e308, "b": 1e308}}',
        '{"reward": ' + "[" * 30_000,
    ],
)
def test_json_that_is_no_reward_is_bad(tmp_path: Path, text: str) -> None:
    (tmp_path / "reward.json").write_text(text)
    assert cause(tmp_path) == "bad_reward"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(data=st.binary(max_size=200), name=st.sampled_from(["reward.json", "reward.txt"]))
def test_any_bytes_give_a_reward_in_the_unit_interval_or_bad_reward(tmp_path: Path, data: bytes, name: str) -> None:
    for old in tmp_path.iterdir():
        old.unlink()
    (tmp_path / name).write_bytes(data)
    try:
        assert 0.0 <= read_reward(tmp_path).value <= 1.0
    except GraderError as error:
        assert error.cause == "bad_reward"


@pytest.mark.parametrize("name", ["reward.json", "reward.txt"])
def test_a_link_is_not_followed(tmp_path: Path, name: str) -> None:
    (tmp_path / "elsewhere").write_text("1")
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / name).symlink_to(tmp_path / "elsewhere")
    assert cause(logs) == "bad_reward"


def test_a_pipe_does_not_hang_the_reader_and_a_folder_is_no_reward(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "reward.json")
    assert cause(tmp_path) == "bad_reward"
    (tmp_path / "reward.json").unlink()
    (tmp_path / "reward.json").mkdir()
    assert cause(tmp_path) == "bad_reward"


def test_a_huge_file_is_bad_without_being_read_whole(tmp_path: Path) -> None:
    with (tmp_path / "reward.json").open("wb") as file:
        file.truncate(10 * 1024**3)  # sparse: costs no disk
    with pytest.raises(GraderError, match=f"larger than {MAX_REWARD_BYTES}"):
        read_reward(tmp_path)


def test_the_graders_words_are_quoted_short_and_without_control_characters(tmp_path: Path) -> None:
    (tmp_path / "reward.json").write_text('{"reward": 1, "\\u001b[31m' + "k" * 500 + '": "x"}')
    with pytest.raises(GraderError) as caught:
        read_reward(tmp_path)
    assert "\x1b" not in caught.value.message and len(caught.value.message) < 200


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1, "b": 0, "c": 0.5}', 0.5),  # (1 + 0 + 0.5) / 3
        ('{"parts": {"a": 1, "b": 0.2}, "weights": {"a": 3, "b": 1}}', 0.8),  # (3 · 1 + 1 · 0.2) / 4
        ('{"parts": {"a": 1}, "b": 0, "weights": {"a": 0, "b": 2}}', 0.0),
        ('{"a": 1, "b": 1, "c": 1, "weights": {"a": 0.1, "b": 0.1, "c": 0.1}}', 1.0),
    ],
)
def test_named_parts_without_a_reward_are_their_weighted_mean(tmp_path: Path, text: str, value: float) -> None:
    (tmp_path / "reward.json").write_text(text)
    reward = read_reward(tmp_path)
    assert reward.value == pytest.approx(value) and set(reward.parts) == {"a", "b", "c"} & set(text)
