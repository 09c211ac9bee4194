"""Packing: all rows of a step become one prefix trie, so that what rollouts share is computed once.

Invariant (I7, E3): the loss terms of all packs together are exactly the trained tokens of all rows, each with its own
advantage; packing changes which forward work is repeated and nothing else. Rows of different rollouts and groups
merge wherever their token ids agree from the start: harness system prompts, task prompts, equal answers.

Shapes: T tokens of a row · N tokens of a trie · M loss terms of a trie.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from appliance.errors import TrainingError
from appliance.types import Logprobs, TokenIds

Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Sequence:
    """One root-to-leaf row of a rollout. Each sampled token of a rollout is true in `mask` in exactly one row.

    ids (T,) int32 · mask (T,) bool · behaviour_logprobs (T,) float32, read where mask is true and nowhere else ·
    advantage: the rollout's · rollout: its number, the same for all its rows · times (T,) int64, read where mask is
    true: how many sampled tokens of the rollout came before; empty where nobody asks for the order.
    """

    ids: TokenIds
    mask: NDArray[np.bool_]
    behaviour_logprobs: Logprobs
    advantage: float
    rollout: int
    times: Index = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.mask) == len(self.behaviour_logprobs):
            raise ValueError(f"{len(self.ids)} ids, {len(self.mask)} masks, {len(self.behaviour_logprobs)} logprobs")
        if len(self.mask) and self.mask[0]:
            raise ValueError("the first token of a row has no context and cannot be trained")


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A trie in depth-first order, with the loss terms that read from it.

    ids (N,) int32 · positions (N,) int64, the depth · parents (N,) int64, -1 at a root · ends (N,) int64: the
    descendants of token k are k+1 … ends[k]-1 · targets (M,) int64: the trie token each term trains ·
    behaviour_logprobs (M,) float32 · advantages (M,) float32 · rollouts (M,) int64 · num_flat_tokens: what the same
    rows cost without sharing · times (M,) int64: a term's place among its rollout's sampled tokens, -1 if not given.

    Two rollouts that sampled the same token after the same context are two terms with one target. Their advantages
    are never added: clipping is not linear.
    """

    ids: TokenIds
    positions: Index
    parents: Index
    ends: Index
    targets: Index
    behaviour_logprobs: Logprobs
    advantages: NDArray[np.float32]
    rollouts: Index
    num_flat_tokens: int
    times: Index

    @property
    def num_tokens(self) -> int:
        """N: tokens computed."""
        return len(self.ids)

    @property
    def num_terms(self) -> int:
        """M: loss terms."""
        return len(self.targets)

    @property
    def predecessors(self) -> Index:
        """(M,) the trie token whose hidden state predicts each term's label."""
        return self.parents[self.targets]

    @property
    def labels(self) -> TokenIds:
        """(M,) the sampled token id of each term."""
        return self.ids[self.targets]

    def mask(self) -> NDArray[np.bool_]:
        """(N, N) true where query q (row) sees key k (column): k is q or an ancestor of q."""
        q = np.arange(len(self.ids))
        return (q[None, :] <= q[:, None]) & (q[:, None] < self.ends[None, :])


def pack(sequences: Many[Sequence], row_tokens: int) -> list[Packed]:
    """Merges the rows into tries of at most `row_tokens` tokens, in an order that does not depend on theirs.

    Rows in the order of their ids are the leaves of the trie in depth-first order, so a trie is the concatenation of
    what each row adds to the one before it. Where the budget ends, a new pack starts; the prefix of its first row is
    computed again, and weighs nothing there, since terms belong to rows. Rows without a trained token are dropped and
    tails behind the last trained token are cut off; neither has a gradient. TrainingError if one row is too long.
    """
    ordered = sorted((_trimmed(s) for s in sequences if s.mask.any()), key=_order)
    packs: list[Packed] = []
    rows: list[Sequence] = []
    shared: list[int] = []
    used = 0
    for row in ordered:
        if len(row.ids) > row_tokens:
            raise TrainingError(
                f"rollout {row.rollout} has a path of {len(row.ids)} tokens, more than train.row_tokens = {row_tokens}",
                f"set train.row_tokens to at least {len(row.ids)}, or engine.max_model_len lower",
            )
        prefix = _common_prefix(rows[-1].ids, row.ids) if rows else 0
        if used + len(row.ids) - prefix > row_tokens:
            packs.append(_merge(rows, shared))
            rows, shared, used, prefix = [], [], 0, 0
        rows.append(row)
        shared.append(prefix)
        used += len(row.ids) - prefix
    if rows:
        packs.append(_merge(rows, shared))
    return packs


