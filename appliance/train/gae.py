"""Credit by token for tree-PPO: generalised advantages over the sampled tokens of one rollout; pure.

The branches of a rollout are not alternative futures but different context windows of one history. In *time* order
(the default) the token after a call's last one is the first of the next call, so that credit crosses compactions and
sub-agents; in *path* order (for comparison) each root-to-leaf path is a trajectory of its own and a shared token takes
the mean. Only sampled tokens take part, and the verifier's reward sits on the last of them. At γ = λ = 1 both give
R − V(s_t).

Shapes: n sampled tokens of the rollout, in the order of time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Index = NDArray[np.int64]
Order = Literal["time", "path"]


@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    """One rollout as the critic sees it.

    reward: the verifier's · chained (n,) bool: tokens that take part; the others (branches whose credit is
    broadcast) get the advantage of the last chained token before them · paths: for each leaf, the tokens on its path
    from the root down · bootstrap: V of the state after the last token; 0 when the verifier ran.
    """

    reward: float
    chained: NDArray[np.bool_]
    paths: Sequence[Index]
    bootstrap: float = 0.0


@dataclass(frozen=True, slots=True)
class GaeSettings:
    """gamma: discount a sampled token · lam: 1 is Monte Carlo, 0 the one-step error · order: which token is next."""

    gamma: float = 1.0
    lam: float = 1.0
    order: Order = "time"


def gae(rewards: Floats, values: Floats, settings: GaeSettings, bootstrap: float = 0.0) -> Floats:
    """(n,) advantages: A_t = Σ_k (γλ)^k δ_{t+k}, δ_t = r_t + γ V(s_{t+1}) − V(s_t) (GAE, arXiv 1506.02438, eq. 16)."""
    found = np.zeros(len(values))
    following, carried = bootstrap, 0.0
    for t in range(len(values) - 1, -1, -1):
        error = rewards[t] + settings.gamma * following - values[t]
        carried = error + settings.gamma * settings.lam * carried
        found[t] = carried
        following = values[t]
    return found


def credit(trajectory: Trajectory, values: Floats, settings: GaeSettings) -> tuple[Floats, Floats]:
    """(n,) advantages and (n,) returns A + V, the critic's targets, of one rollout's sampled tokens.

    Values outside `chained` are never read. Returns outside it are 0 and mean nothing.
    """
    by_order = _in_time if settings.order == "time" else _on_paths
    advantages = np.zeros(len(values))
    chained = np.flatnonzero(trajectory.chained)
    advantages[chained] = by_order(trajectory, chained, values, settings)
    returns = np.zeros(len(values))
    returns[chained] = advantages[chained] + values[chained]
    _broadcast(advantages, trajectory.chained)
    return advantages, returns


def _in_time(trajectory: Trajectory, chained: Index, values: Floats, settings: GaeSettings) -> Floats:
    return gae(_at_the_end(trajectory.reward, len(chained)), values[chained], settings, trajectory.bootstrap)


def _on_paths(trajectory: Trajectory, chained: Index, values: Floats, settings: GaeSettings) -> Floats:
    sums, counts = np.zeros(len(values)), np.zeros(len(values))
    for path in trajectory.paths:
        tokens = path[trajectory.chained[path]]
        rewards = _at_the_end(trajectory.reward, len(tokens))
        sums[tokens] += gae(rewards, values[tokens], settings, trajectory.bootstrap)
        counts[tokens] += 1
    means: Floats = sums[chained] / np.maximum(counts[chained], 1)
    return means


def _at_the_end(reward: float, count: int) -> Floats:
    rewards = np.zeros(count)
    rewards[-1:] = reward
    return rewards


def _broadcast(advantages: Floats, chained: NDArray[np.bool_]) -> None:
    """A token outside the chain takes the advantage of the chained one before it in time, or of the first one."""
    places = np.flatnonzero(chained)
    if len(places):
        outside = np.flatnonzero(~chained)
        before = np.searchsorted(places, outside) - 1
        advantages[outside] = advantages[places[np.maximum(before, 0)]]


def explained_variance(values: Floats, returns: Floats) -> float:
    """1 − Var(R − V) / Var(R): 1 for a perfect critic, 0 for a constant; 0 when the returns do not vary."""
    spread = float(np.var(returns)) if len(returns) else 0.0
    return 1.0 - float(np.var(returns - values)) / spread if spread > 0 else 0.0
