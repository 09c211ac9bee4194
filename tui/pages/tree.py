"""A rollout's tree as the tree view draws it: one line a node, its tokens with logprobs, and the forks. No Textual."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from appliance.record.store import Store
from appliance.types import TokenIds
from tui.text import plain, plain_line

MAX_TOKENS = 3000
"""Tokens of one node that are shown one by one."""
MAX_UNIQUE = 400_000
"""Above this a tree is not read again for a screen: `corral tree ROLLOUT` shows it."""


@dataclass(frozen=True, slots=True)
class TokenText:
    """A token as text. `logprob` is None for tokens that the policy did not sample."""

    text: str
    logprob: float | None = None


@dataclass(frozen=True, slots=True)
class ForkText:
    """Why a call left the path it should have continued, with what was expected and found there."""

    call: int
    reference: int
    cause: str
    at: int
    before: str
    expected: str
    found: str
    detail: str
    remedy: str


@dataclass(frozen=True, slots=True)
class NodeLine:
    """A stretch of tokens. `lead` draws its place; `rivals`: the nodes it parted from; `left_out` empty: trained."""

    number: int
    lead: str
    num_tokens: int
    call: int | None
    branch: str
    left_out: str
    answer: str
    logprob: float | None
    fork: ForkText | None
    rivals: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TreePage:
    """A rollout's tree. `advantage` is None where nothing is trained; `problem` says why there is nothing to show."""

    rollout_id: int = 0
    nodes: tuple[NodeLine, ...] = ()
    advantage: float | None = None
    num_unique: int = 0
    num_flat: int = 0
    num_rows: int = 0
    num_forks: int = 0
    problem: str = ""
    tokens: Callable[[int], tuple[TokenText, ...]] = field(default=lambda number: (), compare=False)
    """Node → its first tokens, decoded when they are looked at."""


def read_tree(store: Store, home: Path, rollout_id: int) -> TreePage:
    """The tree of a rollout's latest attempt."""
    from appliance.errors import ApplianceError
    from appliance.report.fork_report import decoder
    from appliance.report.trace import recollect
    from appliance.report.tree_view import view

    try:
        told = recollect(store, rollout_id)
        found = view(home, told)
    except (ApplianceError, ValueError) as error:
        return TreePage(rollout_id, problem=plain(str(error)))
    if not found["nodes"]:
        return TreePage(rollout_id, problem="No call of this rollout has token ids: it has no tree.")
    decode = decoder(home, told.run)

    @cache
    def tokens(number: int) -> tuple[TokenText, ...]:
        node = told.found.tree.nodes[number]
        sample = told.calls[told.found.numbers[node.call]].call.sample if node.call >= 0 else None
        ids = node.ids[:MAX_TOKENS]
        texts = [plain(word) for word in _words(decode, ids)]
        if sample is None:
            return tuple(TokenText(text) for text in texts)
        own = sample.logprobs[node.offset : node.offset + len(ids)]
        return tuple(TokenText(text, float(p)) for text, p in zip(texts, own, strict=True))

    return TreePage(
        rollout_id=rollout_id,
        nodes=_lines(found),
        advantage=found["advantage"],
        num_unique=found["unique_tokens"],
        num_flat=found["flat_tokens"],
        num_rows=found["rows"],
        num_forks=len(found["forks"]),
        tokens=tokens,
    )


def token_with(tokens: Sequence[TokenText], text: str, start: int = 0) -> int | None:
    """The first token from `start` on in which a place of `text` begins, whatever its case; None without any."""
    words = [token.text.lower() for token in tokens]
    at = "".join(words).find(text.lower(), sum(map(len, words[:start])))
    if at < 0 or start >= len(words):
        return None
    ends = accumulate(map(len, words))
    return next(n for n, end in enumerate(ends) if end > at)


def _words(decode: Callable[[TokenIds], str], ids: TokenIds) -> list[str]:
    """One text a token; where a run's tokenizer is gone they are numbers, parted by spaces."""
    words = [decode(ids[n : n + 1]) for n in range(len(ids))]
    is_numbers = words == [str(n) for n in ids.tolist()]
    return [f"{word} " for word in words] if is_numbers else words


def _lines(found: dict[str, Any]) -> tuple[NodeLine, ...]:
    """Nodes from top to bottom; only where paths part does the text move to the right."""
    children: dict[int | None, list[int]] = {}
    for node in found["nodes"]:
        children.setdefault(node["parent"], []).append(node["node"])
    calls = {call["call"]: call for call in found["calls"]}
    forks = {fork["call"]: _fork(fork) for fork in found["forks"]}
    roots = children.get(None, [])
    todo = [(root, *_lead("", n, roots), tuple(r for r in roots if r != root)) for n, root in enumerate(roots)][::-1]
    lines: list[NodeLine] = []
    shown: set[int] = set()
    while todo:
        number, lead, below, rivals = todo.pop()
        own = children.get(number, [])
        call = _first_call(number, children, found["nodes"])
        fork = forks.get(call) if call is not None and call not in shown and rivals else None
        shown |= {call} if fork and call is not None else set()
        lines.append(_line(found["nodes"][number], calls, lead, fork, rivals))
        todo += [(child, *_lead(below, n, own), tuple(o for o in own if o != child)) for n, child in enumerate(own)][
            ::-1
        ]
    return tuple(lines)


def _first_call(number: int, children: dict[int | None, list[int]], nodes: list[dict[str, Any]]) -> int | None:
    """The call that a node belongs to: its own, or, of prompt tokens, the first one below."""
    while nodes[number]["call"] is None and children.get(number):
        number = children[number][0]
    found: int | None = nodes[number]["call"]
    return found


def _lead(below: str, place: int, siblings: list[int]) -> tuple[str, str]:
    if len(siblings) == 1:
        return below, below
    is_last = place == len(siblings) - 1
    return below + ("└ " if is_last else "├ "), below + ("  " if is_last else "│ ")


def _line(
    node: dict[str, Any], calls: dict[int, dict[str, Any]], lead: str, fork: ForkText | None, rivals: tuple[int, ...]
) -> NodeLine:
    call = calls.get(node["call"], {})
    return NodeLine(
        number=node["node"],
        lead=lead,
        num_tokens=node["tokens"],
        call=node["call"],
        branch=plain_line(str(call.get("branch", ""))),
        left_out=plain_line(str(call.get("left_out") or "")),
        answer=plain_line(str(call.get("answer", ""))[:400]),
        logprob=node["logprob"],
        fork=fork,
        rivals=rivals,
    )


def _fork(fork: dict[str, Any]) -> ForkText:
    return ForkText(
        call=fork["call"],
        reference=fork["reference"],
        cause=plain_line(fork["cause"]),
        at=fork["at"],
        before=plain_line(fork["before"]),
        expected=plain_line(fork["expected"]),
        found=plain_line(fork["found"]),
        detail=plain(fork["detail"][:4000]),
        remedy=plain_line(fork["remedy"]),
    )
