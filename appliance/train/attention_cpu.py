"""Attention over a trie on the CPU, exactly, at the cost of each token's own path instead of a dense mask.

`tree_attention` is what transformers calls. Plain layers go to `spans`, which measured fastest. Layers with a sliding
window or soft-capped scores, which the fused kernel does not know, are computed here: the trie is cut into runs of
tokens that follow one another; the queries of a run see the keys of its ancestors and those before them in the run,
and nothing else is multiplied. Keys gathered along a path lie in order of depth, so causality is a triangle.

Shapes: N tokens · L tokens of a run · P its ancestors · S = P + L keys · H key/value heads · G query heads a
key/value head · E head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from transformers import AttentionInterface

from appliance.train.batch import Packed
from appliance.train.spans import Span, span_attention, spans

NAME = "corral_tree"
RUN_TOKENS = 256
"""Longest run: bounds the scores held at once, and skips most of the triangle that causality hides."""


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Queries start … stop - 1; `keys` (S,) int64 are their ancestors and themselves, in order of depth."""

    start: int
    stop: int
    keys: Tensor


class TreePlan:
    """How one trie is attended to; each way is worked out when a layer first needs it."""

    def __init__(self, packed: Packed) -> None:
        self._packed = packed
        self._runs: list[Run] | None = None
        self.spans: list[Span] = spans(packed)

    @property
    def runs(self) -> list[Run]:
        """The trie cut into runs of queries."""
        if self._runs is None:
            self._runs = runs(self._packed)
        return self._runs


def register() -> None:
    """Makes `attn_implementation="corral_tree"` known to transformers; the models then need `tree_plan`."""
    AttentionInterface.register(NAME, tree_attention)


def runs(packed: Packed) -> list[Run]:
    """The trie's tokens as runs of at most RUN_TOKENS, in order."""
    starts = np.flatnonzero(packed.parents != np.arange(len(packed.ids)) - 1)
    edges = sorted({0, *starts.tolist(), len(packed.ids)})
    path = np.zeros(int(packed.positions.max()) + 1, dtype=np.int64)
    found: list[Run] = []
    for edge, following in pairwise(edges):
        for start in range(edge, following, RUN_TOKENS):
            stop = min(start + RUN_TOKENS, following)
            depth = int(packed.positions[start])
            path[depth : depth + stop - start] = np.arange(start, stop)
            found.append(Run(start, stop, torch.from_numpy(path[: depth + stop - start].copy())))
    return found


def tree_attention(  # noqa: PLR0913 - the signature transformers calls
    module: torch.nn.Module,
    query: Tensor,  # (1, H·G, N, E)
    key: Tensor,  # (1, H, N, E)
    value: Tensor,  # (1, H, N, E)
    attention_mask: Tensor | None,
    *,
    tree_plan: TreePlan,
    scaling: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Softmax attention of each token over its path (and the nearest `sliding_window` of it). (1, N, H·G, E)."""
    if sliding_window is None and softcap is None:
        return span_attention(query, key, value, tree_plan.spans, scaling).transpose(1, 2), None
    return run_attention(query, key, value, tree_plan.runs, Scores(scaling, sliding_window, softcap)), None


@dataclass(frozen=True, slots=True)
class Scores:
    """How scores come from products: scaled, soft-capped to ±`softcap` (Gemma 2), nearer than `window` only."""

    scaling: float
    window: int | None = None
    softcap: float | None = None


def run_attention(query: Tensor, key: Tensor, value: Tensor, tree_runs: list[Run], scores: Scores) -> Tensor:
    """Attention run by run, with any `scores`. (1, N, H·G, E)."""
    heads, tokens, size = key.shape[1:]
    grouped = query[0].reshape(heads, -1, tokens, size)
    attended: Tensor = _TreeAttention.apply(grouped, key[0], value[0], tree_runs, scores)  # type: ignore[no-untyped-call]
    return attended.reshape(-1, tokens, size).transpose(0, 1)[None]


class _TreeAttention(torch.autograd.Function):
    """Runs one after the other. Gradients are written into whole tensors in place: slicing autograd would
    allocate a gradient of all N tokens for every run. Weights are computed again instead of kept.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, q: Tensor, k: Tensor, v: Tensor, *plan: Any) -> Tensor:
        tree_runs, scores = plan
        out = torch.empty_like(q)
        for run in tree_runs:
            weights, _ = _weights(q, k, run, scores)
            out[:, :, run.start : run.stop] = (weights @ v[:, run.keys]).view(*q.shape[:2], -1, q.shape[-1])
        ctx.save_for_backward(q, k, v, out)
        ctx.plan = plan  # type: ignore[attr-defined]
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out = ctx.saved_tensors
        tree_runs, scores = ctx.plan
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        inner = (grad_out * out).sum(-1, keepdim=True)  # (H, G, N, 1): softmax's own term
        for run in tree_runs:
            weights, slope = _weights(q, k, run, scores)
            grad = _rows(grad_out, run)
            grad_v.index_add_(1, run.keys, weights.mT @ grad)
            grad_scores = weights * (grad @ v[:, run.keys].mT - _rows(inner, run)) * scores.scaling
            if slope is not None:
                grad_scores *= slope
            grad_q[:, :, run.start : run.stop] = (grad_scores @ k[:, run.keys]).view(*q.shape[:2], -1, q.shape[-1])
            grad_k.index_add_(1, run.keys, grad_scores.mT @ _rows(q, run))
        return grad_q, grad_k, grad_v, None, None


def _rows(values: Tensor, run: Run) -> Tensor:
    """(H, G·L, E) the run's part of (H, G, N, E)."""
    return values[:, :, run.start : run.stop].flatten(1, 2)


def _weights(q: Tensor, k: Tensor, run: Run, scores: Scores) -> tuple[Tensor, Tensor | None]:
    """(H, G·L, S) attention weights of one run, and d capped/d score where scores are soft-capped."""
    raw = (_rows(q, run) * scores.scaling) @ k[:, run.keys].mT
    slope = None
    if scores.softcap is not None:
        bent = torch.tanh(raw / scores.softcap)
        raw, slope = scores.softcap * bent, 1 - bent.square()
    num_keys, length = len(run.keys), run.stop - run.start
    depth = torch.arange(num_keys)
    mine = depth[num_keys - length :, None]
    hidden = depth > mine if scores.window is None else (depth > mine) | (depth <= mine - scores.window)  # (L, S)
    raw.view(len(k), -1, length, num_keys).masked_fill_(hidden, -torch.inf)
    return torch.softmax(raw, dim=-1), slope
