"""Replay: what a step was trained on comes out of the record again, bit for bit, and a changed bit is named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from appliance.cli import main
from appliance.config.runconfig import RunConfig
from appliance.errors import StoreError
from appliance.record.retention import prune
from appliance.record.store import CallDraft, Store
from appliance.report.replay import replay
from appliance.report.transcript import calls
from appliance.train.provenance import note, verdicts
from appliance.train.step_rows import step_rows
from appliance.trees.recovery import digests
from appliance.types import Purpose, Reward, RolloutPlan, RunState, Sample, StopReason

USER = {"role": "user", "content": "please do it"}
TWO = {"role": "assistant", "content": "two"}
WORDS = [
    json.dumps({"messages": messages, "tools": [], "answer": {"role": "assistant", "content": answer}}).encode()
    for messages, answer in (([USER], "one"), ([USER], "two"), ([USER, TWO, {"role": "user", "content": "go"}], "done"))
]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    opened = Store.open(tmp_path / "record.db")
    opened.create_run("r", "demo", RunConfig().model_dump(mode="json"), 0, "test")
    return opened


def trained(store: Store, step: int, rewards: list[float]) -> None:
    """One step of one group, closed as the trainer closes it; each rollout has two calls and a retried one."""
    plans = [RolloutPlan("r", Purpose.TRAIN, step, "pi", "a", n) for n in range(len(rewards))]
    for rollout, reward in zip(store.plan(plans), rewards, strict=True):
        store.begin(rollout.id, step - 1)
        for sequence, (prompt, sampled) in enumerate([([1, 2], [9]), ([1, 2], [3, 4]), ([1, 2, 3, 4, 5], [6])]):
            ids, logprobs = np.array(sampled, np.int32), np.full(len(sampled), -0.1 * rollout.id, np.float32)
            sample = Sample(np.array(prompt, np.int32), ids, logprobs, StopReason.STOP, step - 1)
            store.add_call(
                rollout.id,
                CallDraft(sequence, "chat", b"", b"", WORDS[sequence], sample, "stop", float(sequence), sequence + 0.5),
            )
        store.grade(rollout.id, Reward(reward), "", {})
    made = step_rows(store, store.rollouts("r", Purpose.TRAIN, step), RunConfig())
    note(store, "r", step, digests(made.rows), made.verdicts)
    store.open_step("r", step)
    store.close_step("r", step, made.metrics | {"loss": 0.5}, (step, Path("gone"), "0"))


def test_a_run_replays_bit_for_bit_without_its_adapters(store: Store) -> None:
    trained(store, 1, [1.0, 0.0, 0.25])
    trained(store, 2, [1.0, 1.0])  # equal rewards: nothing was trained on
    found = replay(store, "r")
    assert (found.steps, found.rollouts, found.differences) == (2, 3, ())


def test_it_replays_after_the_words_are_pruned_since_the_verdicts_on_calls_are_kept(store: Store) -> None:
    trained(store, 1, [1.0, 0.0, 0.25])
    store.move_run("r", RunState.RUNNING)
    store.move_run("r", RunState.DONE)
    prune(store, "r", "bodies")
    assert replay(store, "r").differences == ()
    assert verdicts(store, 1)[0].left_out == "a dead leaf: the harness asked the same again in call 1"
    assert [call["left_out"][:11] for call in calls(store, 1)] == ["a dead leaf", "", ""]


def test_a_changed_grade_changes_its_whole_group(store: Store) -> None:
    trained(store, 1, [1.0, 0.0, 0.5, 0.5])
    with store.write() as db:
        db.execute("UPDATE rollouts SET reward=0.25 WHERE id=2")
    found = replay(store, "r").differences
    assert {d.rollout for d in found} == {None, 1, 2, 3, 4}
    assert "reward was 0.5 and is 0.5625" in {d.what for d in found}


def test_one_bit_of_one_logprob_is_found_and_its_rollout_named(store: Store) -> None:
    trained(store, 1, [1.0, 0.0, 0.25])
    (before,) = store.rows("SELECT id, logprobs FROM nodes WHERE rollout_id=2 AND sampled=1 ORDER BY id DESC LIMIT 1")
    changed = bytes([before["logprobs"][0] ^ 1]) + before["logprobs"][1:]
    with store.write() as db:
        db.execute("UPDATE nodes SET logprobs=? WHERE id=?", (changed, before["id"]))
    (difference,) = replay(store, "r").differences
    assert (difference.step, difference.rollout) == (1, 2) and "other loss inputs" in difference.what


def test_a_rollout_that_lost_its_grade_is_named(store: Store) -> None:
    trained(store, 1, [1.0, 0.0, 0.25])
    with store.write() as db:
        db.execute("UPDATE rollouts SET reward=NULL, state='failed' WHERE id=3")
    told = {d.rollout: d.what for d in replay(store, "r").differences if d.rollout is not None}
    assert told[3] == "was trained on, and would not be now" and set(told) == {1, 2, 3}


def test_a_step_of_an_older_corral_says_that_it_cannot_be_compared(store: Store) -> None:
    trained(store, 1, [1.0, 0.0])
    with store.write() as db:
        db.execute("DELETE FROM loss_inputs")
    (difference,) = replay(store, "r").differences
    assert "no digests" in difference.what and difference.rollout is None


def test_a_run_without_a_step_is_an_error_with_a_remedy(store: Store) -> None:
    with pytest.raises(StoreError, match="finished no training step"):
        replay(store, "r")


def test_the_commands_print_the_promised_objects(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(store, 1, [1.0, 0.0])
    monkeypatch.setenv("CORRAL_HOME", str(store.path.parent))
    assert main(["replay", "r", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"identical": True, "differences": []}
    assert main(["forks", "r", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"rollouts", "rows", "rows_per_rollout", "unexplained", "by_cause", "by_harness"}
    assert (found["rollouts"], found["unexplained"], found["by_cause"]) == (2, 0, {"retry": 2})
