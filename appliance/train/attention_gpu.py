"""Attention over a trie on a GPU: FlexAttention with a block mask, so that blocks nobody sees are skipped.

Shapes are padded to a few sizes and everything that differs between tries is the content of tensors, so that the
kernel is compiled once a size and never again. A padded token sees itself only, and nobody sees it.

Shapes: N tokens · B ≥ N tokens after padding · A query heads · H key/value heads · E head size.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from transformers import AttentionInterface

from appliance.train.batch import Packed

NAME = "corral_flex"
BLOCK = 128
"""Edge of a mask block: what FlexAttention skips or computes as one."""


def bucket(tokens: int) -> int:
    """The padded size of a trie: a multiple of BLOCK, at most an eighth above `tokens` once that is large."""
    step = max(BLOCK, 1 << max(0, tokens.bit_length() - 4))
    return -(-tokens // step) * step


def register() -> None:
    """Makes `attn_implementation="corral_flex"` known to transformers; the models then need `tree_blocks`."""
    AttentionInterface.register(NAME, flex_tree_attention)


class TreeBlocks:
    """The block masks of one trie, one a window size, each made when a layer first needs it."""

    def __init__(self, packed: Packed, device: torch.device) -> None:
        self.size = bucket(packed.num_tokens)
        ends = np.arange(1, self.size + 1)
        ends[: packed.num_tokens] = packed.ends
        self._ends = torch.from_numpy(ends).to(device)
        self._positions = self.padded(packed.positions, device)
        self._masks: dict[int | None, BlockMask] = {}

    def padded(self, values: Any, device: torch.device) -> Tensor:
        """(B,) int64: `values` (N,) and zeros."""
        whole = np.zeros(self.size, dtype=np.int64)
        whole[: len(values)] = values
        return torch.from_numpy(whole).to(device)

    def mask(self, window: int | None) -> BlockMask:
        """The mask of a layer whose tokens see their path, or the nearest `window` tokens of it."""
        if window not in self._masks:
            self._masks[window] = self._made(window)
        return self._masks[window]

    def _made(self, window: int | None) -> BlockMask:
        ends, positions = self._ends, self._positions
        reach = self.size if window is None else window

        def visible(_batch: Tensor, _head: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return (k <= q) & (q < ends[k])

        def near(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return visible(batch, head, q, k) & (positions[q] - positions[k] < reach)

        rule = visible if window is None else near
        return create_block_mask(rule, None, None, self.size, self.size, device=str(ends.device), BLOCK_SIZE=BLOCK)


def flex_tree_attention(  # noqa: PLR0913 - the signature transformers calls
    module: torch.nn.Module,
    query: Tensor,  # (1, A, B, E)
    key: Tensor,  # (1, H, B, E)
    value: Tensor,  # (1, H, B, E)
    attention_mask: Tensor | None,
    *,
    tree_blocks: TreeBlocks,
    scaling: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Softmax attention of each token over its path. (1, B, A, E)."""
    groups = query.shape[1] // key.shape[1]
    if query.shape[1] & (query.shape[1] - 1):  # the kernel shares keys among heads only when they are a power of two
        key, value, groups = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1), 1
    bend = None if softcap is None else _bend(softcap)
    attended: Any = _kernel(query.device.type)(
        query, key, value, score_mod=bend, block_mask=tree_blocks.mask(sliding_window), scale=scaling,
        enable_gqa=groups > 1,
    )  # fmt: skip
    return attended.transpose(1, 2), None


@cache
def _bend(softcap: float) -> Any:
    """One function a cap: a new one at each call would be compiled again."""

    def bend(score: Tensor, _batch: Tensor, _head: Tensor, _q: Tensor, _k: Tensor) -> Tensor:
        return softcap * torch.tanh(score / softcap)

    return bend


@cache
def _kernel(device_type: str) -> Any:
    """The compiled kernel on a GPU; on a CPU, where it has no backward, the plain one."""
    return flex_attention if device_type == "cpu" else torch.compile(flex_attention, dynamic=False)
