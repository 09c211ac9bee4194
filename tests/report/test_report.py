"""Closing numbers against values worked by hand or by a public implementation."""

from __future__ import annotations

import pytest

from appliance.report.charts import curve_svg, sparkline
from appliance.report.report import harness_result, outcomes
from appliance.types import Purpose, Rollout, RolloutPlan, RolloutState


def a_rollout(task: str, purpose: Purpose, reward: float | None, failure: str = "") -> Rollout:
    state = RolloutState.FAILED if failure else RolloutState.GRADED
    plan = RolloutPlan("r", purpose, 0, "pi", task, 0)
    return Rollout(1, plan, state, 1, 0, reward, {}, failure, "", 0.0, 0.0, 1.0)


def test_failed_rollouts_count_in_neither_part_of_pass_at_1() -> None:
    rollouts = [
        a_rollout("a", Purpose.EVAL_AFTER, 1.0), a_rollout("b", Purpose.EVAL_AFTER, 0.5),
        a_rollout("c", Purpose.EVAL_AFTER, None, "sandbox:lost"),
    ]  # fmt: skip
    assert outcomes(rollouts) == {"a": [1.0], "b": [0.5]}
    assert harness_result("pi", rollouts).after == 0.5
    assert harness_result("pi", []).after is None


def test_the_gain_is_paired_by_task() -> None:
    before = [a_rollout(str(n), Purpose.EVAL_BEFORE, float(n < 5)) for n in range(20)]
    after = [a_rollout(str(n), Purpose.EVAL_AFTER, float(n < 15)) for n in range(20)]
    result = harness_result("pi", [*before, *after])
    assert (result.before, result.after, result.gain) == (0.25, 0.75, 0.5)
    low, high = result.gain_interval or (0.0, 0.0)
    # ten of twenty tasks gain 1, ten gain 0: standard error sqrt(0.25 / 20) = 0.112
    assert low == pytest.approx(0.5 - 1.96 * 0.112, abs=0.04) and high == pytest.approx(0.5 + 1.96 * 0.112, abs=0.04)


def test_pictures() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    svg = curve_svg({"pi <b>": [(1, 0.2), (2, 0.8)]}, "a & b")
    assert "a &amp; b" in svg and "pi &lt;b&gt;" in svg and svg.count("<polyline") == 1
    assert "<svg" in curve_svg({}, "empty")
