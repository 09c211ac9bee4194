"""One batch becomes optimiser updates: forward over the packs, the loss, its gradient, a bounded step.

Invariant (I7, E9): the gradient is the sum over all terms divided by their number, so that packs, their order and
their size do not matter. An update with a NaN or infinity changes nothing and raises.

Shapes: M loss terms of a pack.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from appliance.errors import TrainingError
from appliance.system.files import new_file
from appliance.train.adapters import REFERENCE, using
from appliance.train.batch import Packed, Sequence, pack, split
from appliance.train.loss import Loss, LossSettings, Terms, clip_higher, gspo, kl_k2
from appliance.train.policy import Policy
from appliance.train.ranks import Ranks

Watch = Callable[[NDArray[np.int64], NDArray[np.float32]], None]
"""Told the rollout and |log π_old − log μ| of each term of an update, before its step; raises to stop it."""


@dataclass(frozen=True, slots=True)
class UpdateSettings:
    """policy_loss: a function of loss.py · temperature: the sampler's · max_grad_norm: a longer gradient is scaled

    down to it · minibatches: updates a batch, each on whole rollouts · row_tokens: trie tokens computed at once ·
    kl_weight: of k2 to the reference, which must then be an adapter of the policy named `adapters.REFERENCE` ·
    ranks: who shares the work; rollouts are never split between them either.
    """

    loss: LossSettings = field(default_factory=LossSettings)
    policy_loss: Loss = clip_higher
    temperature: float = 1.0
    max_grad_norm: float = 1.0
    minibatches: int = 1
    row_tokens: int = 4096
    kl_weight: float = 0.0
    ranks: Ranks = field(default_factory=Ranks)


@dataclass(frozen=True, slots=True)
class Metrics:
    """What one update did; means are over its terms, sampled tokens each counted once a rollout.

    kl: k2 to the reference, 0 without one · logprob_gap: mean |log π_old − log μ|, nats · entropy: −mean log π_old,
    an estimate · the shares, mean_ratio, mean_importance, approx_kl: see loss.Diagnostics · flat_tokens /
    unique_tokens bounds what sharing can save.
    """

    loss: float
    grad_norm: float
    kl: float
    clip_share: float
    clip_low_share: float
    clip_high_share: float
    mean_ratio: float
    mean_importance: float
    approx_kl: float
    logprob_gap: float
    logprob_gap_max: float
    entropy: float
    num_terms: int
    unique_tokens: int
    flat_tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class Frozen:
    """What does not move while an update is computed; (M,) each. old_logprobs: None where π_old is π itself ·

    log_ratios, shares: see loss.Terms; for a loss on rollouts only.
    """

    old_logprobs: Tensor | None = None
    log_ratios: Tensor | None = None
    shares: Tensor | None = None


def make_optimizer(policy: Policy, learning_rate: float, kind: str = "auto") -> Optimizer:
    """AdamW without weight decay over the adapter, as train.optimizer says.

    `adamw` is torch's in fp32 (auto on a CPU); `adamw8bit` (auto elsewhere) and `paged_adamw8bit` are bitsandbytes'.
    """
    if kind == "adamw" or (kind == "auto" and policy.device.type == "cpu"):
        return torch.optim.AdamW(policy.parameters(), lr=learning_rate, weight_decay=0.0)
    import bitsandbytes as bnb

    made = bnb.optim.PagedAdamW8bit if kind == "paged_adamw8bit" else bnb.optim.AdamW8bit  # type: ignore[attr-defined]
    optimizer: Optimizer = made(policy.parameters(), lr=learning_rate, weight_decay=0.0)
    return optimizer


def save_optimizer(optimizer: Optimizer, path: Path) -> None:
    """Writes the optimiser's state, whole or not at all."""
    with new_file(path) as temporary:
        torch.save(optimizer.state_dict(), temporary)


def load_optimizer(optimizer: Optimizer, path: Path) -> None:
    """Reads back what `save_optimizer` wrote, so that the next update is the one that would have come (E14)."""
    try:
        optimizer.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    except (OSError, RuntimeError, ValueError, KeyError, EOFError, pickle.UnpicklingError) as error:
        raise TrainingError(f"{path}: unreadable optimiser state: {error}", "resume from an earlier version") from error


