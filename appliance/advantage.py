"""Advantages: one number a rollout, before any tree exists, so that no cut of a rollout can change it (E5).

Statistics run over the rollouts of one group (same step, task and harness). A rollout without a reward is in
neither mean nor std, and gets None (I5).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def grpo(rewards: Sequence[float | None]) -> list[float | None]:
    """(R − mean) / (std + 1e-6) over the graded rollouts of one group, ddof = 1 (GRPO, arXiv 2402.03300, eq. 3).

    A group with fewer than two grades, or with equal grades, has advantage exactly 0: equality is tested on the
    rewards, since a rounding residue in std would be divided into thousands.
    """
    graded = [r for r in rewards if r is not None]
    if is_flat(rewards):
        return [None if r is None else 0.0 for r in rewards]
    mean, std = float(np.mean(graded)), float(np.std(graded, ddof=1))
    return [None if r is None else (r - mean) / (std + 1e-6) for r in rewards]


def is_flat(rewards: Sequence[float | None]) -> bool:
    """True when a group teaches nothing: fewer than two grades, or all equal."""
    return len({r for r in rewards if r is not None}) < 2
