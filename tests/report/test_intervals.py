"""Shares and intervals against published values, hand-worked ones, and simulations of their coverage."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.report.intervals import (
    Estimate,
    Outcomes,
    bootstrap,
    mean_reward,
    paired_gain,
    pass_at_1,
    pass_at_k,
    pass_hat_k,
    student_95,
    wilson,
)  # fmt: skip


def test_wilson_agrees_with_the_published_example() -> None:
    # 15 of 148: Newcombe (1998), table I, method 3: 0.0624 to 0.1605
    assert wilson(15, 148) == pytest.approx((0.0624, 0.1605), abs=1e-4)
    assert wilson(0, 20)[0] == 0.0 and wilson(20, 20)[1] == 1.0


def test_student_quantiles_agree_with_the_printed_table() -> None:
    printed = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 10: 2.228, 30: 2.042, 120: 1.980}
    for df, value in printed.items():
        assert student_95(df) == pytest.approx(value, abs=0.004)


@given(st.lists(st.booleans(), min_size=1, max_size=7), st.integers(1, 7))
def test_pass_at_k_and_pass_hat_k_are_the_means_over_all_choices_of_k_attempts(passes: list[bool], k: int) -> None:
    rewards = [float(p) for p in passes]
    at, hat = pass_at_k({"t": rewards}, k), pass_hat_k({"t": rewards}, k)
    if k > len(rewards):
        assert at is None and hat is None
        return
    chosen = list(combinations(rewards, k))
    assert at and at.value == pytest.approx(sum(max(c) for c in chosen) / len(chosen))
    assert hat and hat.value == pytest.approx(sum(min(c) for c in chosen) / len(chosen))


def test_partial_credit_is_no_pass_but_counts_in_the_mean() -> None:
    found: Outcomes = {"a": [1.0, 0.5], "b": [0.0, 0.5]}
    first, mean = pass_at_1(found), mean_reward(found)
    assert first and (first.value, first.n, first.tasks) == (0.25, 4, 2)
    assert mean and mean.value == 0.5


def test_with_one_attempt_a_task_the_interval_is_wilsons() -> None:
    found = {str(n): [float(n < 15)] for n in range(148)}
    first = pass_at_1(found)
    assert first and first.interval == pytest.approx(wilson(15, 148), abs=2e-3)


def test_attempts_that_only_repeat_a_task_do_not_narrow_the_interval() -> None:
    once, often = ({str(n): [float(n < 10)] * times for n in range(40)} for times in (1, 8))
    a, b = pass_at_1(once), pass_at_1(often)
    assert a and b and a.interval == pytest.approx(b.interval)


def test_equal_values_leave_room_for_the_tasks_not_seen() -> None:
    found = bootstrap(np.zeros(30), 60, low=-1.0)
    assert found.interval == pytest.approx((-0.1, 0.1))


def test_nothing_graded_is_none_and_not_zero() -> None:
    assert pass_at_1({}) is None and mean_reward({"a": []}) is None
    assert paired_gain({"a": [1.0]}, {"a": [1.0]}) is None
    with pytest.raises(ValueError, match="at least 1"):
        pass_at_k({"a": [1.0]}, 0)


def coverage(draw: Callable[[np.random.Generator], Estimate | None], truth: float, trials: int) -> float:
    rng, hits = np.random.default_rng(1), 0
    for _ in range(trials):
        found = draw(rng)
        assert found is not None
        hits += found.interval[0] <= truth <= found.interval[1]
    return hits / trials


def attempts(rng: np.random.Generator, chances: np.ndarray, times: int) -> dict[str, list[float]]:
    return {str(n): list((rng.random(times) < p).astype(float)) for n, p in enumerate(chances)}


@pytest.mark.slow
@pytest.mark.parametrize(("tasks", "times", "a", "b"), [(48, 1, 2, 2), (48, 4, 2, 2), (120, 2, 0.5, 2), (60, 8, 1, 1)])
def test_intervals_cover_the_truth_as_often_as_they_say(tasks: int, times: int, a: float, b: float) -> None:
    """Tasks of chances Beta(a, b): 95 % plus or minus 2 % of the intervals hold what they estimate."""

    def one(rng: np.random.Generator) -> Estimate | None:
        return pass_at_1(attempts(rng, rng.beta(a, b, tasks), times))

    def mean(rng: np.random.Generator) -> Estimate | None:
        return mean_reward(attempts(rng, rng.beta(a, b, tasks), times))

    def gain(rng: np.random.Generator) -> Estimate | None:
        chances = rng.beta(a, b, tasks)
        better = chances + 0.3 * (1 - chances)
        return paired_gain(attempts(rng, chances, times), attempts(rng, better, times))

    truth = a / (a + b)
    assert coverage(one, truth, 2000) == pytest.approx(0.95, abs=0.02)
    assert coverage(mean, truth, 1500) == pytest.approx(0.95, abs=0.02)
    assert coverage(gain, 0.3 * (1 - truth), 1500) == pytest.approx(0.95, abs=0.02)
