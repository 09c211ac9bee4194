"""Numbers of the curve view: one line a training step, one line a harness; pure, from rollouts as recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from appliance.advantage import is_flat
from appliance.report import HarnessResult, harness_result
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


def read_curve(
    rollouts: Sequence[Rollout], steps: Sequence[tuple[int, str, dict[str, float]]], num_steps: int
) -> Curve:
    """The curve of one run from all its rollouts and its recorded steps."""
    trained = [r for r in rollouts if r.plan.purpose is Purpose.TRAIN]
    tested = [r for r in rollouts if r.plan.purpose in EVALUATIONS]
    names = sorted({r.plan.harness for r in (*trained, *tested)})
    by_step: dict[int, list[Rollout]] = {}
    for r in trained:
        by_step.setdefault(r.plan.step, []).append(r)
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


def _step_line(step: int, rollouts: list[Rollout], state: str, metrics: dict[str, float]) -> StepLine:
    rewards: dict[str, list[float]] = {}
    groups: dict[str, list[Rollout]] = {}
    for r in rollouts:
        groups.setdefault(r.plan.group, []).append(r)
        if r.reward is not None:
            rewards.setdefault(plain_line(r.plan.harness), []).append(r.reward)
    graded = [x for found in rewards.values() for x in found]
    ended = [g for g in groups.values() if all(_has_ended(r) for r in g)]
    return StepLine(
        step=step,
        is_done=state == "done",
        reward=sum(graded) / len(graded) if graded else None,
        rewards={name: sum(found) / len(found) for name, found in rewards.items()},
        num_graded=len(graded),
        num_failed=sum(r.state is RolloutState.FAILED for r in rollouts),
        num_rollouts=len(rollouts),
        num_groups=len(groups),
        num_flat=sum(is_flat([r.reward for r in g]) for g in ended),
        metrics=metrics,
    )
