"""Attention over a trie in a few large blocks: a stretch of tokens sees itself causally, its descendants see all of it.

In depth-first order the descendants of a stretch are the tokens right behind it, so every block is two slices and
nothing is gathered or masked. The fused kernel gives each block's output with its log-sum-exp; blocks that read
different keys of one query are merged by those, and the kernel's own backward is exact for a block when it is handed
the merged output and log-sum-exp (the identity behind FlashAttention, arXiv 2205.14135, and ring attention).

Shapes: N tokens · A query heads · H key/value heads · E head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from appliance.train.batch import Packed

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens start … stop - 1 follow one another without a fork; stop … end - 1 are everything below them."""

    start: int
    stop: int
    end: int


def spans(packed: Packed) -> list[Span]:
    """The trie's unbranched stretches, in depth-first order."""
    after = np.flatnonzero(packed.parents != np.arange(len(packed.ids)) - 1)
    forks = packed.parents[after] + 1
    starts = np.unique(np.concatenate([[0], after, forks, [len(packed.ids)]]))
    return [Span(int(start), int(stop), int(packed.ends[stop - 1])) for start, stop in pairwise(starts)]


def span_attention(query: Tensor, key: Tensor, value: Tensor, found: list[Span], scaling: float) -> Tensor:
    """Softmax attention of each token over its path. (1, A, N, E), (1, H, N, E) twice → (1, A, N, E)."""
    attended: Tensor = _SpanAttention.apply(query, key, value, found, scaling)  # type: ignore[no-untyped-call]
    return attended


class _SpanAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, q: Tensor, k: Tensor, v: Tensor, *plan: Any) -> Tensor:
        found, scaling = plan
        groups = q.shape[1] // k.shape[1]
        keys, values = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        out = torch.zeros_like(q)
        lse = q.new_full(q.shape[:3], -torch.inf, dtype=torch.float32)
        for span in found:
            own, below = slice(span.start, span.stop), slice(span.stop, span.end)
            for rows in (own, below):
                if rows.start < rows.stop:
                    block = (q[:, :, rows], keys[:, :, own], values[:, :, own])
                    part = _forward(*block, 0.0, rows is own, scale=scaling)
                    _merge(out[:, :, rows], lse[:, :, rows], *part)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.plan = plan  # type: ignore[attr-defined]
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        found, scaling = ctx.plan
        heads, groups = k.shape[1], q.shape[1] // k.shape[1]
        keys, values = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        grad_q, grad_k, grad_v = torch.zeros_like(q), torch.zeros_like(keys), torch.zeros_like(values)
        for span in found:
            own, below = slice(span.start, span.stop), slice(span.stop, span.end)
            for rows in (own, below):
                if rows.start < rows.stop:
                    block = (grad_out[:, :, rows], q[:, :, rows], keys[:, :, own], values[:, :, own])
                    merged = (out[:, :, rows], lse[:, :, rows])
                    parts = _backward(*block, *merged, 0.0, rows is own, scale=scaling)
                    grad_q[:, :, rows] += parts[0]
                    grad_k[:, :, own] += parts[1]
                    grad_v[:, :, own] += parts[2]

        def summed(gradient: Tensor) -> Tensor:
            return gradient.view(1, heads, groups, *gradient.shape[2:]).sum(2)

        return grad_q, summed(grad_k), summed(grad_v), None, None


def _merge(out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> None:
    """Adds, in place, what further keys say to what a query has seen so far."""
    total = torch.logaddexp(lse, part_lse)
    out.mul_(torch.exp(lse - total)[..., None]).add_(part * torch.exp(part_lse - total)[..., None])
    lse.copy_(total)
