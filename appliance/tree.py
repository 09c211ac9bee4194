"""Trajectory recovery: the calls of one rollout, in any order, become a forest of prefix trees on exact token ids.

Invariant (I4): every path concatenates to exactly the prompt and sampled ids of the call at its leaf; each sampled
token has one home; the forest does not depend on the order in which the calls are given. Source: ClawGym II
(arXiv 2608.16798): attach each call to the node whose accumulated prompt + response is the longest prefix of its
input. We differ in that a prompt may also fork inside a segment, and then shares what it can.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from appliance.types import Call, CallKind, Logprobs, Sample, TokenIds


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
    """The forest of one rollout. `leaves[i]` is the node where call i's path ends."""

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
    """Builds the forest of one rollout's calls. Two samples of one prompt are siblings, even when equal."""
    tree = Tree([], [-1] * len(samples))
    order = sorted(range(len(samples)), key=lambda i: _canonical_key(samples[i], i))
    for i in order:
        sample = samples[i]
        parent, depth = _descend(tree, sample.prompt_ids)
        if depth < len(sample.prompt_ids):
            parent = _add(tree, parent, depth, sample.prompt_ids[depth:], -1)
        tree.leaves[i] = _add(tree, parent, len(sample.prompt_ids), sample.sampled_ids, i)
    return tree


def _canonical_key(sample: Sample, index: int) -> tuple[int, bytes, bytes, bytes, int]:
    """Shorter prompts first, so that a parent precedes its children; the index only splits exact equals."""
    return (
        len(sample.prompt_ids),
        sample.prompt_ids.tobytes(),
        sample.sampled_ids.tobytes(),
        sample.logprobs.tobytes(),
        index,
    )


def _descend(tree: Tree, prompt: TokenIds) -> tuple[int, int]:
    """Walks `prompt` down as far as it matches; splits the node where it leaves. Returns (node, matched tokens)."""
    here, depth = -1, 0
    while depth < len(prompt):
        siblings = tree.nodes[here].children if here >= 0 else _roots(tree)
        best, matched = -1, 0
        for child in siblings:
            length = _reach(tree, child, prompt[depth:])
            if length > matched:
                best, matched = child, length
        if best < 0:
            break
        own = len(tree.nodes[best].ids)
        if matched < own:
            _split(tree, best, matched)
        here, depth = best, depth + min(matched, own)
    return here, depth


def _reach(tree: Tree, node: int, ids: TokenIds) -> int:
    """How many of `ids` match from the start of `node` downwards, over all ways down."""
    own = tree.nodes[node].ids
    shared = _common_prefix(own, ids)
    if shared < len(own) or shared == len(ids):
        return shared
    return shared + max((_reach(tree, c, ids[shared:]) for c in tree.nodes[node].children), default=0)


def _common_prefix(a: TokenIds, b: TokenIds) -> int:
    length = min(len(a), len(b))
    differing: NDArray[np.intp] = np.flatnonzero(a[:length] != b[:length])
    return int(differing[0]) if len(differing) else length


def _roots(tree: Tree) -> list[int]:
    return [n for n, node in enumerate(tree.nodes) if node.parent < 0]


def _add(tree: Tree, parent: int, depth: int, ids: TokenIds, call: int) -> int:
    tree.nodes.append(Node(parent, depth, ids, call, 0, []))
    number = len(tree.nodes) - 1
    if parent >= 0:
        tree.nodes[parent].children.append(number)
    return number


def _split(tree: Tree, number: int, at: int) -> None:
    """Cuts a node in two; it keeps its upper part and its number, a new node takes the rest and the children."""
    node = tree.nodes[number]
    lower = Node(number, node.depth + at, node.ids[at:], node.call, node.offset + at, node.children)
    tree.nodes.append(lower)
    new = len(tree.nodes) - 1
    for child in lower.children:
        tree.nodes[child].parent = new
    tree.leaves[:] = [new if leaf == number else leaf for leaf in tree.leaves]
    node.ids, node.children = node.ids[:at], [new]


# ------------------------------------------------------------------ what is trained

SIDE_HEADERS = ("x-openai-subagent", "x-codex-parent-thread-id", "x-claude-code-agent-id", "x-parent-session-id")
"""Headers by which harnesses mark a sub-agent's calls; left out of training, as in the paper."""


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


def untrained(calls: Sequence[Call]) -> dict[int, str]:
    """Calls left out of training, by index, with the reason: no ids, nothing sampled, or never delivered.

    An undelivered answer that a later prompt continues was seen by the harness after all (a replay), so it stays.
    """
    reasons: dict[int, str] = {}
    for i, call in enumerate(calls):
        if call.sample is None:
            reasons[i] = "recorded without token ids"
        elif not len(call.sample.sampled_ids):
            reasons[i] = "nothing was sampled"
        elif not call.delivered and not any(_continues(other, call) for other in calls):
            reasons[i] = "the harness never took the answer"
        elif any(header in call.lineage for header in SIDE_HEADERS):
            reasons[i] = "a sub-agent's call"
        elif call.kind is not CallKind.MAIN:
            reasons[i] = f"not the main agent's call ({call.kind})"
    return reasons


def _continues(later: Call, earlier: Call) -> bool:
    if later.sample is None or earlier.sample is None:
        return False
    path = np.concatenate([earlier.sample.prompt_ids, earlier.sample.sampled_ids])
    return _common_prefix(path, later.sample.prompt_ids) == len(path)


def rows(samples: Sequence[Sample], trained: Sequence[bool]) -> list[Row]:
    """The rows of a rollout: one an end of its forest; a shared sampled token trains in the first row that holds it."""
    tree = recover(samples)
    done: set[int] = set()
    found: list[Row] = []
    for end in tree.ends:
        way = tree.path(end)
        ids = np.concatenate([tree.nodes[n].ids for n in way])
        mask = np.zeros(len(ids), dtype=np.bool_)
        logprobs = np.zeros(len(ids), dtype=np.float32)
        for number in way:
            node = tree.nodes[number]
            if node.call < 0 or number in done or not trained[node.call]:
                continue
            done.add(number)
            here = slice(node.depth, node.depth + len(node.ids))
            mask[here] = True
            logprobs[here] = samples[node.call].logprobs[node.offset : node.offset + len(node.ids)]
        if mask.any():
            calls = np.concatenate([np.full(len(tree.nodes[n].ids), tree.nodes[n].call, np.int32) for n in way])
            found.append(Row(ids, mask, logprobs, calls))
    return found
