"""Trajectory recovery: the calls of one rollout, in any order, become a forest of prefix trees on exact token ids.

Invariant (I4): every path concatenates to exactly the prompt and sampled ids of the call at its leaf; each sampled
token has one home; the forest does not depend on the order in which the calls are given. Source: ClawGym II
(arXiv 2608.16798): attach each call to the node whose accumulated prompt + response is the longest prefix of its
input. We differ in that a prompt may also fork inside a segment, and then shares what it can.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from appliance.types import Logprobs, Sample, TokenIds


@dataclass(slots=True, eq=False)
class Node:
    """A stretch of tokens below `parent` (-1: a root). `call` is the call that sampled it, -1 for prompt tokens.

    `ids` (n,) · `depth` tokens lie above it · `offset`: position of its first token in the call's sampled ids.
    """

    parent: int
    depth: int
    ids: TokenIds
    call: int
    offset: int
    children: list[int]


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """The forest of one rollout, parents before children. `leaves[i]` is the node where call i's path ends."""

    nodes: list[Node]
    leaves: list[int]

    def path(self, node: int) -> list[int]:
        """Node numbers from the root down to `node`."""
        way: list[int] = []
        while node >= 0:
            way.append(node)
            node = self.nodes[node].parent
        return way[::-1]

    def ids(self, node: int) -> TokenIds:
        """All token ids from the root to the end of `node`."""
        return np.concatenate([self.nodes[n].ids for n in self.path(node)])

    @property
    def ends(self) -> list[int]:
        """Nodes without children: one row of training each."""
        return [n for n, node in enumerate(self.nodes) if not node.children]

    @property
    def num_unique_tokens(self) -> int:
        """Tokens stored, each once."""
        return sum(len(node.ids) for node in self.nodes)


def recover(samples: Sequence[Sample]) -> Tree:
    """Builds the forest of one rollout's calls. Two samples of one prompt are siblings, even when equal.

    The work is linear in the tokens given (a few ns each: one prefix hash and one comparison) and in the nodes made.
    """
    growing = _Growing(samples)
    for i in _canonical_order(samples):
        growing.insert(i)
    return growing.grown()


def common_prefix(a: TokenIds, b: TokenIds) -> int:
    """How many ids `a` and `b` share from their start."""
    length = min(len(a), len(b))
    differing: NDArray[np.intp] = np.flatnonzero(a[:length] != b[:length])
    return int(differing[0]) if len(differing) else length


# ------------------------------------------------------------------ building


def _canonical_order(samples: Sequence[Sample]) -> list[int]:
    """Shorter prompts first, so that a parent precedes its children; then by content; the index only splits equals."""

    def content(i: int) -> tuple[bytes, bytes, bytes, int]:
        sample = samples[i]
        parts = (sample.prompt_ids, sample.sampled_ids, sample.logprobs)
        prompt, sampled, logprobs = (blake2b(np.ascontiguousarray(p).data, digest_size=16).digest() for p in parts)
        return prompt, sampled, logprobs, i

    order: list[int] = []
    by_length = sorted(range(len(samples)), key=lambda i: len(samples[i].prompt_ids))
    for _, equals in groupby(by_length, key=lambda i: len(samples[i].prompt_ids)):
        group = list(equals)
        order += sorted(group, key=content) if len(group) > 1 else group
    return order


