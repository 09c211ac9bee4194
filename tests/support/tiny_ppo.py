"""A batch for tree-PPO and a critic on the tiny policy: shared by the tests of one rank and of several."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from appliance.train.batch import Sequence
from appliance.train.critic import Critic, CriticSettings
from appliance.train.gae import Trajectory
from appliance.train.policy import Policy
from appliance.train.ppo import Batch
from appliance.train.ranks import Ranks
from tests.support.tiny_policy import forest

PLAIN = CriticSettings(clip=0.0, max_grad_norm=1e9)


def a_batch(sequences: list[Sequence] | None = None) -> Batch:
    """The forest's rows with their tokens numbered in time, row after row, and rewards 0.2 · rollout."""
    timed: list[Sequence] = []
    counts: dict[int, int] = {}
    paths: dict[int, list[np.ndarray]] = {}
    for s in sequences if sequences is not None else forest():
        first = counts.get(s.rollout, 0)
        own = np.arange(first, first + int(s.mask.sum()))
        times = np.zeros(len(s.ids), np.int64)
        times[s.mask] = own
        counts[s.rollout] = first + len(own)
        paths.setdefault(s.rollout, []).append(own)
        timed.append(replace(s, times=times))
    trajectories = {r: Trajectory(0.2 * r, np.ones(n, np.bool_), paths[r]) for r, n in counts.items()}
    return Batch(timed, trajectories)


def a_critic(policy: Policy, settings: CriticSettings = PLAIN, ranks: Ranks | None = None) -> Critic:
    """Shaken, so that its values are far from 0 and both halves of its adapter have a gradient."""
    critic = Critic(policy, settings, 1, ranks)
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in critic.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return critic
