"""Losses: pure functions on tensors of loss terms; no model, no I/O, no randomness.

Each policy loss is one function `(terms, settings) → (losses (M,) float32, Diagnostics)`; the caller divides the sum
by the number of terms of the whole step (DAPO's token-level loss), so that nothing depends on packs, ranks or on how a
rollout was cut.

Shapes: M loss terms, each a sampled token of one rollout. Words: `behaviour_logprobs` log μ, recorded by the sampler;
`old_logprobs` log π_old, the policy at the start of this update; `logprobs` log π, with gradient. r = π/π_old.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LossSettings:
    """clip_low, clip_high: how far r may move down and up before a term stops pushing (DAPO: 0.2 and 0.28) ·

    gspo_clip_low, gspo_clip_high: the same for a rollout's mean ratio (GSPO: 3e-4 and 4e-4) · max_importance: cap of
    π_old/μ; above it a term weighs no more · mask_low, mask_high: outside them `masked_importance` drops a term.
    """

    clip_low: float = 0.2
    clip_high: float = 0.28
    gspo_clip_low: float = 3e-4
    gspo_clip_high: float = 4e-4
    max_importance: float = 2.0
    mask_low: float = 0.5
    mask_high: float = 5.0


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """The loss terms of one pack; all (M,) float32, gradient in `logprobs` only.

    log_ratios: mean of log r over the term's whole rollout, and `shares`: how often the term counts so that every
    rollout of the update weighs the same, N / (rollouts · its terms). Only a loss on rollouts reads these two.
    """

    logprobs: Tensor
    old_logprobs: Tensor
    behaviour_logprobs: Tensor
    advantages: Tensor
    log_ratios: Tensor | None = None
    shares: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """Means over the M terms. clip_share: terms whose gradient the clip removed, by the lower and the upper bound in

    clip_low_share and clip_high_share. approx_kl: k2 = ½(log π − log μ)².
    """

    clip_share: float
    clip_low_share: float
    clip_high_share: float
    mean_ratio: float
    mean_importance: float
    approx_kl: float


Loss = Callable[[Terms, LossSettings], tuple[Tensor, Diagnostics]]


def clip_higher(terms: Terms, settings: LossSettings) -> tuple[Tensor, Diagnostics]:
    """−w · min(r A, clip(r, 1 − clip_low, 1 + clip_high) A).

    PPO (arXiv 1707.06347, eq. 7) with the asymmetric clip of DAPO (arXiv 2503.14476, eq. 8). w = min(π_old/μ,
    max_importance), detached, corrects for a sampler that is not quite π_old (truncated importance sampling, "Your
    efficient RL framework secretly brings you off-policy RL training", 2025; ClawGym II, arXiv 2608.16798).
    """
    return _clipped(terms, _truncated(terms, settings), settings.clip_low, settings.clip_high)


def masked_importance(terms: Terms, settings: LossSettings) -> tuple[Tensor, Diagnostics]:
    """As `clip_higher`, with w = π_old/μ inside [mask_low, mask_high] and 0 outside: a term the sampler saw quite

    differently is dropped instead of weighed down (IcePop, "Small leak can sink a great ship", 2025).
    """
    weights = torch.exp(terms.old_logprobs - terms.behaviour_logprobs).detach()
    inside = (weights >= settings.mask_low) & (weights <= settings.mask_high)
    return _clipped(terms, torch.where(inside, weights, 0.0), settings.clip_low, settings.clip_high)


def gspo(terms: Terms, settings: LossSettings) -> tuple[Tensor, Diagnostics]:
    """−w · min(s A, clip(s, 1 − gspo_clip_low, 1 + gspo_clip_high) A), s = exp(mean log r) over the rollout.

    GSPO (arXiv 2507.18071, eq. 5) in its token form (eq. 14), which lets the terms of one rollout lie in several
    packs: the value of s is the rollout's, its gradient in each term that of the term's own log π. `shares` makes the
    step's mean over terms the paper's mean over rollouts. "Sequence" is the rollout, never a row.
    """
    if terms.log_ratios is None or terms.shares is None:
        raise ValueError("gspo needs the rollouts' mean log ratios and shares")
    own = terms.logprobs - terms.logprobs.detach()
    log_ratio = terms.log_ratios.detach() + own
    weights = _truncated(terms, settings) * terms.shares
    return _clipped(terms, weights, settings.gspo_clip_low, settings.gspo_clip_high, log_ratio)


def cispo(terms: Terms, settings: LossSettings) -> tuple[Tensor, Diagnostics]:
    """−w · detach(min(r, 1 + clip_high)) · A · log π: no term ever stops pushing (MiniMax-M1, arXiv 2506.13585, eq. 4).

    As there, the ratio has no lower bound.
    """
    ratio = torch.exp(terms.logprobs - terms.old_logprobs).detach()
    weights = _truncated(terms, settings)
    high = ratio > 1 + settings.clip_high
    losses = -weights * ratio.clamp(max=1 + settings.clip_high) * terms.advantages * terms.logprobs
    return losses, _diagnostics(terms, ratio, weights, torch.zeros_like(high), high & (terms.advantages != 0))


def kl_k2(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """(M,) ½(log π − log π_ref)², whose gradient in expectation is that of KL(π ‖ π_ref).

    k1 = log π − log π_ref has none, and k3 a biased one (Schulman, "Approximating KL divergence", 2020).
    """
    return (logprobs - reference_logprobs.detach()).square() / 2


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """(n,) ½ max((V − R)², (clip(V, V_old ± clip) − R)²), and (n,) bool where the clip removed the gradient.

    PPO's value clipping as in OpenAI's implementation (arXiv 2005.12729, section 3). `clip` of 0 is plain ½(V − R)².
    """
    free = (values - returns).square()
    if not clip:
        return free / 2, torch.zeros_like(free, dtype=torch.bool)
    held = (old_values + torch.clamp(values - old_values, -clip, clip) - returns).square()
    return torch.maximum(free, held) / 2, held > free


def _truncated(terms: Terms, settings: LossSettings) -> Tensor:
    """(M,) min(π_old/μ, max_importance), detached."""
    importance = torch.exp(terms.old_logprobs - terms.behaviour_logprobs)
    return importance.clamp(max=settings.max_importance).detach()


def _clipped(
    terms: Terms, weights: Tensor, clip_low: float, clip_high: float, log_ratio: Tensor | None = None
) -> tuple[Tensor, Diagnostics]:
    """−weights · min(r A, clip(r) A); `log_ratio` replaces log r."""
    ratio = torch.exp(terms.logprobs - terms.old_logprobs if log_ratio is None else log_ratio)
    free = ratio * terms.advantages
    held = torch.clamp(ratio, 1 - clip_low, 1 + clip_high) * terms.advantages
    low, high = (held < free) & (ratio < 1), (held < free) & (ratio > 1)
    return -weights * torch.minimum(free, held), _diagnostics(terms, ratio, weights, low, high)


def _diagnostics(terms: Terms, ratio: Tensor, weights: Tensor, low: Tensor, high: Tensor) -> Diagnostics:
    with torch.no_grad():
        return Diagnostics(
            clip_share=_mean(low | high),
            clip_low_share=_mean(low),
            clip_high_share=_mean(high),
            mean_ratio=_mean(ratio),
            mean_importance=_mean(weights if terms.shares is None else weights / terms.shares),
            approx_kl=_mean((terms.logprobs - terms.behaviour_logprobs).square() / 2),
        )


def _mean(values: Tensor) -> float:
    return float(values.float().mean())
