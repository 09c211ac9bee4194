"""tree-PPO: credit by token from a critic on the same packs (PPO, arXiv 1707.06347; ClawGym II, arXiv 2608.16798).

    packs → V of every sampled token → advantages and returns in the order of time or of paths → policy and critic learn

Sampled tokens of one rollout may lie in several packs and rows; `times` puts them back in order. We differ from the
paper in that credit crosses forks by default (see gae.py), and in the clip and importance weights of loss.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from torch.optim import Optimizer

from appliance.train.batch import Packed, Sequence, pack, split
from appliance.train.critic import Critic, Targets, ValueMetrics
from appliance.train.gae import GaeSettings, Trajectory, credit
from appliance.train.policy import Policy
from appliance.train.update import Metrics, UpdateSettings, Watch, frozen_logprobs, joined, update

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PpoSettings:
    """is_warm_up: only the critic learns · negative_weight: factor on negative advantages."""

    update: UpdateSettings = field(default_factory=UpdateSettings)
    gae: GaeSettings = field(default_factory=GaeSettings)
    negative_weight: float = 1.0
    is_warm_up: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The rows of a step, with their `times`, and each rollout's trajectory by its number."""

    sequences: Many[Sequence]
    trajectories: Mapping[int, Trajectory]


def learn(
    policy: Policy,
    critic: Critic,
    batch: Batch,
    optimizer: Optimizer,
    settings: PpoSettings,
    watch: Watch | None = None,
) -> tuple[Metrics | None, ValueMetrics]:
    """One batch of tree-PPO. Advantages, values and π_old are those of the batch's start for all its minibatches.

    No Metrics in a warm-up: the policy is not computed.
    """
    how = settings.update
    parts = [pack(part, how.row_tokens) for part in how.ranks.dealt(split(batch.sequences, how.minibatches))]
    trajectories: Mapping[int, Trajectory] = how.ranks.told(batch.trajectories)
    values = [[critic.values(p) for p in packs] for packs in parts]
    flat = [(p, v) for packs, own in zip(parts, values, strict=True) for p, v in zip(packs, own, strict=True)]
    credits = credit_by_term([p for p, _ in flat], [v for _, v in flat], trajectories, settings)
    ahead = iter(credits)
    credited = [[next(ahead) for _ in packs] for packs in parts]
    metrics = None
    if not settings.is_warm_up:
        several = len(parts) > 1
        old = [[frozen_logprobs(policy, p, how) for p in packs] if several else None for packs in parts]
        metrics = joined(
            [
                update(policy, [c[0] for c in own], optimizer, how, held, watch)
                for own, held in zip(credited, old, strict=True)
            ]
        )
    return metrics, critic.learn(parts, [[c[1] for c in own] for own in credited], settings.is_warm_up)


def credit_by_term(
    packs: Many[Packed], values: Many[Floats], trajectories: Mapping[int, Trajectory], settings: PpoSettings
) -> list[tuple[Packed, Targets]]:
    """Each pack with advantages by term, and what its critic learns; a rollout's terms are gathered from all packs."""
    if not packs:  # a rank that was dealt nothing
        return []
    rollouts = np.concatenate([p.rollouts for p in packs])
    times = np.concatenate([p.times for p in packs])
    own = np.concatenate(list(values))
    advantages, returns = np.zeros(len(own)), np.zeros(len(own))
    chained = np.zeros(len(own), dtype=np.bool_)
    for rollout in np.unique(rollouts):
        here = np.flatnonzero(rollouts == rollout)
        trajectory = trajectories[int(rollout)]
        in_order = np.zeros(len(trajectory.chained))
        in_order[times[here]] = own[here]
        found, targets = credit(trajectory, in_order, settings.gae)
        advantages[here], returns[here] = found[times[here]], targets[times[here]]
        chained[here] = trajectory.chained[times[here]]
    advantages[advantages < 0] *= settings.negative_weight
    edges = np.cumsum([p.num_terms for p in packs])[:-1]
    parts = zip(packs, values, *(np.split(a, edges) for a in (advantages, returns, chained)), strict=True)
    return [(replace(p, advantages=a.astype(np.float32)), Targets(v, r, c)) for p, v, a, r, c in parts]
