"""The schedule is a pure function of the seed: what a resumed run finds missing is what is missing."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.runs import schedule
from appliance.types import Purpose, Rollout, RolloutPlan, RolloutState


def a_rollout(plan: RolloutPlan, reward: float | None, state: RolloutState = RolloutState.GRADED) -> Rollout:
    return Rollout(1, plan, state, 1, 0, reward, {}, "", "", 0.0, None, None)


def test_teaching_uses_every_task_before_one_comes_again() -> None:
    plans = schedule.teaching("r", 0, ["pi", "codex"], ["a", "b", "c"], 4)
    per_harness = Counter((p.harness, p.task) for p in plans)
    assert len(plans) == 8 and len(set(plans)) == 8
    assert all(1 <= per_harness[h, t] <= 2 for h in ("pi", "codex") for t in "abc")
    assert [p.harness for p in plans[:4]] == ["pi", "codex", "pi", "codex"]


def test_every_task_meets_every_harness_before_it_comes_again() -> None:
    tasks = {"a": "count", "b": "count", "c": "count"}
    pairs = list(islice(schedule.groups(0, ["pi", "codex"], tasks), 6))
    assert sorted(pairs) == sorted((t, h) for t in "abc" for h in ("pi", "codex"))
    assert pairs == list(islice(schedule.groups(0, ["pi", "codex"], tasks), 6))
    assert any(pairs != list(islice(schedule.groups(seed, ["pi", "codex"], tasks), 6)) for seed in range(1, 5))


def test_families_take_turns() -> None:
    tasks = {"a1": "a", "a2": "a", "b1": "b", "b2": "b", "c1": "c"}
    drawn = [task for task, _ in islice(schedule.groups(3, ["pi"], tasks), 10)]
    assert [{t[0] for t in drawn[:3]}, {t[0] for t in drawn[3:5]}] == [set("abc"), set("ab")]
    assert sorted(drawn[:5]) == sorted(tasks) == sorted(drawn[5:])


def test_a_step_is_the_same_plan_twice() -> None:
    pairs = [("a", "pi"), ("b", "codex")]
    once, again = (schedule.training_step("r", 3, pairs, 4, 7) for _ in range(2))
    assert once == again and len(set(once)) == 8
    assert Counter(p.group for p in once) == {"3/a/pi": 4, "3/b/codex": 4}


def test_evaluation_plans_the_same_rollouts_before_and_after() -> None:
    before = schedule.evaluation("r", Purpose.EVAL_BEFORE, 0, ["pi", "codex"], ["a", "b"], 2)
    after = schedule.evaluation("r", Purpose.EVAL_AFTER, 8, ["pi", "codex"], ["a", "b"], 2)
    assert [(p.harness, p.task, p.index) for p in before] == [(p.harness, p.task, p.index) for p in after]
    assert len(set(before)) == 8


def test_some_tasks_are_drawn_by_the_seed_and_keep_their_order() -> None:
    tasks = [f"t{n}" for n in range(9)]
    assert schedule.some(tasks, 0, 0) == tasks
    drawn = schedule.some(tasks, 4, 0)
    assert len(drawn) == 4 and drawn == sorted(drawn) and drawn == schedule.some(tasks, 4, 0)
    assert drawn != schedule.some(tasks, 4, 1)


def test_only_rollouts_without_an_outcome_are_made_again() -> None:
    plan = RolloutPlan("r", Purpose.TRAIN, 1, "pi", "a", 0)
    states = [RolloutState.GRADED, RolloutState.RUNNING, RolloutState.FAILED, RolloutState.PLANNED]
    left = schedule.unfinished([a_rollout(plan, None, s) for s in states])
    assert [r.state for r in left] == [RolloutState.RUNNING, RolloutState.PLANNED]


def test_a_group_of_equal_rewards_is_not_useful() -> None:
    plan = RolloutPlan("r", Purpose.TRAIN, 1, "pi", "a", 0)
    other = RolloutPlan("r", Purpose.TRAIN, 1, "pi", "b", 0)
    rollouts = [a_rollout(plan, 1.0), a_rollout(plan, 0.0), a_rollout(other, 1.0), a_rollout(other, 1.0)]
    assert schedule.useful_groups(rollouts) == 1


TASKS = {f"t{n}": "one" for n in range(12)}


def played(pairs: list[tuple[str, str]], step: int, rates: dict[str, float]) -> list[Rollout]:
    """Ten rollouts a pair; `rates` of them are solved."""
    return [
        a_rollout(RolloutPlan("r", Purpose.TRAIN, step, harness, task, n), float(n < 10 * rates[harness]))
        for task, harness in pairs
        for n in range(10)
    ]


def a_run_of(steps: int, count: int, shares: schedule.Shares, rates: dict[str, float]) -> list[list[tuple[str, str]]]:
    earlier: list[Rollout] = []
    found = []
    for step in range(1, steps + 1):
        found.append(schedule.step_pairs(0, step, count, shares, TASKS, earlier))
        earlier += played(found[-1], step, rates)
    return found


def test_without_weights_every_task_meets_every_harness_in_turn() -> None:
    shares = schedule.Shares(["pi", "codex"])
    found = [pair for pairs in a_run_of(3, 8, shares, {"pi": 0.5, "codex": 0.5}) for pair in pairs]
    assert found == list(islice(schedule.groups(0, ["pi", "codex"], TASKS), 24))


def test_weights_are_kept_over_steps_and_no_task_comes_again_too_early() -> None:
    shares = schedule.Shares(["pi", "codex", "mini"], [2.0, 1.0, 0.0])
    steps = a_run_of(3, 4, shares, {"pi": 0.5, "codex": 0.5, "mini": 0.5})
    assert all(len(set(pairs)) == 4 for pairs in steps)
    assert Counter(h for pairs in steps for _, h in pairs) == {"pi": 8, "codex": 4}
    assert len({t for pairs in steps for t, h in pairs if h == "pi"}) == 8
    assert steps == a_run_of(3, 4, shares, {"pi": 0.0, "codex": 1.0, "mini": 0.5})  # the solve rates have no say


def test_by_solve_rate_most_groups_go_where_half_of_the_tasks_are_solved() -> None:
    shares = schedule.Shares(["pi", "codex"], by_solve_rate=True)
    first, second = a_run_of(2, 8, shares, {"pi": 0.5, "codex": 1.0})
    assert Counter(h for _, h in first) == {"pi": 4, "codex": 4}
    assert Counter(h for _, h in second)["pi"] >= 6
    weights = schedule.harness_weights(shares, played([("t0", "pi"), ("t1", "codex")], 1, {"pi": 0.5, "codex": 1.0}))
    # p = 6/12 and 11/12: 4p(1 - p) = 1 and 0.3056
    assert weights["pi"] == pytest.approx(1 / (1 + 4 * 11 / 144)) and sum(weights.values()) == pytest.approx(1)


def test_rollouts_one_step_ahead_come_from_a_version_that_is_there_and_at_most_one_older() -> None:
    assert [schedule.sampled_by(step, 0) for step in (1, 2, 3)] == [0, 1, 2]
    assert [schedule.sampled_by(step, 1) for step in (1, 2, 3, 4)] == [0, 0, 1, 2]
    for step in range(2, 9):  # while the rollouts of a step are made, the step before is still being trained
        assert schedule.sampled_by(step, 1) <= step - 2


def of_pair(task: str, harness: str, step: int, solved: int, graded: int, failed: int = 0) -> list[Rollout]:
    rewards = [1.0] * solved + [0.0] * (graded - solved) + [None] * failed
    return [
        a_rollout(RolloutPlan("r", Purpose.TRAIN, step, harness, task, n), reward) for n, reward in enumerate(rewards)
    ]


def test_a_pairs_weight_is_one_at_half_solved_and_the_least_where_all_or_nothing_is() -> None:
    earlier = (
        of_pair("half", "pi", 1, 3, 6) + of_pair("all", "pi", 1, 6, 6) + of_pair("none", "pi", 1, 0, 6)
        + of_pair("some", "pi", 1, 1, 4) + of_pair("ungraded", "pi", 1, 0, 0, failed=6)
        + of_pair("learnt", "pi", 1, 0, 4) + of_pair("learnt", "pi", 2, 4, 4) + of_pair("learnt", "pi", 5, 4, 4)
    )  # fmt: skip
    weights = schedule.pair_weights(earlier, 0.1)
    # 4 · 1/4 · 3/4 = 0.75; of `learnt` only the last two of its three steps count
    expected = {"half": 1.0, "all": 0.1, "none": 0.1, "some": 0.75, "learnt": 0.1}
    assert weights == {(task, "pi"): pytest.approx(weight) for task, weight in expected.items()}


def a_curriculum(steps: int, count: int, rates: dict[str, float], weights: tuple[float, ...] = ()) -> Counter[str]:
    """How often each task came; every task has its own solve rate."""
    shares = schedule.Shares(["pi", "codex"], weights, curriculum=0.1)
    tasks = {task: "one" for task in rates}
    earlier: list[Rollout] = []
    came: Counter[str] = Counter()
    for step in range(1, steps + 1):
        for task, harness in schedule.step_pairs(0, step, count, shares, tasks, earlier):
            earlier += of_pair(task, harness, step, round(10 * rates[task]), 10)
            came[task] += 1
    return came


@pytest.mark.parametrize("weights", [(), (2.0, 1.0)])
def test_never_and_always_solved_tasks_come_less_often_and_are_not_forgotten(weights: tuple[float, ...]) -> None:
    rates = {"all": 1.0, "none": 0.0} | {f"half{n}": 0.5 for n in range(6)}
    came = a_curriculum(80, 4, rates, weights)
    middle = min(came[f"half{n}"] for n in range(6))
    assert 2 <= came["all"] < middle / 3 and 2 <= came["none"] < middle / 3, came


HISTORY = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.sampled_from(["pi", "codex"]), st.integers(1, 6), st.integers(0, 4)),
    max_size=20,
)


@settings(deadline=None, max_examples=60)
@given(history=HISTORY, seed=st.integers(0, 3), count=st.integers(1, 15), weighted=st.booleans(), shuffle=st.randoms())
def test_a_curriculum_is_a_pure_function_of_seed_and_record(
    history: list[tuple[str, str, int, int]], seed: int, count: int, weighted: bool, shuffle: object
) -> None:
    """Whatever happened before: no pair twice, what never came first, and the order of the record has no say."""
    tasks = {task: task if task in "ab" else "other" for task in "abcdef"}
    earlier = [r for task, harness, step, solved in history for r in of_pair(task, harness, step, solved, 4)]
    shares = schedule.Shares(["pi", "codex"], (1.0, 1.0) if weighted else (), curriculum=0.2)
    pairs = schedule.step_pairs(seed, 7, count, shares, tasks, earlier)
    again = list(earlier)
    shuffle.shuffle(again)  # type: ignore[attr-defined]
    assert pairs == schedule.step_pairs(seed, 7, count, shares, tasks, again)
    assert len(set(pairs)) == len(pairs) <= count and (weighted or len(pairs) == min(count, 12))
    came = {(task, harness) for task, harness, _, _ in history}
    for harness in shares.harnesses:
        old = [pair in came for pair in pairs if pair[1] == harness]
        assert old == sorted(old), "pairs that never came are first"


def test_the_first_round_of_a_curriculum_is_the_plain_one() -> None:
    plain, taught = (schedule.Shares(["pi", "codex"], curriculum=least) for least in (None, 0.1))
    rates = {"pi": 1.0, "codex": 0.5}
    assert a_run_of(3, 8, taught, rates) == a_run_of(3, 8, plain, rates)
