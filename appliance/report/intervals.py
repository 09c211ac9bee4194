"""Shares and means with 95 % intervals that keep what they promise, from outcomes grouped by task. Pure.

A task attempted several times is one draw from the pack, not several: attempts at one task resemble each other. So
every interval here is over *tasks*. Notation: outcomes maps a task to the rewards of its graded attempts; m tasks.

pass@k   chance that at least one of k attempts passes, unbiased from n ≥ k (Chen et al. 2021, arXiv 2107.03374, eq. 1)
pass^k   chance that all k attempts pass, unbiased likewise (Yao et al. 2024, arXiv 2406.12045, section 4.2)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import comb, sqrt

import numpy as np
from numpy.typing import NDArray

Z95 = 1.959964
RESAMPLES = 4000
Values = NDArray[np.float64]
Outcomes = Mapping[str, Sequence[float]]
"""Task → rewards in [0, 1] of its graded attempts."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % interval; `n` counts graded attempts, `tasks` the tasks they belong to."""

    value: float
    interval: tuple[float, float]
    n: int
    tasks: int


def is_pass(reward: float) -> bool:
    """A full reward; partial credit is not a pass."""
    return reward >= 1.0


def wilson(passed: float, total: float) -> tuple[float, float]:
    """95 % score interval of a share (Wilson 1927); both may be fractional, see `pass_at_1`."""
    p, z2 = passed / total, Z95**2
    centre = (p + z2 / (2 * total)) / (1 + z2 / total)
    half = Z95 * sqrt(p * (1 - p) / total + z2 / (4 * total**2)) / (1 + z2 / total)
    return max(0.0, centre - half), min(1.0, centre + half)


def pass_at_1(outcomes: Outcomes) -> Estimate | None:
    """Mean over tasks of the share of attempts that pass; None without any.

    With one attempt a task the interval is Wilson's. With several it is Wilson's at the *effective* number of draws,
    p(1 − p) divided by the variance of the mean between tasks (Kish 1965), never above the number of attempts.
    """
    shares = _per_task(outcomes, _share)
    if not len(shares):
        return None
    n = sum(len(rewards) for rewards in outcomes.values())
    p, tasks = float(shares.mean()), len(shares)
    variance = float(shares.var(ddof=1)) / tasks if tasks > 1 else 0.0
    effective = min(float(n), p * (1 - p) / variance) if variance > 0 else float(tasks)
    return Estimate(p, wilson(p * effective, effective), n, tasks)


def pass_at_k(outcomes: Outcomes, k: int) -> Estimate | None:
    """pass@k over the tasks with at least k graded attempts; None when there is none."""
    return _of_tasks(outcomes, k, lambda n, c: 1.0 - comb(n - c, k) / comb(n, k))


def pass_hat_k(outcomes: Outcomes, k: int) -> Estimate | None:
    """pass^k over the tasks with at least k graded attempts; None when there is none."""
    return _of_tasks(outcomes, k, lambda n, c: comb(c, k) / comb(n, k))


def mean_reward(outcomes: Outcomes) -> Estimate | None:
    """Mean over tasks of the mean reward, with a bootstrap interval over tasks, cut to [0, 1]."""
    means = _per_task(outcomes, lambda rewards: sum(rewards) / len(rewards))
    return bootstrap(means, sum(len(r) for r in outcomes.values())) if len(means) else None


def paired_gain(before: Outcomes, after: Outcomes) -> Estimate | None:
    """Mean over the tasks graded in both of Pass@1 after − before, with a bootstrap interval over tasks.

    Pairing by task removes the spread between easy and hard tasks. None with fewer than two common tasks.
    """
    tasks = sorted(t for t in before.keys() & after.keys() if before[t] and after[t])
    if len(tasks) < 2:
        return None
    gains = np.array([_share(after[t]) - _share(before[t]) for t in tasks])
    return bootstrap(gains, sum(len(before[t]) + len(after[t]) for t in tasks), low=-1.0)


def _share(rewards: Sequence[float]) -> float:
    return sum(map(is_pass, rewards)) / len(rewards)


def _per_task(outcomes: Outcomes, value: Callable[[Sequence[float]], float]) -> Values:
    return np.array([value(rewards) for rewards in outcomes.values() if rewards])


def _of_tasks(outcomes: Outcomes, k: int, value: Callable[[int, int], float]) -> Estimate | None:
    if k < 1:
        raise ValueError(f"k is {k}; it counts attempts and is at least 1")
    enough = [rewards for rewards in outcomes.values() if len(rewards) >= k]
    if not enough:
        return None
    values = np.array([value(len(r), sum(map(is_pass, r))) for r in enough])
    p, tasks = float(values.mean()), len(values)
    variance = float(values.var(ddof=1)) / tasks if tasks > 1 else 0.0
    effective = p * (1 - p) / variance if variance > 0 else float(tasks)
    return Estimate(p, wilson(p * effective, effective), sum(map(len, enough)), tasks)


def bootstrap(values: Values, n: int, low: float = 0.0, seed: int = 0) -> Estimate:
    """Mean of one value a task with a 95 % bootstrap interval, cut to [low, 1].

    The plain percentile interval is too narrow for few tasks (it lacks m / (m − 1) and Student's tails), so it is
    stretched about the mean by both factors (Hesterberg 2015, arXiv 1411.5279, section 3.3). Equal values say nothing
    of their spread; then the rule of three bounds how many tasks could be different: 3 / m.
    """
    mean, tasks = float(values.mean()), len(values)
    if tasks < 2:
        return Estimate(mean, (low, 1.0), n, tasks)
    if not values.std():
        below, above = -3.0 / tasks, 3.0 / tasks
    else:
        drawn = np.random.default_rng(seed).integers(0, tasks, (RESAMPLES, tasks))
        quantiles = np.quantile(values[drawn].mean(axis=1), [0.025, 0.975]) - mean
        below, above = (float(q) * student_95(tasks - 1) / Z95 * sqrt(tasks / (tasks - 1)) for q in quantiles)
    return Estimate(mean, (max(low, mean + below), min(1.0, mean + above)), n, tasks)


def student_95(df: int) -> float:
    """Two-sided 95 % quantile of Student's t, by the Cornish–Fisher expansion (within 0.005 from 4 degrees on)."""
    exact = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}
    if df in exact:
        return exact[df]
    z = Z95
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return float(z + sum(term / df ** (i + 1) for i, term in enumerate(terms)))
