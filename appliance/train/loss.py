"""Losses: pure functions on tensors of loss terms; no model, no I/O, no randomness.

Shapes: M loss terms, each a sampled token of one rollout. Words: `behaviour_logprobs` log μ, recorded by the sampler;
`old_logprobs` log π_old, the policy at the start of this update; `logprobs` log π, with gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LossSettings:
    """clip_low, clip_high: how far π/π_old may move down and up before a term stops pushing (DAPO: 0.2 and 0.28).

    max_importance: cap of π_old/μ; above it a term weighs no more.
    """

    clip_low: float = 0.2
    clip_high: float = 0.28
    max_importance: float = 2.0


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """Means over the M terms. clip_share: terms whose gradient the clip removed. approx_kl: k2 = ½(log π − log μ)²."""

    clip_share: float
    mean_ratio: float
    mean_importance: float
    approx_kl: float


def clip_higher(
    logprobs: Tensor,  # (M,) float32
    old_logprobs: Tensor,  # (M,) float32
    behaviour_logprobs: Tensor,  # (M,) float32
    advantages: Tensor,  # (M,) float32
    settings: LossSettings,
) -> tuple[Tensor, Diagnostics]:
    """Loss of each term, (M,) float32: −w · min(r A, clip(r, 1 − clip_low, 1 + clip_high) A).

    r = π/π_old is the ratio (PPO, arXiv 1707.06347, eq. 7, with the asymmetric clip of DAPO, arXiv 2503.14476,
    eq. 8). w = min(π_old/μ, max_importance), detached, corrects for a sampler that is not quite π_old (truncated
    importance sampling, "Your efficient RL framework secretly brings you off-policy RL training", 2025; ClawGym II,
    arXiv 2608.16798). The caller divides the sum by the number of terms of the whole step (DAPO's token-level
    loss); we differ from DAPO only in counting over the step instead of over one group.
    """
    ratio = torch.exp(logprobs - old_logprobs)
    free = ratio * advantages
    clipped = torch.clamp(ratio, 1 - settings.clip_low, 1 + settings.clip_high) * advantages
    importance = torch.exp(old_logprobs - behaviour_logprobs).clamp(max=settings.max_importance).detach()
    losses = -importance * torch.minimum(free, clipped)
    with torch.no_grad():
        diagnostics = Diagnostics(
            clip_share=_mean(clipped < free),
            mean_ratio=_mean(ratio),
            mean_importance=_mean(importance),
            approx_kl=_mean((logprobs - behaviour_logprobs).square() / 2),
        )
    return losses, diagnostics


def _mean(values: Tensor) -> float:
    return float(values.float().mean())
