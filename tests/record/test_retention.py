"""Retention by run: what is taken out, what stays, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from appliance.cli import main
from appliance.config.sections import RecordSection
from appliance.errors import StoreError
from appliance.operate.record_check import check
from appliance.record.lock import lock
from appliance.record.retention import apply_rule, prune, vacuum
from appliance.record.store import CallDraft, Store
from appliance.report.transcript import calls, calls_text
from appliance.types import Purpose, Reward, RolloutPlan, RunState, Sample, StopReason


def a_run(store: Store, run_id: str, state: RunState = RunState.DONE, rollouts: int = 3) -> None:
    store.create_run(run_id, "demo", {}, 0, "test")
    store.move_run(run_id, RunState.RUNNING)
    for rollout in store.plan([RolloutPlan(run_id, Purpose.TRAIN, 1, "pi", "t", n) for n in range(rollouts)]):
        store.begin(rollout.id, 1)
        ids = np.arange(5, dtype=np.int32)
        sample = Sample(ids, ids[:2], np.full(2, -0.5, np.float32), StopReason.STOP, 1)
        for n in range(2):
            body = json.dumps({"run": run_id, "n": n, "text": "x" * 3000}).encode()
            store.add_call(rollout.id, CallDraft(n, "chat", body, body, b"{}", sample, "stop", 1.0, 2.0))
        store.grade(rollout.id, Reward(1.0), "", {})
    store.log("info", "test", "hello", run_id)
    store.begin_phase(run_id, "train")
    if state is not RunState.RUNNING:
        store.move_run(run_id, state)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    opened = Store.open(tmp_path / "record.db")
    a_run(opened, "old")
    a_run(opened, "new")
    return opened


def test_bodies_go_and_tokens_rewards_and_the_other_run_stay(store: Store) -> None:
    assert prune(store, "old", "bodies") == {"run": "old", "pruned": "bodies", "calls": 6}
    first = store.calls(1)[0]
    assert first.request_bytes == b"" and first.sample is not None and first.sample.sampled_ids.tolist() == [0, 1]
    assert store.rollouts("old")[0].reward == 1.0
    assert store.calls(4)[1].request_bytes.startswith(b'{"run": "new"')
    assert check(store).is_sound
    assert "bodies were pruned" in calls_text(calls(store, 1))


def test_a_whole_run_goes_and_nothing_else(store: Store) -> None:
    prune(store, "old", "all")
    assert [run.id for run in store.runs()] == ["new"]
    for table in ("rollouts", "calls", "nodes", "bodies", "frames", "events", "phases"):
        (left,) = store.rows(f"SELECT count(*) n FROM {table}")
        assert left["n"] == {"rollouts": 3, "calls": 6, "nodes": 9, "bodies": 6}.get(table, 1)
    assert check(store).is_sound


def test_a_run_that_may_go_on_is_not_pruned(store: Store) -> None:
    a_run(store, "live", RunState.RUNNING)
    with pytest.raises(StoreError, match="only what has ended is pruned") as refused:
        prune(store, "live", "bodies")
    assert "corral resume live" in refused.value.remedy  # `corral stop` alone would find nobody to stop
    with lock(store.path.parent, "old"), pytest.raises(StoreError, match="only what has ended"):
        prune(store, "old", "bodies")


def test_a_run_that_was_only_created_is_pruned_when_nobody_works(store: Store) -> None:
    store.create_run("tried", "demo", {}, 0, "test")
    with lock(store.path.parent, "new"), pytest.raises(StoreError, match="tried is created"):
        prune(store, "tried", "all")
    assert prune(store, "tried", "all")["calls"] == 0
    assert {run.id for run in store.runs()} == {"old", "new"}


def test_the_rule_of_the_configuration_prunes_by_age(store: Store) -> None:
    assert apply_rule(store, RecordSection()) == []
    with store.write() as db:
        db.execute("UPDATE runs SET ended_at = ended_at - 10 * 86400 WHERE id='old'")
    assert apply_rule(store, RecordSection(keep_bodies_days=7)) == ["old"]
    assert apply_rule(store, RecordSection(keep_bodies_days=7)) == []
    assert apply_rule(store, RecordSection(keep_runs_days=9)) == ["old"]
    assert [run.id for run in store.runs()] == ["new"]


def test_vacuum_gives_the_disk_back_but_not_under_a_supervisor(store: Store) -> None:
    with lock(store.path.parent, "new"), pytest.raises(StoreError, match="works on it"):
        vacuum(store)
    store.log("info", "test", "x" * 500_000, "old")
    prune(store, "old", "all")
    found = vacuum(store)
    assert found["bytes_after"] < found["bytes_before"] - 400_000
    assert store.path.stat().st_size == found["bytes_after"]
    assert len(store.calls(4)) == 2


def test_the_commands_say_what_they_did(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("CORRAL_HOME", str(store.path.parent))
    assert main(["db", "prune", "old", "--bodies"]) == 0
    assert "raw bodies of 6 calls taken out" in capsys.readouterr().out
    assert main(["db", "vacuum", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"bytes_before", "bytes_after"}
    assert main(["db", "migrate"]) == 0
    monkeypatch.setenv("CORRAL_HOME", str(tmp_path / "empty"))
    assert main(["db", "vacuum"]) == 1
    assert "there is no record yet" in capsys.readouterr().err
