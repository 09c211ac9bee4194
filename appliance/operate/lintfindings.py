"""What the linter found of a task, and the report that counts it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

SLOW_SHARE = 0.5
"""A task is slow when its grader or its oracle takes more than this share of its time limit."""


@dataclass(slots=True)
class Findings:
    """What was seen of one task. A reward is None where the grader gave none; `problems` maps a kind to its reason."""

    task: str
    null: float | None = None
    oracle: float | None = None
    problems: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    answer: dict[str, str] = field(default_factory=dict)  # path → hash of what the oracle made, changed or removed


@dataclass(frozen=True, slots=True)
class Graded:
    """One grading: the reward or why there is none, how long it took, whether that was too long, and its parts."""

    reward: float | None
    why: str
    seconds: float
    timed_out: bool = False
    parts: dict[str, float] = field(default_factory=dict)


def report(found: Sequence[Findings]) -> dict[str, Any]:
    """The promised object: means, and the tasks of each kind of problem with their reasons."""

    def mean(values: list[float | None]) -> float | None:
        graded = [v for v in values if v is not None]
        return sum(graded) / len(graded) if graded else None

    kinds = ("free", "impossible", "flaky", "forgeable", "slow", "no_oracle", "unchecked")
    by_kind = {kind: [f.task for f in found if kind in f.problems] for kind in kinds}
    return {
        "tasks": len(found),
        "oracle_mean": mean([f.oracle for f in found]),
        "null_mean": mean([f.null for f in found]),
        **by_kind,
        "reasons": {f.task: f.problems for f in found if f.problems},
    }


def note_difference(found: Findings, what: str, graded: Sequence[Graded]) -> None:
    """Different rewards of one workspace make a task flaky; a verdict that is not always in time makes it slow."""
    rewards = [g.reward for g in graded]
    late = sum(g.timed_out for g in graded)
    if late and len({g.reward for g in graded if not g.timed_out}) == 1:  # one verdict, not always in time
        found.problems.setdefault("slow", f"{what}: {late} of {len(graded)} gradings ran into the time limit")
    elif len(set(rewards)) > 1:
        shown = ", ".join("none" if r is None else f"{r:g}" for r in rewards)
        found.problems["flaky"] = f"{what} was graded {shown}"


def note_slow(found: Findings, who: str, seconds: float, limit_s: float) -> None:
    """More than SLOW_SHARE of a time limit makes a task slow."""
    if seconds > SLOW_SHARE * limit_s:
        found.problems.setdefault("slow", f"{who} took {seconds:.1f} s of {limit_s:g} s")