def learn(
    policy: Policy,
    sequences: Many[Sequence],
    optimizer: Optimizer,
    settings: UpdateSettings,
    watch: Watch | None = None,
) -> Metrics:
    """One batch: `settings.minibatches` updates on whole rollouts, all against the policy at its start (π_old)."""
    own = settings.ranks.dealt(split(sequences, settings.minibatches))
    parts = [pack(part, settings.row_tokens) for part in own]
    if len(parts) == 1:
        return update(policy, parts[0], optimizer, settings, watch=watch)
    old = [[frozen_logprobs(policy, p, settings) for p in packs] for packs in parts]
    return joined([update(policy, p, optimizer, settings, o, watch) for p, o in zip(parts, old, strict=True)])


def update(
    policy: Policy,
    packs: Many[Packed],
    optimizer: Optimizer,
    settings: UpdateSettings,
    old_logprobs: Many[Tensor] | None = None,
    watch: Watch | None = None,
) -> Metrics:
    """One optimiser update on all `packs`. Without `old_logprobs` (one (M,) tensor a pack), π_old is π itself.

    A gradient of exactly zero (all advantages 0) takes no step: momentum alone must not move the policy. A NaN or
    infinite loss or gradient raises TrainingError and leaves parameters and optimiser as they were.
    """
    optimizer.zero_grad(set_to_none=True)
    metrics = accumulate(policy, packs, settings, old_logprobs, watch)
    settings.ranks.add_up(policy.parameters())
    grad_norm = bounded(policy.parameters(), settings.max_grad_norm)
    refuse_nan(metrics.loss, grad_norm)
    if grad_norm > 0:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return replace(metrics, grad_norm=grad_norm)


def accumulate(
    policy: Policy,
    packs: Many[Packed],
    settings: UpdateSettings,
    old_logprobs: Many[Tensor] | None = None,
    watch: Watch | None = None,
) -> Metrics:
    """Adds the gradient of the mean loss over all terms of all packs; `grad_norm` of what it returns is 0 still.

    `watch` is told the gaps once all packs are through, so that it can stop the update before its step.
    """
    total = sum(settings.ranks.gathered(sum(p.num_terms for p in packs)))
    if not total:
        raise TrainingError("the batch has no trained token", "see why rollouts failed: corral status")
    frozen = [Frozen(old) for old in old_logprobs] if old_logprobs is not None else [Frozen()] * len(packs)
    if settings.policy_loss is gspo:
        frozen = _with_rollout_ratios(policy, packs, frozen, settings)
    measured, gaps = [], []
    for packed, held in zip(packs, frozen, strict=True):
        metrics, gap = _accumulate(policy, packed, held, settings, total)
        measured.append(metrics)
        gaps.append(gap)
    told = settings.ranks.gathered((measured, [p.rollouts for p in packs], gaps))
    if watch is not None:
        rollouts = [part for _, parts, _ in told for part in parts]
        watch(np.concatenate(rollouts), np.concatenate([gap for _, _, parts in told for gap in parts]))
    return joined([metrics for parts, _, _ in told for metrics in parts])


def _accumulate(
    policy: Policy, packed: Packed, frozen: Frozen, settings: UpdateSettings, total: int
) -> tuple[Metrics, NDArray[np.float32]]:
    """Adds one pack's share of the gradient; its metrics, and |log π_old − log μ| of each term."""
    reference = _reference_logprobs(policy, packed, settings)
    logprobs = policy.logprobs(packed, settings.temperature)
    old = logprobs.detach() if frozen.old_logprobs is None else frozen.old_logprobs
    behaviour = torch.from_numpy(packed.behaviour_logprobs).to(policy.device)
    advantages = torch.from_numpy(packed.advantages).to(policy.device)
    terms = Terms(logprobs, old, behaviour, advantages, frozen.log_ratios, frozen.shares)
    losses, diagnostics = settings.policy_loss(terms, settings.loss)
    kl = torch.zeros_like(losses) if reference is None else kl_k2(logprobs, reference)
    losses = losses + settings.kl_weight * kl
    _refuse_nan_terms(losses, packed)
    (losses.sum() / total).backward()  # type: ignore[no-untyped-call]
    gap = (old - behaviour).abs()
    metrics = Metrics(
        loss=float(losses.detach().mean()),
        grad_norm=0.0,
        kl=float(kl.detach().mean()),
        **asdict(diagnostics),
        logprob_gap=float(gap.mean()),
        logprob_gap_max=float(gap.max()),
        entropy=-float(old.mean()),
        num_terms=packed.num_terms,
        unique_tokens=packed.num_tokens,
        flat_tokens=packed.num_flat_tokens,
    )
    return metrics, gap.cpu().numpy()