class _PathHashes:
    """Finds which earlier calls' whole paths a prompt begins with, by prefix hashes modulo 2**64.

    The hash only proposes; the caller compares the ids, so a collision costs time and never truth.
    """

    _BASE = np.uint64(0x9E3779B97F4A7C15)

    def __init__(self, capacity: int) -> None:
        self._powers = np.ones(1, np.uint64)
        self._lengths = np.zeros(capacity, np.int64)
        self._hashes = np.zeros(capacity, np.uint64)
        self._calls = np.zeros(capacity, np.int64)
        self._count = 0

    def of_prefixes(self, ids: TokenIds) -> NDArray[np.uint64]:
        """(len + 1,): entry k is the hash of the first k ids."""
        self._grow(len(ids))
        found = np.zeros(len(ids) + 1, np.uint64)
        np.cumsum((ids.astype(np.uint64) + np.uint64(1)) * self._powers[: len(ids)], out=found[1:])
        return found

    def add(self, call: int, prompt_hash: np.uint64, num_prompt_tokens: int, sampled: TokenIds) -> None:
        """Remembers a call's whole path, its prompt being hashed already."""
        length = num_prompt_tokens + len(sampled)
        self._grow(length)
        weighted = (sampled.astype(np.uint64) + np.uint64(1)) * self._powers[num_prompt_tokens:length]
        n, self._count = self._count, self._count + 1
        self._lengths[n], self._calls[n] = length, call
        self._hashes[n] = np.array([prompt_hash, weighted.sum(dtype=np.uint64)], np.uint64).sum(dtype=np.uint64)

    def beginning(self, prefixes: NDArray[np.uint64]) -> list[int]:
        """Calls whose path may begin the prompt with these prefix hashes: longest first, then as they were added."""
        lengths = self._lengths[: self._count]
        at = np.minimum(lengths, len(prefixes) - 1)
        fits = np.flatnonzero((prefixes[at] == self._hashes[: self._count]) & (lengths < len(prefixes)))
        longest_first = fits[np.argsort(-lengths[fits], kind="stable")]
        return [int(call) for call in self._calls[longest_first]]

    def _grow(self, length: int) -> None:
        if len(self._powers) < length:
            powers = np.full(max(length, 2 * len(self._powers)), self._BASE, np.uint64)
            powers[0] = 1
            self._powers = np.cumprod(powers, dtype=np.uint64)


