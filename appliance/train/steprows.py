"""The rows of one step, from the record alone: grades → advantages by group, calls → trees → rows. No torch, no writes.

The trainer trains on what comes out of here and `corral replay` makes it again, so whatever decides about rows or
advantages belongs here and reads nothing but the record and the run's configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from appliance.advantage import grpo, is_flat
from appliance.branches import said
from appliance.config import RunConfig
from appliance.lossinputs import Recovered, recovered
from appliance.store import Store
from appliance.train.batch import Sequence as TrainingRow
from appliance.types import Rollout, RolloutState
from appliance.utilisation import Use, use


@dataclass(frozen=True, slots=True)
class StepRows:
    """What a step trains on, its metrics, and what is worth telling as (rollout id or None, message)."""

    rows: list[TrainingRow]
    metrics: dict[str, float]
    told: list[tuple[int | None, str]]


def step_rows(store: Store, rollouts: Sequence[Rollout], config: RunConfig) -> StepRows:
    """The rows of a step with their advantages, and what the step says of its rollouts.

    Groups of equal rewards have advantage 0 everywhere; their rows are left out, since they change nothing (E4).
    Negative advantages are multiplied by `train.negative_weight`: most tokens of a failed rollout were right, and
    pushing them down as hard as the wrong ones wears a small policy out (LOG.md has the runs that show it).
    """
    advantages, metrics = advantages_of(rollouts)
    told: list[tuple[int | None, str]] = [(None, text) for text in _flat_groups(rollouts)]
    rows: list[TrainingRow] = []
    whole, num_rows = Use(), 0
    for rollout in rollouts:
        calls = said(store.calls(rollout.id), store.conversations(rollout.id))
        found = recovered(calls, config.branches)
        advantage = advantages[rollout.id]
        whole += use(calls, found, is_trained=advantage is not None)
        if advantage is None:
            continue
        told += [(rollout.id, f"rollout={rollout.id}: {text}") for text in _left_out(found)]
        num_rows += len(found.rows)
        if advantage < 0:
            advantage *= config.train.negative_weight
        if advantage:
            rows += [TrainingRow(r.ids, r.mask, r.behaviour_logprobs, advantage, rollout.id) for r in found.rows]
    graded = sum(r.reward is not None for r in rollouts)
    metrics |= whole.metrics() | {"rows": float(num_rows), "rows_per_rollout": num_rows / max(graded, 1)}
    return StepRows(rows, metrics, told)


def _left_out(found: Recovered) -> list[str]:
    return [f"a call is not trained: {reason}" for reason in sorted(set(found.left_out.values()))]


def _flat_groups(rollouts: Sequence[Rollout]) -> list[str]:
    return [
        f"group {group}: the rewards of its {len(members)} rollouts do not differ, so they change nothing"
        for group, members in grouped(rollouts).items()
        if is_flat([r.reward for r in members])
    ]


def grouped(rollouts: Sequence[Rollout]) -> dict[str, list[Rollout]]:
    """Rollouts by the key of their group."""
    groups: dict[str, list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.plan.group, []).append(rollout)
    return groups


def advantages_of(rollouts: Sequence[Rollout]) -> tuple[dict[int, float | None], dict[str, float]]:
    """Rollout id → advantage within its group (None when it failed), and the step's reward metrics."""
    groups = grouped(rollouts)
    found: dict[int, float | None] = {}
    for members in groups.values():
        found |= {r.id: a for r, a in zip(members, grpo([r.reward for r in members]), strict=True)}
    rewards = [r.reward for r in rollouts if r.reward is not None]
    flat = sum(is_flat([r.reward for r in members]) for members in groups.values())
    mean = sum(rewards) / len(rewards) if rewards else 0.0
    spread = (sum((r - mean) ** 2 for r in rewards) / len(rewards)) ** 0.5 if rewards else 0.0
    return found, {
        "reward": mean, "reward_std": spread, "pass": sum(r >= 1.0 for r in rewards) / max(len(rewards), 1),
        "frac_reward_zero_std": flat / max(len(groups), 1), "groups": float(len(groups)),
        "failed_rollouts": float(sum(r.state is RolloutState.FAILED for r in rollouts)),
    }  # fmt: skip