def bounded(parameters: Many[torch.nn.Parameter], max_grad_norm: float) -> float:
    """Scales the gradient down to `max_grad_norm`; returns the norm it had."""
    return float(torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm))


def refuse_nan(loss: float, grad_norm: float) -> None:
    """TrainingError for a loss or gradient that is not finite; called before any step is taken."""
    if not (math.isfinite(loss) and math.isfinite(grad_norm)):
        raise TrainingError(
            f"loss {loss}, gradient norm {grad_norm}: no step taken, the last version stays",
            "lower train.learning_rate and resume from the last version",
        )


def _refuse_nan_terms(losses: Tensor, packed: Packed) -> None:
    bad = ~torch.isfinite(losses.detach()).cpu().numpy()
    if bad.any():
        rollouts = ", ".join(map(str, np.unique(packed.rollouts[bad])[:8]))
        raise TrainingError(
            f"the loss of {int(bad.sum())} of {len(bad)} tokens is not finite (rollout {rollouts}): no step taken, the "
            "last version stays",
            "lower train.learning_rate and resume from the last version",
        )


def frozen_logprobs(policy: Policy, packed: Packed, settings: UpdateSettings) -> Tensor:
    """(M,) log π of a pack, without gradient."""
    with torch.no_grad():
        return policy.logprobs(packed, settings.temperature)


def _reference_logprobs(policy: Policy, packed: Packed, settings: UpdateSettings) -> Tensor | None:
    if not settings.kl_weight:
        return None
    with using(policy, REFERENCE):
        return frozen_logprobs(policy, packed, settings)


def _with_rollout_ratios(
    policy: Policy, packs: Many[Packed], frozen: Many[Frozen], settings: UpdateSettings
) -> list[Frozen]:
    """Adds what a loss on rollouts needs: each rollout's mean log ratio over all packs, and its terms' shares."""
    rollouts = np.concatenate([np.zeros(0, np.int64), *(p.rollouts for p in packs)])
    names, which, counts = np.unique(rollouts, return_inverse=True, return_counts=True)
    num_terms, num_rollouts = map(sum, zip(*settings.ranks.gathered((len(rollouts), len(names))), strict=True))
    if not packs:
        return []
    if all(f.old_logprobs is None for f in frozen):
        ratios = np.zeros(len(rollouts))
    else:
        ratios = np.concatenate(
            [
                (frozen_logprobs(policy, p, settings) - f.old_logprobs).cpu().numpy().astype(np.float64)
                for p, f in zip(packs, frozen, strict=True)
                if f.old_logprobs is not None
            ]
        )
    means = np.bincount(which, ratios) / counts
    shares = num_terms / (num_rollouts * counts)
    edges = np.cumsum([p.num_terms for p in packs])[:-1]
    return [
        replace(held, log_ratios=_tensor(means[part], policy), shares=_tensor(shares[part], policy))
        for held, part in zip(frozen, np.split(which, edges), strict=True)
    ]


def _tensor(values: NDArray[np.float64], policy: Policy) -> Tensor:
    return torch.from_numpy(values.astype(np.float32)).to(policy.device)


def joined(parts: Many[Metrics]) -> Metrics:
    """Means weighted by terms, counts added, maxima kept."""
    total = sum(m.num_terms for m in parts)

    def mean(name: str) -> float:
        return math.fsum(getattr(m, name) * m.num_terms for m in parts) / total

    means = {f.name: mean(f.name) for f in fields(Metrics) if f.type == "float"}
    counts = {f.name: sum(getattr(m, f.name) for m in parts) for f in fields(Metrics) if f.type == "int"}
    worst = max(m.logprob_gap_max for m in parts)
    return Metrics(**{**means, **counts, "logprob_gap_max": worst})
