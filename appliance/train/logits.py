"""Logprobs of labels without holding the logits: a chunk of rows at a time, and no second pass for the gradient.

The gradient of one row's logprob in its hidden state is a single vector, whatever comes after it in the loss. It is
made while the chunk's logits are there, so that backward is one multiplication instead of computing them again.

Shapes: M rows · D hidden size · V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx


@dataclass(frozen=True, slots=True)
class Head:
    """temperature: the sampler's · softcap: logits bent to ±softcap (Gemma 2) · chunk: rows of logits held at once."""

    temperature: float
    softcap: float | None
    chunk: int


def label_logprobs(hidden: Tensor, weight: Tensor, labels: Tensor, head: Head) -> Tensor:
    """(M,) float32: log softmax(logits / temperature) at each row's label, from (M, D), (V, D), (M,) int64.

    Differentiable in `hidden` only: the head is frozen.
    """
    found: Tensor = _LabelLogprobs.apply(hidden, weight, labels, head)  # type: ignore[no-untyped-call]
    return found


class _LabelLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, hidden: Tensor, weight: Tensor, labels: Tensor, head: Head) -> Tensor:
        logprobs = hidden.new_empty(len(hidden), dtype=torch.float32)
        directions = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None  # type: ignore[attr-defined]
        for start in range(0, len(hidden), head.chunk):
            rows = slice(start, start + head.chunk)
            logits, slope = _logits(hidden[rows], weight, head)
            logprobs[rows], probabilities = _at(logits, labels[rows])
            if directions is not None:
                directions[rows] = _direction(probabilities, slope, labels[rows], weight, head)
        ctx.save_for_backward(directions)  # type: ignore[arg-type]
        return logprobs

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        (directions,) = ctx.saved_tensors
        return (grad_out[:, None] * directions).to(directions.dtype), None, None, None


def _logits(hidden: Tensor, weight: Tensor, head: Head) -> tuple[Tensor, Tensor | None]:
    """Logits over temperature, and d bent/d logit where they are soft-capped."""
    logits = (hidden @ weight.T).float()
    slope = None
    if head.softcap is not None:
        bent = torch.tanh(logits / head.softcap)
        logits, slope = head.softcap * bent, 1 - bent.square()
    return logits.div_(head.temperature), slope


def _at(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The label's logprob, and all probabilities (in the memory of the logits)."""
    label = logits.gather(1, labels[:, None])[:, 0]
    total = logits.logsumexp(dim=-1)
    return label - total, logits.sub_(total[:, None]).exp_()


def _direction(probabilities: Tensor, slope: Tensor | None, labels: Tensor, weight: Tensor, head: Head) -> Tensor:
    """(rows, D) gradient of each label's logprob in its hidden state: (1_label − p) · slope · W / temperature."""
    pull = probabilities.neg_()
    pull[torch.arange(len(labels), device=labels.device), labels] += 1
    if slope is not None:
        pull *= slope
    return (pull.to(weight.dtype) @ weight) / head.temperature
