"""Numbers that end a run: Pass@1 with intervals, paired gains, utilisation; pure, from rollouts as recorded.

Pass@1: the share of graded rollouts with reward 1. Its 95 % interval is Wilson's (1927, eq. 4 with z = 1.96). The
gain's interval is a bootstrap over tasks, paired: a task is drawn with all its rollouts before and after.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from appliance.types import Purpose, Rollout, RolloutState

Z95 = 1.959964
RESAMPLES = 4000


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


def is_pass(rollout: Rollout) -> bool:
    """A full reward; partial credit is not a pass."""
    return rollout.reward is not None and rollout.reward >= 1.0


def pass_at_1(rollouts: Sequence[Rollout]) -> tuple[float | None, tuple[float, float] | None]:
    """(share passed, 95 % Wilson interval) over graded rollouts; failed ones count in neither."""
    graded = [r for r in rollouts if r.state is RolloutState.GRADED]
    if not graded:
        return None, None
    passed = sum(is_pass(r) for r in graded)
    return passed / len(graded), wilson(passed, len(graded))


def wilson(passed: int, total: int) -> tuple[float, float]:
    """95 % score interval of a share."""
    p, z2 = passed / total, Z95**2
    centre = (p + z2 / (2 * total)) / (1 + z2 / total)
    half = Z95 * ((p * (1 - p) / total + z2 / (4 * total**2)) ** 0.5) / (1 + z2 / total)
    return max(0.0, centre - half), min(1.0, centre + half)


def gain_interval(before: Sequence[Rollout], after: Sequence[Rollout], seed: int = 0) -> tuple[float, float] | None:
    """95 % bootstrap interval of Pass@1 after − before over the tasks graded in both; None with fewer than two."""
    first, second = _by_task(before), _by_task(after)
    tasks = sorted(first.keys() & second.keys())
    if len(tasks) < 2:
        return None
    differences = np.array([np.mean(second[t]) - np.mean(first[t]) for t in tasks])
    drawn = np.random.default_rng(seed).integers(0, len(tasks), (RESAMPLES, len(tasks)))
    low, high = np.quantile(differences[drawn].mean(axis=1), [0.025, 0.975])
    return float(low), float(high)


def _by_task(rollouts: Sequence[Rollout]) -> dict[str, list[bool]]:
    found: dict[str, list[bool]] = {}
    for r in rollouts:
        if r.state is RolloutState.GRADED:
            found.setdefault(r.plan.task, []).append(is_pass(r))
    return found


def harness_result(name: str, rollouts: Sequence[Rollout]) -> HarnessResult:
    """The closing line of one harness, from all rollouts of the run."""
    own = [r for r in rollouts if r.plan.harness == name]
    before = [r for r in own if r.plan.purpose is Purpose.EVAL_BEFORE]
    after = [r for r in own if r.plan.purpose is Purpose.EVAL_AFTER]
    share_before, interval_before = pass_at_1(before)
    share_after, interval_after = pass_at_1(after)
    both = share_before is not None and share_after is not None
    return HarnessResult(
        name=name,
        before=share_before,
        before_interval=interval_before,
        after=share_after,
        after_interval=interval_after,
        gain=share_after - share_before if both else None,  # type: ignore[operator]
        gain_interval=gain_interval(before, after),
        rollouts=len(own),
        failures=dict(Counter(r.failure for r in own if r.failure)),
    )
