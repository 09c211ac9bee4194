"""The fork doctor: why a call did not go on where an earlier one ended, what it costs, and what would remove it. Pure.

A rollout's tree has one leaf, and one more for each fork. Invariant: every fork gets a cause; UNKNOWN only with the
whole difference beside it, and it counts as a defect.

What was said is compared before tokens are: the first message that differs names the cause, and only when all
messages agree do the ids decide between a template that rewrites history and text that was encoded again.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from appliance.trees.branches import Role, agent
from appliance.trees.recovery import Recovered
from appliance.trees.tree import common_prefix
from appliance.types import Branch, CallKind, Message, Said, Sample, TokenIds, canonical_json

Decode = Callable[[TokenIds], str]
SHOWN_TOKENS = 24
SHOWN_BEFORE = 8


class Cause(StrEnum):
    """Why a prompt left the path it should have continued."""

    NONCE = "nonce"
    THINKING = "thinking_stripped"
    ARGUMENTS = "arguments_reserialised"
    TOOLS = "tool_schema_changed"
    HISTORY = "history_edited"
    COMPACTION = "compaction"
    SUB_AGENT = "sub_agent"
    AUXILIARY = "auxiliary"
    STRAY = "stray"
    RETRY = "retry"
    PARALLEL = "parallel"
    DRIFT = "reencoding_drift"
    STEP = "next_step"
    UNKNOWN = "unknown"


REMEDIES: dict[Cause, str] = {
    Cause.NONCE: "pin what changes (clock, directory listing, id) by the harness's own option or in its harness file",
    Cause.THINKING: "rollout.rendering = graft keeps sampled reasoning; or the harness's option that sends it back",
    Cause.ARGUMENTS: "rollout.rendering = graft keeps the arguments as they were sampled",
    Cause.TOOLS: "offer all tools from the first call: switch off the harness's deferred or searched tools",
    Cause.HISTORY: "the harness's option that keeps its history as it was said",
    Cause.COMPACTION: "a larger engine.max_model_len, or the harness's option for when it compacts",
    Cause.SUB_AGENT: "switch off the harness's sub-agent tool; branches.sub_agent says how they are trained",
    Cause.AUXILIARY: "the harness's option against titles and side calls; branches.auxiliary leaves them out",
    Cause.STRAY: "do not hand the endpoint on to programs that the agent starts",
    Cause.RETRY: "a larger engine.call_deadline_s, or the harness's longer time-out; dead leaves are not trained",
    Cause.PARALLEL: "the harness's option for one call at a time",
    Cause.DRIFT: "rollout.rendering = graft never encodes again what was sampled",
    Cause.STEP: "none: each step of a task is a conversation of its own",
    Cause.UNKNOWN: "a defect of Corral: report it with this difference",
}


@dataclass(frozen=True, slots=True)
class Fork:
    """One fork. `call` and `reference` are sequence numbers; `reference` is what should have been continued.

    `at`: position of the first differing token · `before`, `expected`, `found`: tokens around it, decoded ·
    `tokens`: prompt tokens that the fork made the engine read and the tree store again · `detail`: what differs in
    words; for UNKNOWN the whole difference.
    """

    call: int
    reference: int
    cause: Cause
    at: int
    before: str
    expected: str
    found: str
    tokens: int
    detail: str = ""

    @property
    def remedy(self) -> str:
        """The setting or harness option that would remove it."""
        return REMEDIES[self.cause]


def forks(calls: Sequence[Said], found: Recovered, decode: Decode) -> list[Fork]:
    """All forks of a rollout in the order of its calls; as many as its tree has leaves beyond the first."""
    tree = found.tree
    call_at = {leaf: found.numbers[s] for s, leaf in enumerate(tree.leaves)}
    above = {found.numbers[s]: _call_above(leaf, found, call_at) for s, leaf in enumerate(tree.leaves)}
    in_time = sorted(found.numbers, key=lambda n: (calls[n].call.started_at, calls[n].call.sequence))
    told: list[Fork] = []
    gone_on: dict[int, int] = {}
    has_root = False
    for place, n in enumerate(in_time):
        parent = above[n]
        if parent is not None and parent not in gone_on:
            gone_on[parent] = n
        elif parent is None and not has_root:
            has_root = True
        else:
            twin = None if parent is None else gone_on[parent]
            told.append(_fork(n, in_time[:place], twin, _View(calls, found, decode)))
    return told


def _call_above(leaf: int, found: Recovered, call_at: dict[int, int]) -> int | None:
    """The call whose whole path the call at `leaf` continues."""
    node = found.tree.nodes[leaf].parent
    while node >= 0 and node not in call_at:
        node = found.tree.nodes[node].parent
    return call_at.get(node)


@dataclass(frozen=True, slots=True)
class _View:
    calls: Sequence[Said]
    found: Recovered
    decode: Decode

    def sample(self, n: int) -> Sample:
        """The sample of a call that has ids."""
        sample = self.calls[n].call.sample
        assert sample is not None
        return sample


def _fork(n: int, earlier: Sequence[int], twin: int | None, view: _View) -> Fork:
    """Explains the fork that call `n` makes. `twin` continued the same call before it."""
    role = view.found.roles[n]
    step = view.calls[n].call.step
    same = [e for e in earlier if view.calls[e].call.step == step]
    if not same:
        cause, reference, detail = Cause.STEP, earlier[-1], f"step {step + 1} of the task begins"
    elif twin is not None and twin not in same:
        cause, reference, detail = Cause.STEP, twin, f"step {step + 1} of the task went as an earlier one until here"
    else:
        cause, reference, detail = _cause(n, same, twin, role, view)
    prompt = view.sample(n).prompt_ids
    base = view.sample(reference)
    path = np.concatenate([base.prompt_ids, base.sampled_ids])
    at = common_prefix(path, prompt)
    shared = max(common_prefix(_path(view.sample(e)), prompt) for e in earlier)
    shown = (path[max(0, at - SHOWN_BEFORE) : at], path[at : at + SHOWN_TOKENS], prompt[at : at + SHOWN_TOKENS])
    before, expected, got = (view.decode(ids) if len(ids) else "" for ids in shown)
    if cause is Cause.UNKNOWN:
        detail = _whole_difference(view.decode(path), view.decode(prompt))
    number = view.calls[n].call.sequence
    other = view.calls[reference].call.sequence
    return Fork(number, other, cause, at, before, expected, got, len(prompt) - shared, detail)


def _path(sample: Sample) -> TokenIds:
    return np.concatenate([sample.prompt_ids, sample.sampled_ids])


def _cause(n: int, earlier: Sequence[int], twin: int | None, role: Role, view: _View) -> tuple[Cause, int, str]:
    """(cause, the call that should have been continued, detail)."""
    roles, call = view.found.roles, view.calls[n]
    parent = role.parent if role.parent in earlier else None
    begins = parent is None or roles[parent].branch is not role.branch
    nearest = parent if parent is not None else _nearest(n, earlier, view)
    if begins and role.branch is Branch.SUB_AGENT:
        return Cause.SUB_AGENT, nearest, f"called in call {view.calls[nearest].call.sequence}"
    if role.branch is Branch.AUXILIARY and begins:
        return (Cause.STRAY if call.call.kind is CallKind.STRAY else Cause.AUXILIARY), nearest, ""
    if parent is None and all(roles[e].branch is Branch.AUXILIARY for e in earlier):
        return Cause.AUXILIARY, nearest, "the agent's first call, after side calls"
    if role.branch is Branch.COMPACTION:
        detail = _compacted(role, call, begins or not _echoes(view.calls[nearest], call), view)
        if detail:
            return Cause.COMPACTION, nearest, detail
    rivals = [e for e in earlier if _asks_the_same(e, n, view)]
    if rivals and role.branch is Branch.SUB_AGENT and agent(call.call) != agent(view.calls[rivals[-1]].call):
        return Cause.SUB_AGENT, rivals[-1], "another agent with the same task"
    if rivals:
        return _again(call, view.calls[rivals[-1]], rivals[-1])
    if role.branch is Branch.PARALLEL and begins:
        return Cause.PARALLEL, nearest, ""
    if twin is not None and parent is not None:
        return _compared(view.calls[twin], call, twin, view, answered=False)
    return _compared(view.calls[nearest], call, nearest, view, answered=parent is not None)


def _compacted(role: Role, call: Said, starts_anew: bool, view: _View) -> str:
    """What a compaction call has to do with a summary; "" for one that only goes on after it."""
    if role.reentered is not None:
        return f"wrote the summary that call {_sequence(role.reentered, view)} starts from"
    if call.call.kind is CallKind.AUXILIARY:
        return "wrote a summary that no call starts from"
    return f"{role.kept} messages of the old history were kept" if starts_anew else ""


def _nearest(n: int, earlier: Sequence[int], view: _View) -> int:
    """The earlier call most like this one: by equal messages in their places, then by equal tokens, then the last."""
    own, prompt = _keys(view.calls[n].messages), view.sample(n).prompt_ids

    def likeness(e: int) -> tuple[int, int, int]:
        said = (*_keys(view.calls[e].messages), view.calls[e].answer.canonical())
        return sum(a == b for a, b in zip(own, said, strict=False)), common_prefix(_path(view.sample(e)), prompt), e

    return max(earlier, key=likeness)


def _sequence(n: int, view: _View) -> int:
    return view.calls[n].call.sequence


def _asks_the_same(a: int, b: int, view: _View) -> bool:
    """Equal words and tools; or, of calls without words, equal prompts."""
    one, other = view.calls[a], view.calls[b]
    if one.messages or other.messages:
        return one.tools == other.tools and _keys(one.messages) == _keys(other.messages)
    return np.array_equal(view.sample(a).prompt_ids, view.sample(b).prompt_ids)


def _echoes(earlier: Said, later: Said) -> bool:
    return earlier.answer.canonical() in _keys(later.messages)


def _again(call: Said, rival: Said, number: int) -> tuple[Cause, int, str]:
    """The same words again: at once, or after the first had ended."""
    at_once = call.call.started_at < rival.call.ended_at
    if at_once:
        return Cause.PARALLEL, number, "the same request at once"
    taken = "whose answer it took" if rival.call.delivered else "whose answer it did not take"
    return Cause.RETRY, number, f"asks again what it asked in call {rival.call.sequence}, {taken}"


# ------------------------------------------------------------------ by what was said


def _compared(reference: Said, call: Said, number: int, view: _View, answered: bool) -> tuple[Cause, int, str]:
    """The cause that the first difference between what should stand there and what stands there names."""
    if reference.tools != call.tools:
        return Cause.TOOLS, number, _tools_difference(reference, call)
    expected = (*reference.messages, reference.answer) if answered else reference.messages
    for k, (mine, theirs) in enumerate(zip(expected, call.messages, strict=False)):
        if _plain(mine) != _plain(theirs):
            cause, detail = _message_cause(mine, theirs)
            return cause, number, f"message {k} ({theirs.role}): {detail}"
    if len(call.messages) < len(expected):
        return Cause.HISTORY, number, f"{len(expected) - len(call.messages)} messages of the history are gone"
    if not answered and call.messages:
        return Cause.HISTORY, number, f"the answer of call {reference.call.sequence} is gone"
    if not call.messages:
        return Cause.UNKNOWN, number, ""
    return _by_tokens(reference, call, number, view)


def _message_cause(mine: Message, theirs: Message) -> tuple[Cause, str]:
    if mine.canonical() == theirs.canonical():
        if mine.reasoning != theirs.reasoning:
            gone = "gone" if not theirs.reasoning else "another text"
            return Cause.THINKING, f"its reasoning ({len(mine.reasoning)} characters) is {gone}"
        written = [c.arguments for c in mine.tool_calls], [c.arguments for c in theirs.tool_calls]
        pairs = [(a, b) for a, b in zip(*written, strict=True) if a != b]
        if pairs:
            return Cause.ARGUMENTS, f"{pairs[0][0]!r} became {pairs[0][1]!r}"
        return Cause.HISTORY, "white space around its text"
    if mine.role == theirs.role and _is_nonce(mine.content, theirs.content):
        return Cause.NONCE, _words_around(mine.content, theirs.content)
    if _same_arguments_but_text(mine, theirs):
        return Cause.ARGUMENTS, "the tool call came back as text"
    return Cause.HISTORY, _words_around(mine.content, theirs.content) or "other tool calls"


def _by_tokens(reference: Said, call: Said, number: int, view: _View) -> tuple[Cause, int, str]:
    """All is said alike, yet the ids differ: the template dropped reasoning, or the same text was encoded again."""
    base, prompt = view.sample(number), view.sample(_index(call, view)).prompt_ids
    old, new = view.decode(_path(base)), view.decode(prompt)
    if new.startswith(old.rstrip("\n")) or old.rstrip("\n") in new:
        return Cause.DRIFT, number, "the same text in other tokens"
    thoughts = [m.reasoning.strip() for m in (*reference.messages, reference.answer) if m.reasoning.strip()]
    if any(old.count(t) > new.count(t) for t in thoughts) or old.count("<think>") > new.count("<think>"):
        return Cause.THINKING, number, "the chat template leaves earlier reasoning out"
    if _bare(old) in _bare(new):
        return Cause.DRIFT, number, "the same text but for white space"
    if _bare(_alike_json(old)) in _bare(_alike_json(new)):
        return Cause.ARGUMENTS, number, "the chat template writes arguments in its own way"
    return Cause.UNKNOWN, number, ""


def _index(call: Said, view: _View) -> int:
    return next(n for n, c in enumerate(view.calls) if c is call)


def _alike_json(text: str) -> str:
    """`text` with the JSON of every tool call written in one way."""
    return re.sub(r"(?s)(?<=<tool_call>)(.*?)(?=</tool_call>)", lambda m: canonical_json(m[0]), text)


def _bare(text: str) -> str:
    return "".join(text.split())


def _plain(message: Message) -> tuple[object, ...]:
    """All of a message that rendering reads, exactly; ids of calls are not rendered."""
    calls = tuple((c.full_name, c.arguments) for c in message.tool_calls)
    return message.role, message.content, message.reasoning, calls


def _keys(messages: Sequence[Message]) -> list[tuple[object, ...]]:
    return [m.canonical() for m in messages]


_DAYS = r"\b(?:(?:mon|tues|wednes|thurs|fri|satur|sun)day|mon|tue|wed|thu|fri|sat|sun)\b"
_MONTHS = r"\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\b"
_CHANGING = re.compile(rf"[0-9a-f]{{6,}}|\d+|{_DAYS}|{_MONTHS}", re.IGNORECASE)


def _is_nonce(a: str, b: str) -> bool:
    """Texts that agree once numbers, hexadecimal ids and names of days and months are taken out, or all but a word."""
    if _CHANGING.sub("#", a) == _CHANGING.sub("#", b):
        return True
    first, second = a.split(), b.split()
    differing = [(x, y) for x, y in zip(first, second, strict=False) if x != y]
    unlike = all(any(ch.isdigit() for ch in x + y) for x, y in differing)
    return len(first) == len(second) and bool(differing) and unlike


def _same_arguments_but_text(mine: Message, theirs: Message) -> bool:
    """A tool call that returns as words of the assistant."""
    return bool(mine.tool_calls) and not theirs.tool_calls and all(c.name in theirs.content for c in mine.tool_calls)


def _tools_difference(a: Said, b: Said) -> str:
    names = [{t.full_name: t for t in c.tools} for c in (a, b)]
    added, gone = names[1].keys() - names[0].keys(), names[0].keys() - names[1].keys()
    changed = [n for n in names[0].keys() & names[1].keys() if names[0][n] != names[1][n]]
    parts = [("added", added), ("gone", gone), ("changed", changed)]
    return "; ".join(f"{word}: {', '.join(sorted(n))}" for word, n in parts if n) or "their order"


def _words_around(a: str, b: str, width: int = 30) -> str:
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    lo = max(0, at - width // 2)
    return f"{a[lo : at + width]!r} became {b[lo : at + width]!r}" if a != b else ""


def _whole_difference(old: str, new: str) -> str:
    return "\n".join(difflib.unified_diff(old.splitlines(), new.splitlines(), "expected", "found", lineterm="", n=2))
