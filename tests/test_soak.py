"""The soak's short forms: a few random kills, and whether what it counts would show a loss."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.record.store import Store
from appliance.types import Purpose, Reward, RolloutPlan
from tests.soak import volleys
from tests.soak.chaos import Chaos, drill, is_clean

KEYS = {"kills", "by_process", "calls_lost", "graded_twice", "left_behind", "replay_identical"}


def test_a_grade_that_is_made_again_is_counted(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "record.db")
    store.create_run("r", "r", {}, 0, "")
    first, second = store.plan([RolloutPlan("r", Purpose.SINGLE, 0, "h", task, 0) for task in "ab"])
    for rollout in (first, second):
        store.begin(rollout.id, 0)
        store.grade(rollout.id, Reward(1.0), "", {})
    chaos = Chaos(tmp_path, "scripted", 0)
    chaos.note()
    assert chaos.graded == {first.id: (1, 1.0), second.id: (1, 1.0)} and not chaos.repeated
    with store.write() as db:
        db.execute("UPDATE rollouts SET attempt=2 WHERE id=?", (first.id,))
    chaos.note()
    assert chaos.repeated == {first.id}
    store.close()


@pytest.mark.real
@pytest.mark.slow
def test_I8_random_kills_lose_repeat_and_leave_nothing(tmp_path: Path) -> None:
    """Eight kills over supervisor, Podman service and monitors; `python tests/soak/chaos.py` is the long form."""
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(parent.stat().st_mode | 0o055)
    found = drill(tmp_path / "soak", kills=8, seed=0)
    assert found.keys() >= KEYS and found["kills"] == 8
    assert is_clean(found), found
    # a rollout that was hit more often than it may be tried again has failed, with a name
    assert set(found["rollouts"]) <= {"graded", "failed"} and found["rollouts"]["graded"] > 0, found
    assert (tmp_path / "soak" / "chaos.json").exists()


@pytest.mark.real
@pytest.mark.slow
def test_I8_kills_of_all_five_kinds_of_process_lose_repeat_and_leave_nothing(tmp_path: Path) -> None:
    """Ten kills in training runs, one volley or two; `python -m tests.soak.volleys` is the long form, in parts."""
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(parent.stat().st_mode | 0o055)
    found = volleys.drill(tmp_path / "soak", kills=10, seed=0, most_s=float("inf"), steps=2)
    assert found is not None and is_clean(found), found
    assert found["by_process"] == {"conmon": 4, "engine": 1, "service": 3, "supervisor": 1, "trainer": 1}
    assert found["replay_identical"] is True and found["steps_replayed"] >= 2, found


def test_a_drill_in_parts_goes_on_where_it_was(tmp_path: Path) -> None:
    first = volleys.Volleys(Chaos(tmp_path, "train", 0, batches=2), kills=40)
    first.chaos.by_process.update({"engine": 3, "conmon": 16})
    first.chaos.graded, first.chaos.calls = {7: (1, 0.5)}, {9: "digest"}
    first.chaos.seen.add((123, 4.5))
    first.left.append("a process")
    first.save()
    second = volleys.Volleys(Chaos(tmp_path, "train", 0), kills=40)
    second.load()
    assert (second.chaos.graded, second.chaos.calls) == (first.chaos.graded, first.chaos.calls)
    assert (second.chaos.batches, second.chaos.seen, second.left) == (2, {(123, 4.5)}, ["a process"])
    assert sorted(second.missing()) == ["engine"] + ["service"] * 12 + ["supervisor"] * 4 + ["trainer"] * 4
