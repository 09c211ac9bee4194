"""Credit by token: worked by hand, and against a path-by-path reference written in another way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.train.gae import GaeSettings, Trajectory, credit, explained_variance, gae


def a_trajectory(reward: float, count: int, paths: list[list[int]] | None = None, out: tuple[int, ...] = ()):
    chained = np.ones(count, dtype=np.bool_)
    chained[list(out)] = False
    return Trajectory(reward, chained, [np.array(p, np.int64) for p in (paths or [list(range(count))])])


def reference(reward: float, values: list[float], paths: list[list[int]], gamma: float, lam: float) -> list[float]:
    """Path by path, the double sum of the definition written out; a token on several paths takes the mean."""
    found: list[list[float]] = [[] for _ in values]
    for path in paths:
        for start, token in enumerate(path):
            total = 0.0
            for k, here in enumerate(path[start:]):
                is_last = start + k == len(path) - 1
                gained = reward if is_last else 0.0
                following = 0.0 if is_last else values[path[start + k + 1]]
                total += (gamma * lam) ** k * (gained + gamma * following - values[here])
            found[token].append(total)
    return [sum(parts) / len(parts) for parts in found]


def test_three_tokens_by_hand() -> None:
    # δ = 0.9·0.4 − 0.5, 0.9·0.2 − 0.4, 1 − 0.2; γλ = 0.45
    errors = (-0.14, -0.22, 0.8)
    expected = [errors[0] + 0.45 * errors[1] + 0.45**2 * errors[2], errors[1] + 0.45 * errors[2], errors[2]]
    found, returns = credit(a_trajectory(1.0, 3), np.array([0.5, 0.4, 0.2]), GaeSettings(0.9, 0.5))
    assert found == pytest.approx(expected) and returns == pytest.approx(np.add(found, [0.5, 0.4, 0.2]))


def test_E8_monte_carlo_is_the_reward_minus_the_value_in_both_orders() -> None:
    values = np.array([0.5, 0.4, 0.2, 0.7])
    for order in ("time", "path"):
        paths = [[0, 1], [0, 2, 3]]
        found, _ = credit(a_trajectory(1.0, 4, paths), values, GaeSettings(1.0, 1.0, order))
        assert found == pytest.approx(1.0 - values)


def test_E8_without_lambda_it_is_the_one_step_error() -> None:
    values = np.array([0.5, 0.4, 0.2])
    found, _ = credit(a_trajectory(1.0, 3), values, GaeSettings(0.9, 0.0))
    assert found == pytest.approx([0.9 * 0.4 - 0.5, 0.9 * 0.2 - 0.4, 1 - 0.2])


def test_a_rollout_that_was_cut_off_bootstraps() -> None:
    found = gae(np.zeros(2), np.array([0.5, 0.4]), GaeSettings(1.0, 1.0), bootstrap=0.9)
    assert found == pytest.approx([0.4, 0.5])


def test_E15_masked_positions_do_not_matter() -> None:
    values = np.array([0.0, 0.0, 100.0])
    for order in ("time", "path"):
        settings = GaeSettings(0.9, 0.7, order)
        found, returns = credit(a_trajectory(1.0, 3, out=(2,)), values, settings)
        alone, _ = credit(a_trajectory(1.0, 2), values[:2], settings)
        assert list(found[:2]) == list(alone) and returns[2] == 0
        values[2] = np.nan
        again, _ = credit(a_trajectory(1.0, 3, out=(2,)), values, settings)
        assert list(again[:2]) == list(alone)


def test_a_branch_whose_credit_is_broadcast_takes_that_of_the_token_before_it() -> None:
    values = np.array([0.5, 9.0, 9.0, 0.2])
    found, _ = credit(a_trajectory(1.0, 4, out=(1, 2)), values, GaeSettings())
    assert found == pytest.approx([0.5, 0.5, 0.5, 0.8])
    first, _ = credit(a_trajectory(1.0, 2, out=(0,)), np.array([9.0, 0.25]), GaeSettings())
    assert first == pytest.approx([0.75, 0.75])


def test_time_order_crosses_a_compaction_and_path_order_does_not() -> None:
    values = np.array([0.2, 0.4])  # two calls on two roots
    in_time, _ = credit(a_trajectory(1.0, 2, [[0], [1]]), values, GaeSettings(1.0, 0.0))
    by_path, _ = credit(a_trajectory(1.0, 2, [[0], [1]]), values, GaeSettings(1.0, 0.0, "path"))
    assert in_time == pytest.approx([0.2, 0.6]) and by_path == pytest.approx([0.8, 0.6])


trees = st.lists(st.integers(-1, 6), min_size=1, max_size=8).map(
    lambda drawn: [min(parent, i - 1) for i, parent in enumerate(drawn)]
)


@settings(max_examples=80, deadline=None)
@given(trees, st.data())
def test_both_orders_are_the_reference_written_path_by_path(parents: list[int], data: st.DataObject) -> None:
    numbers = st.floats(-2, 2, width=32)
    values = data.draw(st.lists(numbers, min_size=len(parents), max_size=len(parents)))
    reward, gamma, lam = data.draw(numbers), data.draw(st.floats(0, 1)), data.draw(st.floats(0, 1))
    paths = []
    for leaf in set(range(len(parents))) - set(parents):
        way = [leaf]
        while parents[way[-1]] >= 0:
            way.append(parents[way[-1]])
        paths.append(way[::-1])
    trajectory = a_trajectory(reward, len(parents), paths)
    by_path, _ = credit(trajectory, np.array(values), GaeSettings(gamma, lam, "path"))
    assert list(by_path) == pytest.approx(reference(reward, values, paths, gamma, lam), abs=1e-9)
    in_time, _ = credit(trajectory, np.array(values), GaeSettings(gamma, lam))
    assert list(in_time) == pytest.approx(reference(reward, values, [list(range(len(parents)))], gamma, lam), abs=1e-9)


def test_explained_variance_is_one_for_a_perfect_critic_and_zero_for_a_constant_one() -> None:
    returns = np.array([0.0, 1.0, 0.5])
    assert explained_variance(returns, returns) == 1.0
    assert explained_variance(np.full(3, 7.0), returns) == pytest.approx(0.0)
    assert explained_variance(np.zeros(2), np.ones(2)) == 0.0
