"""Advantages: one number a rollout, before any tree exists, so that no cut of a rollout can change it (E5).

Statistics run over the rollouts of one group (same step, task and harness). A rollout without a reward is in
neither mean nor std, and gets None (I5). A group with fewer than two grades, or with equal grades, has advantage
exactly 0: equality is tested on the rewards, since a rounding residue in std would be divided into thousands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Rewards = Sequence[float | None]
Advantages = list[float | None]


def grpo(rewards: Rewards) -> Advantages:
    """(R − mean) / (std + 1e-6), ddof = 1 (GRPO, arXiv 2402.03300, eq. 3)."""
    return _centred(rewards, lambda graded: 1.0 / (float(np.std(graded, ddof=1)) + 1e-6))


def dr_grpo(rewards: Rewards) -> Advantages:
    """R − mean: no division by the group's spread (Dr. GRPO, arXiv 2503.20783, eq. 4)."""
    return _centred(rewards, lambda graded: 1.0)


def rloo(rewards: Rewards) -> Advantages:
    """n/(n − 1) · (R − mean), which is R minus the mean of the others (RLOO, arXiv 2402.14740, eq. 8)."""
    return _centred(rewards, lambda graded: len(graded) / (len(graded) - 1))


def _centred(rewards: Rewards, scale: Callable[[list[float]], float]) -> Advantages:
    if is_flat(rewards):
        return [None if r is None else 0.0 for r in rewards]
    graded = [r for r in rewards if r is not None]
    mean, factor = float(np.mean(graded)), scale(graded)
    return [None if r is None else (r - mean) * factor for r in rewards]


def is_flat(rewards: Rewards) -> bool:
    """True when a group teaches nothing: fewer than two grades, or all equal."""
    return len({r for r in rewards if r is not None}) < 2


def shaped_for_length(reward: float, num_tokens: int, soft_tokens: int, hard_tokens: int) -> float:
    """The reward minus up to 1 for a long rollout: nothing at `soft_tokens`, 1 from `hard_tokens` on, linear between.

    DAPO's soft overlong punishment (arXiv 2503.14476, eq. 13) over all sampled tokens of a rollout; DAPO counts those
    of its one response. `hard_tokens` of 0 leaves the reward as it is.
    """
    if not hard_tokens:
        return reward
    over = (num_tokens - soft_tokens) / (hard_tokens - soft_tokens)
    return reward - min(1.0, max(0.0, over))