def split(sequences: Many[Sequence], count: int) -> list[list[Sequence]]:
    """Cuts a batch into at most `count` minibatches of about equal numbers of trained tokens; rollouts stay whole.

    Longest rollout first into the emptiest part, ties by rollout number: the same parts whatever the input order.
    """
    sizes: dict[int, int] = {}
    for s in sequences:
        sizes[s.rollout] = sizes.get(s.rollout, 0) + int(s.mask.sum())
    parts = [0] * max(1, min(count, len(sizes)))
    home: dict[int, int] = {}
    for rollout in sorted(sizes, key=lambda r: (-sizes[r], r)):
        emptiest = parts.index(min(parts))
        home[rollout] = emptiest
        parts[emptiest] += sizes[rollout]
    return [[s for s in sequences if home[s.rollout] == part] for part in range(len(parts))]


def deal(sequences: Many[Sequence], count: int) -> list[list[Sequence]]:
    """Shares a batch among `count` ranks: rollouts stay whole, those that share most stay together, and the largest

    share of tokens to compute is as small as cuts between rollouts can make it. A rank may get nothing.
    """
    rows = sorted((_trimmed(s) for s in sequences if s.mask.any()), key=_order)
    shared = [0, *(_common_prefix(a.ids, b.ids) for a, b in pairwise(rows))][: len(rows)]
    added: dict[int, int] = {}
    context: dict[int, int] = {}  # what a share that begins with this rollout computes again
    for row, prefix in zip(rows, shared, strict=True):
        context.setdefault(row.rollout, prefix)
        added[row.rollout] = added.get(row.rollout, 0) + len(row.ids) - prefix
    low, high = 1, sum(added.values()) + 1
    while low < high:  # the smallest budget that needs no more shares than there are ranks
        middle = (low + high) // 2
        enough = len(_shares(added, context, middle)) <= count
        low, high = (low, middle) if enough else (middle + 1, high)
    home = {rollout: n for n, share in enumerate(_shares(added, context, low)) for rollout in share}
    return [[s for s in sequences if home.get(s.rollout) == n] for n in range(count)]


def _shares(added: dict[int, int], context: dict[int, int], budget: int) -> list[list[int]]:
    """Rollouts in order, cut where a share would hold more than `budget` tokens."""
    shares: list[list[int]] = []
    used = 0
    for rollout, tokens in added.items():
        if not shares or used + tokens > budget:
            shares.append([])
            used = context[rollout]
        shares[-1].append(rollout)
        used += tokens
    return shares


def _trimmed(row: Sequence) -> Sequence:
    end = int(np.flatnonzero(row.mask)[-1]) + 1
    return replace(
        row,
        ids=row.ids[:end],
        mask=row.mask[:end],
        behaviour_logprobs=row.behaviour_logprobs[:end],
        times=row.times[:end] if len(row.times) else np.full(end, -1, dtype=np.int64),
    )


def _order(row: Sequence) -> tuple[bytes, int, bytes, bytes, float]:
    """Big-endian bytes sort like the ids themselves, a prefix before what continues it; the rest only splits equals."""
    trained = row.behaviour_logprobs[row.mask].tobytes()
    return (row.ids.astype(">u4").tobytes(), row.rollout, row.mask.tobytes(), trained, row.advantage)


def _common_prefix(a: TokenIds, b: TokenIds) -> int:
    length = min(len(a), len(b))
    differing = np.flatnonzero(a[:length] != b[:length])
    return int(differing[0]) if len(differing) else length


def _merge(rows: Many[Sequence], shared: Many[int]) -> Packed:
    """One trie from rows in depth-first order; `shared[i]` is the common prefix of row i with row i - 1."""
    total = sum(len(row.ids) - prefix for row, prefix in zip(rows, shared, strict=True))
    ends = np.full(total, total, dtype=np.int64)
    parents = np.full(total, -1, dtype=np.int64)
    path = np.zeros(0, dtype=np.int64)  # trie token at each depth of the current row
    targets: list[Index] = []
    start = 0
    for row, prefix in zip(rows, shared, strict=True):
        ends[path[prefix:]] = start  # what the previous row had below the fork is finished
        stop = start + len(row.ids) - prefix
        path = np.concatenate([path[:prefix], np.arange(start, stop)])
        if stop > start:
            parents[start:stop] = np.arange(start - 1, stop - 1)
            parents[start] = path[prefix - 1] if prefix else -1
        targets.append(path[row.mask])
        start = stop
    added = [np.arange(prefix, len(row.ids)) for row, prefix in zip(rows, shared, strict=True)]
    counts = [int(row.mask.sum()) for row in rows]
    return Packed(
        ids=np.concatenate([row.ids[prefix:] for row, prefix in zip(rows, shared, strict=True)]).astype(np.int32),
        positions=np.concatenate(added).astype(np.int64),
        parents=parents,
        ends=ends,
        targets=np.concatenate(targets),
        behaviour_logprobs=np.concatenate([row.behaviour_logprobs[row.mask] for row in rows]).astype(np.float32),
        advantages=np.repeat(np.array([row.advantage for row in rows], dtype=np.float32), counts),
        rollouts=np.repeat(np.array([row.rollout for row in rows], dtype=np.int64), counts),
        num_flat_tokens=sum(len(row.ids) for row in rows),
        times=np.concatenate([row.times[row.mask] for row in rows]),
    )
