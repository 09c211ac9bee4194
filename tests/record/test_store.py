"""The record: what goes in comes out exactly, in any order, after any kill."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.errors import StoreError
from appliance.record.store import Store
from appliance.types import Reward, RolloutState, RunState
from tests.support.record_drafts import a_draft, a_plan, a_sample


@pytest.fixture
def store(tmp_path: Path) -> Store:
    opened = Store.open(tmp_path / "record.db")
    opened.create_run("r1", "demo", {"seed": 0}, 0, "test")
    return opened


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 3), max_size=8), st.lists(st.integers(0, 3), min_size=1, max_size=4)),
        min_size=1,
        max_size=8,
    )
)
def test_I1_every_call_comes_back_with_exactly_its_ids(tmp_path_factory: pytest.TempPathFactory, calls: list) -> None:
    store = Store.open(tmp_path_factory.mktemp("record") / "record.db")
    store.create_run("r1", "demo", {}, 0, "test")
    (rollout,) = store.plan([a_plan()])
    store.begin(rollout.id, 0)
    for n, (prompt, sampled) in enumerate(calls):
        store.add_call(rollout.id, a_draft(n, a_sample(prompt, sampled)))
    back = store.calls(rollout.id)
    assert [(list(c.sample.prompt_ids), list(c.sample.sampled_ids)) for c in back] == calls
    assert all(len(c.sample.logprobs) == len(c.sample.sampled_ids) for c in back)
    store.close()


def test_a_growing_conversation_stores_each_token_once(store: Store) -> None:
    (rollout,) = store.plan([a_plan()])
    store.begin(rollout.id, 0)
    path: list[int] = list(range(1000))
    for turn in range(10):
        store.add_call(rollout.id, a_draft(turn, a_sample(path, [1, 2, 3])))
        path = [*path, 1, 2, 3, 9, 9]
    stored = sum(len(row["ids"]) // 4 for row in store.rows("SELECT ids FROM nodes"))
    assert stored == 1000 + 10 * 3 + 9 * 2


def test_a_second_attempt_does_not_see_the_calls_of_the_first(store: Store) -> None:
    (rollout,) = store.plan([a_plan()])
    store.begin(rollout.id, 0)
    store.add_call(rollout.id, a_draft(0, a_sample([1], [2])))
    store.begin(rollout.id, 0)
    assert store.calls(rollout.id) == []
    assert store.rows("SELECT count(*) n FROM calls")[0]["n"] == 1


def test_planning_twice_makes_no_second_rollout(store: Store) -> None:
    first = store.plan([a_plan(0), a_plan(1)])
    again = store.plan([a_plan(1), a_plan(0)])
    assert [r.id for r in again] == [first[1].id, first[0].id]


def test_a_graded_rollout_is_never_graded_again(store: Store) -> None:
    (rollout,) = store.plan([a_plan()])
    store.begin(rollout.id, 0)
    store.grade(rollout.id, Reward(0.5, {"a": 0.5}), "", {})
    with pytest.raises(StoreError, match="finished already"):
        store.grade(rollout.id, Reward(1.0), "", {})
    with pytest.raises(StoreError, match="finished already"):
        store.begin(rollout.id, 0)
    store.fail(rollout.id, "sandbox:lost", "too late")
    (back,) = store.rollouts("r1")
    assert (back.state, back.reward, back.failure) == (RolloutState.GRADED, 0.5, "")


def test_a_failed_rollout_has_no_reward(store: Store) -> None:
    (rollout,) = store.plan([a_plan()])
    store.begin(rollout.id, 0)
    store.fail(rollout.id, "harness:timeout", "60 s")
    (back,) = store.rollouts("r1")
    assert back.reward is None and back.failure == "harness:timeout"


def test_illegal_moves_of_a_run_are_refused(store: Store) -> None:
    store.move_run("r1", RunState.RUNNING)
    store.move_run("r1", RunState.DONE)
    with pytest.raises(StoreError, match="cannot go from done to running"):
        store.move_run("r1", RunState.RUNNING)


def test_a_command_is_taken_once(store: Store) -> None:
    store.command("r1", "stop")
    assert store.take_commands("r1") == [("stop", "")]
    assert store.take_commands("r1") == []


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "record.db"
    sqlite3.connect(path).execute("CREATE TABLE other(x)")
    with pytest.raises(StoreError, match="not Corral's record"):
        Store.open(path)
    (tmp_path / "text.db").write_text("hello, this is no database at all, only text" * 30)
    with pytest.raises(StoreError, match="not a usable record"):
        Store.open(tmp_path / "text.db")


def test_a_newer_record_is_refused(store: Store) -> None:
    store._db.execute(
        "INSERT INTO _sqlite_migrations(migration_set, name, applied_at) VALUES('corral','from_the_future','x')"
    )
    with pytest.raises(StoreError, match="newer Corral"):
        Store.open(store.path)


def test_a_missing_record_is_named_to_a_reader(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no record yet"):
        Store.open(tmp_path / "record.db", readonly=True)


def test_a_reader_sees_what_a_writer_commits_meanwhile(store: Store) -> None:
    reader = Store.open(store.path, readonly=True)
    assert reader.rollouts("r1") == []
    store.plan([a_plan()])
    assert len(reader.rollouts("r1")) == 1


def test_kill_9_in_the_middle_of_writing_loses_no_committed_call(tmp_path: Path) -> None:
    writer = textwrap.dedent(f"""
        import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})
        from pathlib import Path
        from appliance.record.store import Store
        from tests.support.record_drafts import a_draft, a_plan, a_sample
        store = Store.open(Path({str(tmp_path / "record.db")!r}))
        store.create_run("r1", "demo", {{}}, 0, "test")
        (rollout,) = store.plan([a_plan()])
        store.begin(rollout.id, 0)
        for n in range(100000):
            store.add_call(rollout.id, a_draft(n, a_sample(list(range(50)), [n])))
            print(n, flush=True)
    """)
    seen = -1
    with subprocess.Popen([sys.executable, "-c", writer], stdout=subprocess.PIPE, text=True) as child:
        for line in child.stdout or []:
            seen = int(line)
            if seen == 40:
                os.kill(child.pid, signal.SIGKILL)
    store = Store.open(tmp_path / "record.db")
    calls = store.calls(1)
    assert [c.sequence for c in calls][: seen + 1] == list(range(seen + 1))
    assert store.rows("PRAGMA integrity_check")[0][0] == "ok"


def test_a_phase_that_a_kill_left_open_ends_with_the_last_sign_of_life(store: Store) -> None:
    store.begin_phase("r1", "train")
    store.log("info", "trainer", "step 1", "r1")
    with store.write() as db:  # the kill, an hour ago
        db.execute("UPDATE phases SET started_at = started_at - 3700")
        db.execute("UPDATE events SET at = at - 3600")
    store.end_killed_phase("r1")
    store.begin_phase("r1", "train")
    store.end_phase("r1")
    assert store.phase_seconds("r1")["train"] == pytest.approx(100, abs=5)


def test_a_missing_adapter_folder_is_named_with_what_to_do(store: Store, tmp_path: Path) -> None:
    (tmp_path / "v0").mkdir()
    store.add_version("r1", 0, tmp_path / "v0", "0" * 64)
    store.add_version("r1", 1, tmp_path / "v1", "0" * 64)
    assert store.adapter_folder("r1", 0) == tmp_path / "v0"
    with pytest.raises(StoreError, match=r"version 1 of run r1: its adapter folder .*/v1 is missing"):
        store.adapter_folder("r1", 1)
    with pytest.raises(StoreError, match="no policy version 2"):
        store.adapter_folder("r1", 2)


def test_a_full_disk_is_said_so(store: Store) -> None:
    pages = store.rows("PRAGMA page_count")[0][0]
    store.rows(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match="no space left"):
        for _ in range(2000):
            store.log("info", "test", "x" * 4000, "r1")
    assert store.rows("SELECT count(*) n FROM runs")[0]["n"] == 1
