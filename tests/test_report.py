"""Closing numbers against values worked by hand or by a public implementation."""

from __future__ import annotations

import numpy as np
import pytest

from appliance.picture import curve_svg, sparkline
from appliance.report import gain_interval, harness_result, pass_at_1, wilson
from appliance.types import Purpose, Rollout, RolloutPlan, RolloutState


def a_rollout(task: str, purpose: Purpose, reward: float | None, failure: str = "") -> Rollout:
    state = RolloutState.FAILED if failure else RolloutState.GRADED
    plan = RolloutPlan("r", purpose, 0, "pi", task, 0)
    return Rollout(1, plan, state, 1, 0, reward, {}, failure, "", 0.0, 0.0, 1.0)


def test_wilson_agrees_with_the_published_example() -> None:
    # 15 of 148: Newcombe (1998), table I, method 3: 0.0624 to 0.1605
    assert wilson(15, 148) == pytest.approx((0.0624, 0.1605), abs=1e-4)
    assert wilson(0, 20)[0] == 0.0 and wilson(20, 20)[1] == 1.0


def test_failed_rollouts_count_in_neither_part_of_pass_at_1() -> None:
    rollouts = [
        a_rollout("a", Purpose.EVAL_AFTER, 1.0), a_rollout("b", Purpose.EVAL_AFTER, 0.5),
        a_rollout("c", Purpose.EVAL_AFTER, None, "sandbox:lost"),
    ]  # fmt: skip
    assert pass_at_1(rollouts)[0] == 0.5
    assert pass_at_1([])[0] is None


def test_the_gain_is_paired_by_task() -> None:
    before = [a_rollout(str(n), Purpose.EVAL_BEFORE, float(n < 5)) for n in range(20)]
    after = [a_rollout(str(n), Purpose.EVAL_AFTER, float(n < 15)) for n in range(20)]
    result = harness_result("pi", [*before, *after])
    assert (result.before, result.after, result.gain) == (0.25, 0.75, 0.5)
    low, high = result.gain_interval or (0.0, 0.0)
    # ten of twenty tasks gain 1, ten gain 0: standard error sqrt(0.25 / 20) = 0.112
    assert low == pytest.approx(0.5 - 1.96 * 0.112, abs=0.04) and high == pytest.approx(0.5 + 1.96 * 0.112, abs=0.04)


def test_the_gain_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng, hits, trials = np.random.default_rng(0), 0, 300
    for trial in range(trials):
        before = [a_rollout(str(n), Purpose.EVAL_BEFORE, float(rng.random() < 0.3)) for n in range(48)]
        after = [a_rollout(str(n), Purpose.EVAL_AFTER, float(rng.random() < 0.7)) for n in range(48)]
        low, high = gain_interval(before, after, seed=trial) or (0.0, 0.0)
        hits += low <= 0.4 <= high
    assert 0.91 <= hits / trials <= 0.98


def test_pictures() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    svg = curve_svg({"pi <b>": [(1, 0.2), (2, 0.8)]}, "a & b")
    assert "a &amp; b" in svg and "pi &lt;b&gt;" in svg and svg.count("<polyline") == 1
    assert "<svg" in curve_svg({}, "empty")
