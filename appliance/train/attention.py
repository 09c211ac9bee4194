"""Attention over a trie, exactly, at the cost of each token's own path: what the CPU uses instead of a dense mask.

A trie in depth-first order is cut into runs of tokens that follow one another; the queries of a run see the keys of
the run's ancestors and those before them in the run, and nothing else is multiplied. Keys gathered along a path lie
in order of depth, so causality is a triangle. A dense (N, N) mask computes every pair and throws most away: on a
demo-sized batch that was two thirds of the time.

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

NAME = "corral_tree"
RUN_TOKENS = 256
"""Longest run: bounds the scores held at once, and skips most of the triangle that causality hides."""


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Queries start … stop - 1; `keys` (S,) int64 are their ancestors and themselves, in order of depth."""

    start: int
    stop: int
    keys: Tensor


def register() -> None:
    """Makes `attn_implementation="corral_tree"` known to transformers; the models then need `tree_runs`."""
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
    tree_runs: list[Run],
    scaling: float,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Softmax attention of each token over its path (and the nearest `sliding_window` of it). (1, N, H·G, E)."""
    heads, tokens, size = key.shape[1:]
    grouped = query[0].reshape(heads, -1, tokens, size)
    plan = (tree_runs, scaling, sliding_window)
    attended: Tensor = _TreeAttention.apply(grouped, key[0], value[0], *plan)  # type: ignore[no-untyped-call]
    return attended.reshape(-1, tokens, size).transpose(0, 1)[None], None


class _TreeAttention(torch.autograd.Function):
    """Runs one after the other. Gradients are written into whole tensors in place: slicing autograd would
    allocate a gradient of all N tokens for every run. Weights are computed again instead of kept.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, q: Tensor, k: Tensor, v: Tensor, *plan: Any) -> Tensor:
        tree_runs, scaling, window = plan
        out = torch.empty_like(q)
        for run in tree_runs:
            weights = _weights(q, k, run, scaling, window)
            out[:, :, run.start : run.stop] = (weights @ v[:, run.keys]).view(*q.shape[:2], -1, q.shape[-1])
        ctx.save_for_backward(q, k, v, out)
        ctx.plan = plan  # type: ignore[attr-defined]
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out = ctx.saved_tensors
        tree_runs, scaling, window = ctx.plan
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        inner = (grad_out * out).sum(-1, keepdim=True)  # (H, G, N, 1): softmax's own term
        for run in tree_runs:
            weights = _weights(q, k, run, scaling, window)
            grad = _rows(grad_out, run)
            grad_v.index_add_(1, run.keys, weights.mT @ grad)
            grad_scores = weights * (grad @ v[:, run.keys].mT - _rows(inner, run)) * scaling
            grad_q[:, :, run.start : run.stop] = (grad_scores @ k[:, run.keys]).view(*q.shape[:2], -1, q.shape[-1])
            grad_k.index_add_(1, run.keys, grad_scores.mT @ _rows(q, run))
        return grad_q, grad_k, grad_v, None, None, None


def _rows(values: Tensor, run: Run) -> Tensor:
    """(H, G·L, E) the run's part of (H, G, N, E)."""
    return values[:, :, run.start : run.stop].flatten(1, 2)


def _weights(q: Tensor, k: Tensor, run: Run, scaling: float, window: int | None) -> Tensor:
    """(H, G·L, S) attention weights of one run."""
    scores = (_rows(q, run) * scaling) @ k[:, run.keys].mT
    num_keys, length = len(run.keys), run.stop - run.start
    depth = torch.arange(num_keys)
    mine = depth[num_keys - length :, None]
    hidden = depth > mine if window is None else (depth > mine) | (depth <= mine - window)  # (L, S)
    scores.view(len(k), -1, length, num_keys).masked_fill_(hidden, -torch.inf)
    return torch.softmax(scores, dim=-1)
