"""One batch becomes optimiser updates: forward over the packs, the loss, its gradient, a bounded step.

Invariant (I7, E9): the gradient is the sum over all terms divided by their number, so that packs, their order and
their size do not matter. An update with a NaN or infinity changes nothing and raises.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence as Many
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.optim import Optimizer

from appliance.errors import TrainingError
from appliance.train.batch import Packed, Sequence, pack, split
from appliance.train.folders import new_file
from appliance.train.loss import LossSettings, clip_higher
from appliance.train.policy import Policy


@dataclass(frozen=True, slots=True)
class UpdateSettings:
    """temperature: the sampler's · max_grad_norm: a longer gradient is scaled down to it ·

    minibatches: updates a batch, each on whole rollouts · row_tokens: trie tokens computed at once.
    """

    loss: LossSettings = field(default_factory=LossSettings)
    temperature: float = 1.0
    max_grad_norm: float = 1.0
    minibatches: int = 1
    row_tokens: int = 4096


@dataclass(frozen=True, slots=True)
class Metrics:
    """What one update did; means are over its terms, sampled tokens each counted once a rollout.

    logprob_gap: mean |log π_old − log μ|, nats · entropy: −mean log π_old, an estimate · clip_share, mean_ratio,
    mean_importance, approx_kl: see loss.Diagnostics · flat_tokens / unique_tokens bounds what sharing can save.
    """

    loss: float
    grad_norm: float
    clip_share: float
    mean_ratio: float
    mean_importance: float
    approx_kl: float
    logprob_gap: float
    logprob_gap_max: float
    entropy: float
    num_terms: int
    unique_tokens: int
    flat_tokens: int


def make_optimizer(policy: Policy, learning_rate: float) -> Optimizer:
    """AdamW without weight decay over the adapter: torch's in fp32 on a CPU, bitsandbytes' 8-bit one elsewhere."""
    if policy.device.type == "cpu":
        return torch.optim.AdamW(policy.parameters(), lr=learning_rate, weight_decay=0.0)
    import bitsandbytes as bnb

    optimizer: Optimizer = bnb.optim.AdamW8bit(  # type: ignore[attr-defined,no-untyped-call]
        policy.parameters(), lr=learning_rate, weight_decay=0.0
    )
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


def learn(policy: Policy, sequences: Many[Sequence], optimizer: Optimizer, settings: UpdateSettings) -> Metrics:
    """One batch: `settings.minibatches` updates on whole rollouts, all against the policy at its start (π_old)."""
    parts = [pack(part, settings.row_tokens) for part in split(sequences, settings.minibatches)]
    if len(parts) == 1:
        return update(policy, parts[0], optimizer, settings)
    old = [[_frozen_logprobs(policy, p, settings.temperature) for p in packs] for packs in parts]
    return _joined([update(policy, p, optimizer, settings, o) for p, o in zip(parts, old, strict=True)])


def update(
    policy: Policy,
    packs: Many[Packed],
    optimizer: Optimizer,
    settings: UpdateSettings,
    old_logprobs: Many[Tensor] | None = None,
) -> Metrics:
    """One optimiser update on all `packs`. Without `old_logprobs` (one (M,) tensor a pack), π_old is π itself.

    A gradient of exactly zero (all advantages 0) takes no step: momentum alone must not move the policy. A NaN or
    infinite loss or gradient raises TrainingError and leaves parameters and optimiser as they were.
    """
    total = sum(p.num_terms for p in packs)
    if not total:
        raise TrainingError("the batch has no trained token", "see why rollouts failed: corral status")
    optimizer.zero_grad(set_to_none=True)
    measured = [
        _accumulate(policy, p, settings, total, None if old_logprobs is None else old_logprobs[i])
        for i, p in enumerate(packs)
    ]
    metrics = _joined(measured)
    grad_norm = float(torch.nn.utils.clip_grad_norm_(policy.parameters(), settings.max_grad_norm))
    if not (math.isfinite(metrics.loss) and math.isfinite(grad_norm)):
        optimizer.zero_grad(set_to_none=True)
        raise TrainingError(
            f"loss {metrics.loss}, gradient norm {grad_norm}: no step taken",
            "lower train.learning_rate and resume from the last version",
        )
    if grad_norm > 0:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return replace(metrics, grad_norm=grad_norm)


def _accumulate(
    policy: Policy, packed: Packed, settings: UpdateSettings, total: int, old_logprobs: Tensor | None
) -> Metrics:
    """Adds one pack's share of the gradient; `grad_norm` of what it returns is not known yet."""
    logprobs = policy.logprobs(packed, settings.temperature)
    old = logprobs.detach() if old_logprobs is None else old_logprobs
    behaviour = torch.from_numpy(packed.behaviour_logprobs).to(policy.device)
    advantages = torch.from_numpy(packed.advantages).to(policy.device)
    losses, diagnostics = clip_higher(logprobs, old, behaviour, advantages, settings.loss)
    (losses.sum() / total).backward()  # type: ignore[no-untyped-call]
    gap = (old - behaviour).abs()
    return Metrics(
        loss=float(losses.detach().mean()),
        grad_norm=0.0,
        **asdict(diagnostics),
        logprob_gap=float(gap.mean()),
        logprob_gap_max=float(gap.max()),
        entropy=-float(old.mean()),
        num_terms=packed.num_terms,
        unique_tokens=packed.num_tokens,
        flat_tokens=packed.num_flat_tokens,
    )


def _frozen_logprobs(policy: Policy, packed: Packed, temperature: float) -> Tensor:
    with torch.no_grad():
        return policy.logprobs(packed, temperature)


def _joined(parts: Many[Metrics]) -> Metrics:
    """Means weighted by terms, counts added, maxima kept."""
    total = sum(m.num_terms for m in parts)

    def mean(name: str) -> float:
        return math.fsum(getattr(m, name) * m.num_terms for m in parts) / total

    means = {f.name: mean(f.name) for f in fields(Metrics) if f.type == "float"}
    counts = {f.name: sum(getattr(m, f.name) for m in parts) for f in fields(Metrics) if f.type == "int"}
    worst = max(m.logprob_gap_max for m in parts)
    return Metrics(**{**means, **counts, "logprob_gap_max": worst})
