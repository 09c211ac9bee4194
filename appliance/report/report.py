"""Numbers that end a run: Pass@1 with intervals, paired gains, utilisation; pure, from rollouts as recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from appliance.report.intervals import paired_gain, pass_at_1
from appliance.types import Purpose, Rollout, RolloutState


@dataclass(frozen=True, slots=True)
class HarnessResult:
    """One line of the closing table. Shares in [0, 1]; an interval is (low, high); None without any grade."""

    name: str
    before: float | None
    before_interval: tuple[float, float] | None
    after: float | None
    after_interval: tuple[float, float] | None
    gain: float | None
    gain_interval: tuple[float, float] | None
    rollouts: int
    failures: dict[str, int]


def outcomes(rollouts: Sequence[Rollout]) -> dict[str, list[float]]:
    """Task → rewards of its graded rollouts; failed ones are in none."""
    found: dict[str, list[float]] = {}
    for r in rollouts:
        if r.state is RolloutState.GRADED and r.reward is not None:
            found.setdefault(r.plan.task, []).append(r.reward)
    return found


def harness_result(name: str, rollouts: Sequence[Rollout]) -> HarnessResult:
    """The closing line of one harness, from all rollouts of the run."""
    own = [r for r in rollouts if r.plan.harness == name]
    before = [r for r in own if r.plan.purpose is Purpose.EVAL_BEFORE]
    after = [r for r in own if r.plan.purpose is Purpose.EVAL_AFTER]
    first, second = pass_at_1(outcomes(before)), pass_at_1(outcomes(after))
    gain = paired_gain(outcomes(before), outcomes(after))
    return HarnessResult(
        name=name,
        before=first.value if first else None,
        before_interval=first.interval if first else None,
        after=second.value if second else None,
        after_interval=second.interval if second else None,
        gain=second.value - first.value if first and second else None,
        gain_interval=gain.interval if gain else None,
        rollouts=len(own),
        failures=dict(Counter(r.failure for r in own if r.failure)),
    )
