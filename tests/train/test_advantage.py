"""Advantages, with numbers worked by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.train.advantage import dr_grpo, grpo, is_flat, rloo, shaped_for_length

rewards = st.lists(st.floats(0, 1, width=16), min_size=2, max_size=9)


def test_two_rollouts_one_right_one_wrong() -> None:
    # mean 0.5, std (ddof 1) = sqrt(0.5) = 0.70711 → ±0.5 / 0.70711
    assert grpo([1.0, 0.0]) == pytest.approx([0.707106, -0.707106], abs=2e-6)


def test_I5_a_failed_rollout_is_in_neither_mean_nor_std() -> None:
    assert grpo([1.0, None, 0.0]) == [grpo([1.0, 0.0])[0], None, grpo([1.0, 0.0])[1]]


def test_dr_grpo_and_rloo_are_the_numbers_worked_by_hand() -> None:
    assert dr_grpo([1.0, 0.0, None, 0.5]) == [0.5, -0.5, None, 0.0]
    # each against the mean of the other two: 1 − 0.25, 0 − 0.75, 0.5 − 0.5
    assert rloo([1.0, 0.0, None, 0.5]) == pytest.approx([0.75, -0.75, None, 0.0])
    assert dr_grpo([0.3]) == rloo([0.3]) == [0.0] and rloo([0.1] * 7) == dr_grpo([0.1] * 7) == [0.0] * 7


def test_a_long_rollout_loses_up_to_one() -> None:
    lost = [1.0 - shaped_for_length(1.0, n, 100, 300) for n in (50, 100, 150, 300, 900)]
    assert lost == pytest.approx([0, 0, 0.25, 1, 1])
    assert shaped_for_length(0.7, 10**6, 100, 0) == 0.7


def test_E4_equal_rewards_give_exactly_zero_even_where_the_mean_rounds() -> None:
    assert grpo([0.1] * 7) == [0.0] * 7
    assert is_flat([0.1] * 7) and is_flat([0.3]) and is_flat([None, 0.3]) and not is_flat([0.3, 0.1])


@given(rewards, st.floats(0.5, 4), st.floats(-3, 3))
def test_E5_advantages_do_not_change_with_scale_and_shift(values: list[float], a: float, b: float) -> None:
    spread = max(values) - min(values)
    if 0 < spread < 0.05:
        return
    assert grpo([a * r + b for r in values]) == pytest.approx(grpo(values), abs=1e-3)
