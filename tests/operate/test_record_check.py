"""`corral db check`: a sound record passes; whatever breaks an invariant is named with its id."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from appliance.cli import main
from appliance.errors import StoreError
from appliance.operate.record_check import Findings, check, check_text
from appliance.record.store import CallDraft, Store
from appliance.types import Purpose, Reward, RolloutPlan, RunState, Sample, StopReason


def a_draft(sequence: int, prompt: list[int], sampled: list[int]) -> CallDraft:
    logprobs = np.full(len(sampled), -0.5, np.float32)
    sample = Sample(np.array(prompt, np.int32), np.array(sampled, np.int32), logprobs, StopReason.STOP, 1)
    body = json.dumps({"messages": [prompt]}).encode()
    return CallDraft(sequence, "chat", body, b"{}", b"{}", sample, "stop", 10.0 + sequence, 11.0 + sequence)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Two rollouts: one of two calls that continue and one that forks; one failed."""
    opened = Store.open(tmp_path / "record.db")
    opened.create_run("r1", "demo", {}, 0, "test")
    opened.move_run("r1", RunState.RUNNING)
    (tmp_path / "v1").mkdir()
    for rollout in opened.plan([RolloutPlan("r1", Purpose.TRAIN, 1, "pi", "t", n) for n in range(2)]):
        opened.begin(rollout.id, 1)
    opened.add_call(1, a_draft(0, [1, 2, 3], [4, 5]))
    opened.add_call(1, a_draft(1, [1, 2, 3, 4, 5, 6], [7]))
    opened.add_call(1, a_draft(2, [1, 2, 9], [8, 8]))
    opened.grade(1, Reward(1.0), "", {})
    opened.fail(2, "harness:timeout", "60 s")
    opened.open_step("r1", 1)
    opened.close_step("r1", 1, {}, (1, tmp_path / "v1", "0" * 64))
    return opened


def test_a_sound_record_passes_and_says_what_was_checked(store: Store) -> None:
    found = check(store).as_json()
    assert found["sound"] and found["file"]["broken"] == []
    assert {name: part["checked"] for name, part in found["invariants"].items()} == {
        "I1": 3, "I2": 6, "I3": 3, "I4": 3, "I5": 2, "I6": 4, "I7": 1, "I8": 2, "I9": 3, "I10": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("broken", "invariant", "names"),
    [
        ("UPDATE nodes SET logprobs=X'0000' WHERE id=2", "I1", "node 2: 8 bytes of ids with 2 of logprobs"),
        ("UPDATE nodes SET ids=X'FFFFFFFF' WHERE id=1", "I1", "node 1: token id -1 is outside the vocabulary"),
        ("UPDATE nodes SET logprobs=X'0000803F00008040' WHERE id=2", "I1", "node 2: a logprob that is no logarithm"),
        ("UPDATE calls SET num_sampled_tokens=3 WHERE id=2", "I1", "call 2: 3 sampled tokens, 1 recorded"),
        ("UPDATE calls SET leaf=NULL WHERE id=2", "I1", "call 2: 1 sampled tokens without their ids"),
        ("UPDATE calls SET stop_reason='x' WHERE id=2", "I1", "call 2: stop reason 'x'"),
        ("UPDATE bodies SET data=X'00' WHERE call_id=3", "I1", "rollout 1: call 3: its bodies are damaged"),
        ("DELETE FROM bodies WHERE call_id=3", "I1", "call 3: its raw request is missing"),
        ("UPDATE bodies SET base=3 WHERE call_id=2", "I1", "bodies build on each other in a circle"),
        ("UPDATE calls SET num_prompt_tokens=5 WHERE id=2", "I2", "call 2: 5 prompt tokens, 6 recorded"),
        ("UPDATE nodes SET start=99 WHERE id=4", "I2", "node 4: begins at token 99 of a path of 6"),
        ("UPDATE calls SET ended_at=0 WHERE id=3", "I3", "call 3: without an end"),
        ("UPDATE nodes SET parent=5 WHERE id=3", "I4", "node 3: its parent 5 is not older (a cycle)"),
        ("UPDATE rollouts SET reward=NULL WHERE id=1", "I5", "rollout 1: graded with reward None"),
        ("UPDATE rollouts SET reward=0.5 WHERE id=2", "I5", "rollout 2: failed with reward 0.5"),
        ("UPDATE rollouts SET failure='' WHERE id=2", "I5", "rollout 2: failed without a named cause"),
        ("UPDATE calls SET policy_version=NULL WHERE id=1", "I6", "call 1: no policy version was stamped"),
        ("UPDATE versions SET path='/gone/v1'", "I6", "version 1 of run r1: its adapter folder /gone/v1 is missing"),
        ("UPDATE versions SET parent=1", "I6", "version 1 of run r1: its parent 1 is not older (a cycle)"),
        ("DELETE FROM versions", "I7", "step 1 of run r1: taken, but the version it made is missing"),
        ("INSERT INTO loss_inputs VALUES('r1', 1, 2, 'x')", "I7", "rollout 2: trained in step 1 without a grade"),
        ("UPDATE rollouts SET state='running', reward=NULL", "I8", "rollout 1: still running though run r1 is done"),
        ("UPDATE nodes SET rollout_id=2 WHERE id=1", "I9", "its parent 1 is under rollout 2"),
        ("UPDATE rollouts SET num_calls=9 WHERE id=1", "I1", "rollout 1: counts 9 calls"),
        (
            "UPDATE calls SET lineage='{\"agent\":\"a\",\"parent\":\"b\"}' WHERE id=1;"
            "UPDATE calls SET lineage='{\"agent\":\"b\",\"parent\":\"a\"}' WHERE id=2",
            "I4",
            "rollout 1: agent 'a' is its own ancestor (a cycle in the lineage)",
        ),
    ],
)  # fmt: skip
def test_what_breaks_an_invariant_is_named(store: Store, broken: str, invariant: str, names: str) -> None:
    if "I8" in invariant:
        store.move_run("r1", RunState.DONE)
    with store.write() as db:
        for statement in broken.split(";"):
            db.execute(statement)
    found = check(store)
    assert not found.is_sound
    assert any(names in what for what in found.broken[invariant]), found.broken