class _Growing:
    """The forest while calls are added. A node that is split keeps its number for its lower part."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._samples = samples
        self._nodes: list[Node] = []
        self._ranks: list[int] = []  # order among siblings: when what stands there first came
        self._by_first: dict[tuple[int, int], list[int]] = {}  # (parent, first id) → nodes
        self._leaves = [-1] * len(samples)
        self._paths = _PathHashes(len(samples))

    def insert(self, call: int) -> None:
        """Adds one call; all with shorter prompts are there."""
        sample = self._samples[call]
        prompt = sample.prompt_ids
        prefixes = self._paths.of_prefixes(prompt)
        here, depth = self._descend(*self._continued(prompt, prefixes), prompt)
        if depth < len(prompt):
            here = self._add(here, depth, prompt[depth:], -1)
        self._leaves[call] = self._add(here, len(prompt), sample.sampled_ids, call)
        if len(sample.sampled_ids):
            self._paths.add(call, prefixes[-1], len(prompt), sample.sampled_ids)

    def _continued(self, prompt: TokenIds, prefixes: NDArray[np.uint64]) -> tuple[int, int]:
        """The leaf of the call whose whole path is the longest beginning of `prompt`, and its depth, or (-1, 0)."""
        for call in self._paths.beginning(prefixes):
            earlier = self._samples[call]
            cut, end = len(earlier.prompt_ids), len(earlier.prompt_ids) + len(earlier.sampled_ids)
            if np.array_equal(prompt[cut:end], earlier.sampled_ids) and np.array_equal(
                prompt[:cut], earlier.prompt_ids
            ):
                return self._leaves[call], end
        return -1, 0

    def _descend(self, here: int, depth: int, prompt: TokenIds) -> tuple[int, int]:
        """Walks `prompt` on from (node, depth) as far as it matches; splits the node where it leaves."""
        while depth < len(prompt):
            siblings = self._by_first.get((here, int(prompt[depth])), [])
            if not siblings:
                break
            rest = prompt[depth:]
            best = siblings[0] if len(siblings) == 1 else max(siblings, key=lambda n: self._reach(n, rest))
            shared = common_prefix(self._nodes[best].ids, rest)
            if shared < len(self._nodes[best].ids):
                return self._split(best, shared), depth + shared
            here, depth = best, depth + shared
        return here, depth

    def _reach(self, node: int, ids: TokenIds) -> int:
        """How many of `ids` match from the start of `node` downwards, over all ways down."""
        shared = common_prefix(self._nodes[node].ids, ids)
        if shared < len(self._nodes[node].ids) or shared == len(ids):
            return shared
        below = self._by_first.get((node, int(ids[shared])), [])
        return shared + max((self._reach(n, ids[shared:]) for n in below), default=0)

    def _add(self, parent: int, depth: int, ids: TokenIds, call: int) -> int:
        self._nodes.append(Node(parent, depth, ids, call, 0, []))
        number = len(self._nodes) - 1
        self._ranks.append(number)
        if len(ids):
            self._by_first.setdefault((parent, int(ids[0])), []).append(number)
        return number

    def _split(self, number: int, at: int) -> int:
        """Cuts a node in two and returns the new upper part."""
        node = self._nodes[number]
        upper = Node(node.parent, node.depth, node.ids[:at], node.call, node.offset, [])
        self._nodes.append(upper)
        new = len(self._nodes) - 1
        self._ranks.append(self._ranks[number])
        siblings = self._by_first[(node.parent, int(node.ids[0]))]
        siblings[siblings.index(number)] = new
        node.parent, node.depth, node.offset, node.ids = new, node.depth + at, node.offset + at, node.ids[at:]
        self._by_first[(new, int(node.ids[0]))] = [number]
        return new

    def grown(self) -> Tree:
        """The finished forest, numbered from the roots down."""
        children: dict[int, list[int]] = {}
        for number in sorted(range(len(self._nodes)), key=self._ranks.__getitem__):
            children.setdefault(self._nodes[number].parent, []).append(number)
        nodes: list[Node] = []
        numbers = {-1: -1}
        waiting = children.get(-1, [])[::-1]
        while waiting:
            old = waiting.pop()
            node = self._nodes[old]
            numbers[old] = len(nodes)
            nodes.append(node)
            node.parent = numbers[node.parent]
            if node.parent >= 0:
                nodes[node.parent].children.append(numbers[old])
            waiting += children.get(old, [])[::-1]
        return Tree(nodes, [numbers[leaf] for leaf in self._leaves])


# ------------------------------------------------------------------ what is trained


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One root-to-end path. `mask` is true where a sampled token is trained in this row; no token in two rows.

    ids (T,) int32 · mask (T,) bool · behaviour_logprobs (T,) float32, 0 where mask is false · calls (T,) int32: the
    call that sampled each token, also where another row trains it; -1 for prompt tokens.
    """

    ids: TokenIds
    mask: NDArray[np.bool_]
    behaviour_logprobs: Logprobs
    calls: NDArray[np.int32]


def rows(samples: Sequence[Sample], trained: Sequence[bool], tree: Tree | None = None) -> list[Row]:
    """The rows of a rollout: one an end of its forest; a shared sampled token trains in the first row that holds it."""
    tree = tree or recover(samples)
    done: set[int] = set()
    found: list[Row] = []
    for end in tree.ends:
        way = tree.path(end)
        new = [n for n in way if (call := tree.nodes[n].call) >= 0 and n not in done and trained[call]]
        if new:
            done.update(new)
            found.append(_row(tree, samples, way, new))
    return found


def _row(tree: Tree, samples: Sequence[Sample], way: Sequence[int], new: Sequence[int]) -> Row:
    """The path `way` with the nodes `new` trained."""
    ids = np.concatenate([tree.nodes[n].ids for n in way])
    mask = np.zeros(len(ids), dtype=np.bool_)
    logprobs = np.zeros(len(ids), dtype=np.float32)
    calls = np.concatenate([np.full(len(tree.nodes[n].ids), tree.nodes[n].call, np.int32) for n in way])
    for node in (tree.nodes[n] for n in new):
        here = slice(node.depth, node.depth + len(node.ids))
        mask[here] = True
        logprobs[here] = samples[node.call].logprobs[node.offset : node.offset + len(node.ids)]
    return Row(ids, mask, logprobs, calls)
