"""What screens ask costs no walk over calls: the same numbers as counting by hand, and an index behind every query."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.bench.tree import OF_TOKENS, fill, measure
from appliance.cli import build_parser
from appliance.operate.record_check import check
from appliance.record import queries
from appliance.record.access import record_path
from appliance.record.store import Store
from appliance.types import Purpose, Reward, RolloutPlan, RolloutState
from tests.support.told_record import told_record
from tui.pages.reader import Reader
from tui.pages.snapshot import Wanted


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return told_record(tmp_path)


def test_pages_say_what_counting_says(store: Store) -> None:
    (late, live, lost) = store.plan([RolloutPlan("r1", Purpose.TRAIN, 2, "pi", "count-2", n) for n in range(3)])
    store.begin(live.id, 0)
    store.begin(lost.id, 0)
    store.fail(lost.id, "harness:timeout", "60 s")
    assert queries.counts(store, "r1") == {"graded": 3, "planned": 1, "starting": 1, "failed": 1}
    assert queries.failures(store, "r1") == {"harness:timeout": 1}
    assert [r.id for r in queries.live(store, "r1")] == [live.id]
    assert [r.id for r in queries.screenful(store, "r1")] == [r.id for r in store.rollouts("r1")]
    assert {r.id for r in queries.screenful(store, "r1", 1)} == {live.id, late.id, lost.id}
    assert [r.id for r in queries.page(store, "r1", after=2, limit=2)] == [3, late.id]
    first, second = queries.groups(store, "r1")
    assert (first.num_graded, first.total, first.is_flat, first.has_ended) == (2, 1.0, False, True)
    assert (second.num_rollouts, second.num_failed, second.is_flat, second.has_ended) == (3, 1, True, False)
    assert queries.last_reward(store, "r1") == 0.5 and queries.one(store, 99) is None


def test_a_new_attempt_counts_its_own_calls(store: Store) -> None:
    (rollout,) = store.plan([RolloutPlan("r1", Purpose.TRAIN, 2, "pi", "count-2", 0)])
    assert rollout.num_calls == 0
    one = queries.one(store, 1)
    assert one is not None and (one.num_calls, one.num_sampled_tokens) == (3, 7)
    store.begin(rollout.id, 0)
    assert store.rollouts("r1", Purpose.TRAIN, 2)[0].state is RolloutState.STARTING
    store.grade(rollout.id, Reward(1.0), "", {})


@pytest.mark.parametrize("name", sorted(queries.QUERIES))
def test_every_query_of_a_screen_uses_an_index(store: Store, name: str) -> None:
    sql = queries.QUERIES[name]
    arguments = ["r1", "train", 5][: max(int(part[0]) for part in sql.split("?")[1:])]
    plan = [row["detail"] for row in store.rows(f"EXPLAIN QUERY PLAN {sql}", *arguments)]
    assert not [step for step in plan if step.startswith("SCAN")], plan
    if name in ("counts", "groups", "last_graded", "mean"):
        assert any("COVERING INDEX" in step for step in plan), plan


@pytest.mark.parametrize(("purpose", "step"), [(None, None), (Purpose.TRAIN, None), (Purpose.TRAIN, 1)])
def test_rollouts_of_a_run_are_found_by_index(store: Store, purpose: Purpose | None, step: int | None) -> None:
    asked: list[str] = []
    store._db.set_trace_callback(asked.append)
    store.rollouts("r1", purpose, step)
    store._db.set_trace_callback(None)
    plan = [row["detail"] for row in store.rows(f"EXPLAIN QUERY PLAN {asked[-1]}")]
    assert all("USING INDEX" in line for line in plan if line.startswith(("SEARCH", "SCAN"))), plan


def test_the_benchs_record_is_a_sound_record(tmp_path: Path) -> None:
    run_id, rollout = fill(tmp_path, 300)
    store = Store.open(record_path(tmp_path))
    assert check(store).broken["I1"] == check(store).broken["I4"] == []
    assert len(store.calls(rollout)) == 10 and queries.counts(store, run_id) == {"graded": 30}
    names = {row["name"] for row in store.rows("SELECT name FROM sqlite_master")}
    assert set(OF_TOKENS) <= names


@pytest.mark.slow
def test_the_bench_measures_what_is_promised() -> None:
    arguments = build_parser().parse_args(["bench", "tree", "--calls", "100", "--record-calls", "500"])
    found, text = measure(arguments)
    promised = {
        "flat_tokens_per_s",
        "unique_tokens",
        "bytes_per_unique_token",
        "curve",
        "open_ms",
        "list_ms",
        "show_ms",
    }
    assert promised <= set(found) and "flat tokens a CPU second" in text
    # one conversation: 24,000 tokens and 100 calls of 160 new ones
    assert found["unique_tokens"] == 24_000 + 100 * 160
    assert [unique for unique, _ in found["curve"]] == [8_000 + n * 32_000 for n in (1, 2, 4, 8, 16)]
    assert found["bytes_per_unique_token"] < 10


def test_the_terminal_ui_reads_a_page_of_a_long_run_and_counts_all_of_it(tmp_path: Path) -> None:
    run_id, newest = fill(tmp_path, 8000)
    reader = Reader(tmp_path)
    try:
        snapshot = reader.poll(Wanted(run_id, 3, "rollouts"))
        called = reader.poll(Wanted(run_id, 3, "calls"))
        curve = reader.poll(Wanted(run_id, 3, "curve")).curve
    finally:
        reader.close()
    assert snapshot.problem is None and len(snapshot.rollouts) == queries.PAGE < snapshot.counts["graded"] == 800
    assert snapshot.rollouts[0].id == newest  # the newest that ended on top
    assert called.rollout is not None and called.rollout.id == 3 and len(called.calls) == 10
    assert sum(step.num_rollouts for step in curve.steps) == 800