def test_ids_beyond_the_models_vocabulary_are_named(store: Store) -> None:
    base = store.path.parent / "runs" / "r1" / "model" / "base"
    base.mkdir(parents=True)
    (base / "config.json").write_text('{"vocab_size": 9}')
    assert check(store).broken["I1"] == ["node 5: token id 9 is outside the vocabulary of 9"]


def test_missing_references_are_named_as_damage_of_the_file(store: Store) -> None:
    store.rows("PRAGMA foreign_keys=OFF")
    with store.write() as db:
        db.execute("DELETE FROM runs")
    assert any("what it refers to in runs is missing" in what for what in check(store).broken["file"])


def test_a_record_cut_by_a_power_failure_is_read_as_far_as_it_goes(store: Store) -> None:
    store.log("info", "test", "x" * 200_000, "r1")
    store.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    store.close()
    whole = store.path.read_bytes()
    store.path.write_bytes(whole[: len(whole) - 100_000])
    with pytest.raises(StoreError, match="the record is damaged") as error:
        Store.open(store.path, readonly=True)
    assert "corral db check" in error.value.remedy
    cut = Store.open(store.path, readonly=True, damaged=True)
    found = check(cut)
    assert found.broken["file"] and cut.rollouts("r1")[0].reward == 1.0
    cut.close()


def test_a_file_that_gives_no_rows_is_told_from_one_that_has_none(store: Store, tmp_path: Path) -> None:
    damaged = Findings()
    damaged.fail("file", "malformed")
    assert "I4    nothing of it could be read" in check_text(damaged)
    told = check_text(check(Store.open(tmp_path / "new.db")))
    assert "I4    nothing to check" in told and "I10   a record holds no trace of it" in told


def test_a_journal_cut_in_the_middle_loses_only_the_newest_transactions(store: Store, tmp_path: Path) -> None:
    store.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    for n in range(20):
        store.log("info", "test", f"event {n}", "r1")
    journal = Path(f"{store.path}-wal").read_bytes()
    (tmp_path / "cut").mkdir()
    copy = tmp_path / "cut" / "record.db"
    copy.write_bytes(store.path.read_bytes())
    Path(f"{copy}-wal").write_bytes(journal[: len(journal) // 2])
    after = Store.open(copy)
    seen = [event["message"] for event in after.events("r1")]
    assert 0 < len(seen) < 20 and seen == [f"event {n}" for n in range(len(seen))]
    assert check(after).broken["file"] == [] and len(after.calls(1)) == 3


def test_the_command_prints_the_promised_object_and_fails_for_a_broken_record(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CORRAL_HOME", str(store.path.parent))
    assert main(["db", "check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["invariants"]["I1"] == {"checked": 3, "broken": []}
    with store.write() as db:
        db.execute("UPDATE calls SET ended_at=0 WHERE id=3")
    assert main(["db", "check"]) == 1
    assert "call 3: without an end" in capsys.readouterr().out
