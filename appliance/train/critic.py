"""The critic of tree-PPO: a value head over an adapter of its own on the policy's quantised base.

It reads the same packs as the policy: V(s_t) of a loss term is read at the token before it, and computed once a trie
token however many rollouts share it. Policy and critic share no trained number, so that each has its own optimiser and
the critic can be warmed up alone.

Shapes: M loss terms of a pack · D hidden size.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence as Many
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from appliance.errors import TrainingError
from appliance.system.files import new_file
from appliance.train.adapters import CRITIC, add_critic, parameters_of, using
from appliance.train.batch import Packed
from appliance.train.gae import explained_variance
from appliance.train.loss import value_loss
from appliance.train.policy import Policy
from appliance.train.ranks import Ranks
from appliance.train.update import bounded, refuse_nan

Floats = NDArray[np.float64]
WARM_UP_PASSES = 4
"""A warm-up goes over its batch this many times as often as a later step."""


@dataclass(frozen=True, slots=True)
class CriticSettings:
    """learning_rate · clip: how far a value may move from what it was at the start of the batch, 0 for any distance ·

    updates: passes over a batch · max_grad_norm: as the policy's.
    """

    learning_rate: float = 1e-3
    clip: float = 0.2
    updates: int = 1
    max_grad_norm: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Targets:
    """What the critic learns from one pack: (M,) each. chained: terms that have a return; the others teach nothing."""

    old_values: Floats
    returns: Floats
    chained: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ValueMetrics:
    """value_loss, value_clip_share: means over the chained terms at the last pass · value_grad_norm: before bounding ·

    explained_variance: of the returns, by the values the advantages were computed with.
    """

    value_loss: float
    value_clip_share: float
    value_grad_norm: float
    explained_variance: float


class Critic:
    """Value head, adapter and their optimiser. The head starts at zero: V = 0 everywhere."""

    def __init__(self, policy: Policy, settings: CriticSettings, seed: int, ranks: Ranks | None = None) -> None:
        add_critic(policy, seed)
        self._ranks = ranks or Ranks()
        self.settings = settings
        self._policy = policy
        causal: Any = policy.model.get_base_model()
        size = int(causal.config.hidden_size)
        self.head = nn.Linear(size, 1).to(policy.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.optimizer = torch.optim.AdamW(self.parameters(), lr=settings.learning_rate, weight_decay=0.0)

    def parameters(self) -> list[nn.Parameter]:
        """Adapter and head, in a fixed order."""
        return [*parameters_of(self._policy, CRITIC), *self.head.parameters()]

    def values(self, packed: Packed) -> Floats:
        """(M,) V of the state before each term's token, without gradient."""
        with using(self._policy, CRITIC), torch.no_grad():
            found: Floats = self._values(packed).double().cpu().numpy()
            return found

    def learn(self, parts: Many[Many[Packed]], targets: Many[Many[Targets]], is_warm_up: bool = False) -> ValueMetrics:
        """`settings.updates` passes over the minibatches `parts`; every value is held near the same old one.

        In a warm-up more of them, and values move freely: they start at 0, far from any return, and nobody uses them.
        """
        passes = self.settings.updates * (WARM_UP_PASSES if is_warm_up else 1)
        clip = 0.0 if is_warm_up else self.settings.clip
        old, returns = self._all_chained([t for part in targets for t in part])
        losses = clipped = grad_norm = 0.0
        for _ in range(passes if len(returns) else 0):
            losses = clipped = 0.0
            for packs, own in zip(parts, targets, strict=True):
                lost, held, grad_norm = self._update(packs, own, clip)
                losses, clipped = losses + lost, clipped + held
        count = max(len(returns), 1)
        return ValueMetrics(losses / count, clipped / count, grad_norm, explained_variance(old, returns))

    def _all_chained(self, targets: Many[Targets]) -> tuple[Floats, Floats]:
        """Old values and returns of the chained terms of all ranks."""
        own = [(t.old_values[t.chained], t.returns[t.chained]) for t in targets]
        told = [pair for pairs in self._ranks.gathered(own) for pair in pairs]
        nothing = np.zeros(0)
        return np.concatenate([nothing, *(v for v, _ in told)]), np.concatenate([nothing, *(r for _, r in told)])

    def _update(self, packs: Many[Packed], targets: Many[Targets], clip: float) -> tuple[float, float, float]:
        """One optimiser step on the mean loss of the chained terms; (summed loss, clipped terms, gradient norm)."""
        total = sum(self._ranks.gathered(sum(int(t.chained.sum()) for t in targets)))
        self.optimizer.zero_grad(set_to_none=True)
        sums = [self.accumulate(p, t, total, clip) for p, t in zip(packs, targets, strict=True) if t.chained.any()]
        told = [s for own in self._ranks.gathered(sums) for s in own]
        losses, clipped = (sum(s[i] for s in told) for i in (0, 1))
        self._ranks.add_up(self.parameters())
        grad_norm = bounded(self.parameters(), self.settings.max_grad_norm) if total else 0.0
        refuse_nan(losses, grad_norm)
        if grad_norm > 0:
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return losses, clipped, grad_norm

    def accumulate(self, packed: Packed, targets: Targets, total: int, clip: float) -> tuple[float, float]:
        """Adds one pack's share of the gradient of the mean value loss; (summed loss, clipped terms)."""
        chained = torch.from_numpy(targets.chained).to(self._policy.device)
        with using(self._policy, CRITIC):
            values = self._values(packed)[chained]
            losses, held = value_loss(
                values, self._tensor(targets.old_values)[chained], self._tensor(targets.returns)[chained],
                clip,
            )  # fmt: skip
            (losses.sum() / total).backward()  # type: ignore[no-untyped-call]
        return float(losses.detach().sum()), float(held.sum())

    def _values(self, packed: Packed) -> Tensor:
        hidden = self._policy.hidden(packed)[torch.from_numpy(packed.predecessors).to(self._policy.device)]  # (M, D)
        values: Tensor = self.head(hidden.float())[:, 0]
        return values

    def _tensor(self, values: Floats) -> Tensor:
        return torch.from_numpy(values.astype(np.float32)).to(self._policy.device)

    def save(self, path: Path) -> None:
        """Writes head, adapter and optimiser, whole or not at all."""
        adapter = [p.detach().cpu() for p in parameters_of(self._policy, CRITIC)]
        state = {"adapter": adapter, "head": self.head.state_dict(), "optimizer": self.optimizer.state_dict()}
        with new_file(path) as temporary:
            torch.save(state, temporary)

    def load(self, path: Path) -> None:
        """Reads back what `save` wrote, so that the next update is the one that would have come (E14)."""
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            self.head.load_state_dict(state["head"])
            self.optimizer.load_state_dict(state["optimizer"])
            with torch.no_grad():
                for mine, saved in zip(parameters_of(self._policy, CRITIC), state["adapter"], strict=True):
                    mine.copy_(saved)
        except (OSError, RuntimeError, ValueError, KeyError, EOFError, pickle.UnpicklingError) as error:
            raise TrainingError(f"{path}: unreadable critic: {error}", "resume from an earlier version") from error
