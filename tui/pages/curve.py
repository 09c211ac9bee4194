"""Numbers of the curve view: one line a training step, one line a harness; pure, from groups as recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from appliance.record.queries import GroupLine
from appliance.report.report import HarnessResult, harness_result
from appliance.types import Purpose, Rollout, RolloutState
from tui.text import plain_line

EVALUATIONS = (Purpose.EVAL_BEFORE, Purpose.EVAL_AFTER)


@dataclass(frozen=True, slots=True)
class StepLine:
    """One training step. `rewards` and `reward` are means over graded rollouts, absent or None without any.

    A flat group has ended with equal rewards: it has zero variance and moves nothing.
    """

    step: int
    is_done: bool
    reward: float | None
    rewards: Mapping[str, float]
    num_graded: int
    num_failed: int
    num_rollouts: int
    num_groups: int
    num_flat: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Curve:
    """What the curve view shows. `results` is empty until something was evaluated."""

    harnesses: tuple[str, ...] = ()
    steps: tuple[StepLine, ...] = ()
    num_steps: int = 0
    results: tuple[HarnessResult, ...] = ()
    evaluated: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Evaluation (`before`, `after`) → (rollouts ended, rollouts planned)."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of what the trainer measured, sorted."""
        return tuple(sorted({name for step in self.steps for name in step.metrics}))

    def series(self, metric: str) -> dict[str, list[tuple[int, float]]]:
        """Points of one metric, or, for ``, of the mean reward in each harness."""
        if metric:
            return {metric: [(s.step, s.metrics[metric]) for s in self.steps if metric in s.metrics]}
        return {n: [(s.step, s.rewards[n]) for s in self.steps if n in s.rewards] for n in self.harnesses}


def read_curve(
    groups: Sequence[GroupLine],
    tested: Sequence[Rollout],
    steps: Sequence[tuple[int, str, dict[str, float]]],
    num_steps: int,
) -> Curve:
    """The curve of one run from its training groups, its evaluation rollouts and its recorded steps."""
    names = sorted({g.harness for g in groups} | {r.plan.harness for r in tested})
    by_step: dict[int, list[GroupLine]] = {}
    for group in groups:
        by_step.setdefault(group.step, []).append(group)
    recorded = {step: (state, metrics) for step, state, metrics in steps}
    lines = [_step_line(step, found, *recorded.get(step, ("", {}))) for step, found in sorted(by_step.items())]
    return Curve(
        harnesses=tuple(plain_line(name) for name in names),
        steps=tuple(lines),
        num_steps=num_steps,
        results=tuple(harness_result(name, tested) for name in names) if tested else (),
        evaluated={
            str(purpose).removeprefix("eval_"): (sum(_has_ended(r) for r in own), len(own))
            for purpose in EVALUATIONS
            if (own := [r for r in tested if r.plan.purpose is purpose])
        },
    )


def _has_ended(rollout: Rollout) -> bool:
    return rollout.state in (RolloutState.GRADED, RolloutState.FAILED)


def _step_line(step: int, groups: Sequence[GroupLine], state: str, metrics: dict[str, float]) -> StepLine:
    totals: dict[str, tuple[float, int]] = {}
    for group in groups:
        if group.num_graded:
            total, number = totals.get(plain_line(group.harness), (0.0, 0))
            totals[plain_line(group.harness)] = (total + (group.total or 0.0), number + group.num_graded)
    num_graded = sum(number for _, number in totals.values())
    return StepLine(
        step=step,
        is_done=state == "done",
        reward=sum(total for total, _ in totals.values()) / num_graded if num_graded else None,
        rewards={name: total / number for name, (total, number) in totals.items()},
        num_graded=num_graded,
        num_failed=sum(g.num_failed for g in groups),
        num_rollouts=sum(g.num_rollouts for g in groups),
        num_groups=len(groups),
        num_flat=sum(g.is_flat for g in groups if g.has_ended),
        metrics=metrics,
    )
