"""What each call is to its rollout: continuation, compaction, sub-agent, parallel or auxiliary call. Pure.

Invariant: a call's parent started before it, so roles cannot go in circles whatever the headers claim; and roles
depend on ids, words and times of the calls, never on the order in which they are given.

Exact token ids decide first (a prompt that holds a whole earlier call continues it), then what was said, compared
in canonical form, then the headers by which harnesses name their agents and windows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from appliance.trees.lineage import WINDOW_HEADER
from appliance.trees.tree import Tree
from appliance.types import Branch, Call, CallKind, Said

SUB_AGENT_HEADERS = (
    "x-openai-subagent",
    "x-codex-parent-thread-id",
    "x-claude-code-agent-id",
    "x-parent-session-id",
)
"""Headers by which harnesses mark a sub-agent's calls."""
MIN_TOLD_CHARS = 12
"""A shorter text found inside another proves nothing: `done` is said by everyone."""


@dataclass(frozen=True, slots=True)
class Role:
    """What a call is. Numbers are positions in the list of calls.

    `parent`: the call it continues, that called its agent, or whose summary it starts from; None for a root.
    `reentered`: the later call outside its branch into whose prompt its answer went; None when none is seen.
    `kept`: messages of the old history that a compaction took over.
    """

    branch: Branch
    parent: int | None = None
    reentered: int | None = None
    kept: int = 0


def agent(call: Call) -> str:
    """The harness's own id of the agent that made a call; "" for the main agent, or where it says none."""
    try:
        found = json.loads(call.lineage or "{}")
    except ValueError:
        return ""
    return str(found.get("agent", "")) if isinstance(found, dict) else ""


def headers(call: Call) -> dict[str, str]:
    """The headers kept on a call; {} for none or for what is no object of texts."""
    try:
        found = json.loads(call.lineage or "{}")
    except ValueError:
        return {}
    kept = found.get("headers", found) if isinstance(found, dict) else {}
    return {str(k): str(v) for k, v in kept.items()} if isinstance(kept, dict) else {}


def roles(calls: Sequence[Said], tree: Tree, numbers: Sequence[int]) -> list[Role]:
    """One role a call. `tree` holds the calls that have ids; `numbers[i]` is the call of its sample i.

    Each step of a task is read by itself: it is a conversation of its own.
    """
    continued = _continued(tree, numbers)
    found: dict[int, Role] = {}
    for step in sorted({c.call.step for c in calls}):
        own = [i for i, c in enumerate(calls) if c.call.step == step]
        reading = _Reading(calls, {i: continued[i] for i in own if continued.get(i) in own})
        for i in sorted(own, key=reading.order):
            reading.place(i)
        found |= reading.with_returns()
    return [found[i] for i in range(len(calls))]


class _Keys:
    """Canonical forms of messages and answers, made when they are asked for: a rollout that never forks needs none."""

    def __init__(self, calls: Sequence[Said]) -> None:
        self._calls = calls
        self._made: dict[int, list[tuple[object, ...]]] = {}

    def __getitem__(self, i: int) -> list[tuple[object, ...]]:
        if i not in self._made:
            self._made[i] = [m.canonical() for m in self._calls[i].messages]
        return self._made[i]

    def answer(self, i: int) -> tuple[object, ...]:
        """The answer's."""
        return self._calls[i].answer.canonical()


class _Reading:
    """Roles as they are found, earliest call first."""

    def __init__(self, calls: Sequence[Said], continued: Mapping[int, int]) -> None:
        self.calls = calls
        self.roles: dict[int, Role] = {}
        self.headers = [headers(c.call) for c in calls]
        self.keys = _Keys(calls)
        self.continued = continued
        self.placed: list[int] = []

    def order(self, i: int) -> tuple[float, int, int]:
        """Earliest first; what was sent in the same instant, the shorter first."""
        return (self.calls[i].call.started_at, len(self.calls[i].messages), self.calls[i].call.sequence)

    def place(self, i: int) -> None:
        """Finds the role of a call whose forerunners all have theirs."""
        self.roles[i] = self._follows(i) or self._own_branch(i)
        self.placed.append(i)

    # ------------------------------------------------------------------ going on

    def _follows(self, i: int) -> Role | None:
        """The role of a call that goes on where an earlier one ended."""
        parent = self.continued.get(i)
        if parent is None or parent not in self.roles:
            parent = self._echoed(i)
        if parent is None:
            return None
        branch = self.roles[parent].branch
        twins = [j for j in self.placed if self.roles[j].parent == parent and self._overlap(i, j)]
        if twins and branch is Branch.CONTINUATION:
            branch = Branch.PARALLEL
        return Role(self._marked(i, parent) or branch, parent)

    def _echoed(self, i: int) -> int | None:
        """The earlier call whose answer stands latest in this call's messages as an assistant's turn."""
        best: tuple[int, int, int] | None = None
        for rank, j in enumerate(self.placed):
            if not (self.calls[j].answer.content.strip() or self.calls[j].answer.tool_calls):
                continue
            at = [n for n, key in enumerate(self.keys[i]) if key == self.keys.answer(j)]
            if not at:
                continue
            alike = sum(a == b for a, b in zip(self.keys[i], self.keys[j], strict=False))
            if alike or len(self.keys[j]) in at:
                best = max(best or (-1, -1, -1), (at[-1], alike, rank))
        return None if best is None else self.placed[best[2]]

    # ------------------------------------------------------------------ starting anew

    def _own_branch(self, i: int) -> Role:
        """The role of a call that repeats no earlier answer."""
        repeated = self._repeated(i)
        if not self.placed or not self.keys[i]:
            return Role(self._marked(i, None) or Branch.CONTINUATION)
        marked = self._marked(i, None)
        if repeated is not None and marked is not Branch.COMPACTION:  # two summaries may be word for word the same
            twin = self.roles[repeated]
            overlaps = self._overlap(i, repeated) and twin.branch is Branch.CONTINUATION
            return Role(Branch.PARALLEL if overlaps else twin.branch, twin.parent)
        caller = self._caller(i)
        if marked is Branch.SUB_AGENT or (caller is not None and marked is None):
            return Role(Branch.SUB_AGENT, self.placed[-1] if caller is None else caller)
        summary = self._summary(i)
        if summary is not None or marked is Branch.COMPACTION:
            source = self._closed_window(i) if summary is None else summary
            return Role(Branch.COMPACTION, source, kept=self._kept(i, source))
        if marked is not None:
            return Role(marked)
        if all(self.roles[j].branch is Branch.AUXILIARY for j in self.placed):
            return Role(Branch.CONTINUATION)  # the agent's first call, after titles and the like
        return self._edited(i)

    def _edited(self, i: int) -> Role:
        """A cut history goes on from the call most like it, an edited one beside it; one like none is a side call."""
        alike = {j: sum(k in self.keys[j] for k in self.keys[i]) for j in self.placed}
        best = max(self.placed, key=lambda j: (alike[j], self.order(j)))
        same_tools = self.calls[best].tools == self.calls[i].tools
        users = [m for m in self.calls[i].messages if m.role == "user"]
        if alike[best] and (alike[best] > 1 or len(users) > 1 or same_tools or not self.calls[best].tools):
            shorter = len(self.keys[i]) < len(self.keys[best]) and alike[best] >= len(self.keys[i]) - 1
            branch = self.roles[best].branch
            if shorter and alike[best] > 2 and branch is Branch.CONTINUATION:
                return Role(Branch.COMPACTION, best, kept=alike[best])
            return Role(branch, self.roles[best].parent)
        if same_tools and self.calls[i].tools and len(users) >= 1 and _alike_text(self.calls[i], self.calls[best]):
            return Role(self.roles[best].branch, self.roles[best].parent)
        return Role(Branch.AUXILIARY)

    def _repeated(self, i: int) -> int | None:
        """An earlier call that asked the same in the same words."""
        if not self.keys[i]:
            return None
        same = [j for j in self.placed if self.keys[j] == self.keys[i] and self.calls[j].tools == self.calls[i].tools]
        return same[-1] if same else None

    def _caller(self, i: int) -> int | None:
        """The earlier call one of whose tool calls told this conversation's user text."""
        users = [m.content.strip() for m in self.calls[i].messages if m.role == "user"]
        for j in reversed(self.placed):
            told = [t for c in self.calls[j].answer.tool_calls for t in _texts(c.arguments) if len(t) >= MIN_TOLD_CHARS]
            if any(t in user for t in told for user in users):
                return j
        return None

    def _summary(self, i: int) -> int | None:
        """The earlier call whose answer is retold inside a message here."""
        told = [m.content for m in self.calls[i].messages if m.role in ("user", "system")]
        for j in reversed(self.placed):
            text = _summary_text(self.calls[j].answer.content)
            if len(text) >= MIN_TOLD_CHARS and any(text in t for t in told):
                return j
        return None

    def _kept(self, i: int, source: int) -> int:
        return sum(key in self.keys[source] for key in self.keys[i])

    def _closed_window(self, i: int) -> int:
        """The call that ended the window before this one, where a header tells; else the main agent's last."""
        thread = self.headers[i].get(WINDOW_HEADER, "").rpartition(":")[0]
        same = [j for j in self.placed if thread and self.headers[j].get(WINDOW_HEADER, "").startswith(f"{thread}:")]
        main = [j for j in self.placed if self.roles[j].branch in (Branch.CONTINUATION, Branch.COMPACTION)]
        return (same or main or self.placed)[-1]

    # ------------------------------------------------------------------ headers and times

    def _marked(self, i: int, parent: int | None) -> Branch | None:
        """What the headers say; a call that goes on in a branch of its own keeps that branch."""
        told, kind = self.headers[i], self.calls[i].call.kind
        if parent is not None and self.roles[parent].branch is not Branch.CONTINUATION:
            return None
        if kind in (CallKind.AUXILIARY, CallKind.STRAY):
            return Branch.AUXILIARY
        if kind is CallKind.SUB_AGENT or any(header in told for header in SUB_AGENT_HEADERS):
            return Branch.SUB_AGENT
        thread, _, number = told.get(WINDOW_HEADER, "").rpartition(":")
        windows = [self.headers[j].get(WINDOW_HEADER, "").rpartition(":") for j in self.placed] if thread else []
        earlier = {n for other, _, n in windows if other == thread}
        if earlier and number.isdigit() and all(n.isdigit() and int(n) < int(number) for n in earlier):
            return Branch.COMPACTION
        return None

    def _overlap(self, i: int, j: int) -> bool:
        a, b = self.calls[i].call, self.calls[j].call
        return a.started_at < b.ended_at and b.started_at < a.ended_at

    # ------------------------------------------------------------------ coming back

    def with_returns(self) -> dict[int, Role]:
        """Roles by call, with where answers of side branches came back; a call that wrote a summary is compaction."""
        for i, role in list(self.roles.items()):
            source = role.parent
            if source is not None and role.branch is Branch.COMPACTION and self._summarised(source, i):
                self.roles[source] = replace(self.roles[source], branch=Branch.COMPACTION, reentered=i)
        for i, role in self.roles.items():
            if role.branch in (Branch.SUB_AGENT, Branch.PARALLEL, Branch.AUXILIARY):
                self.roles[i] = replace(role, reentered=self._return(i, role.branch))
        return self.roles

    def _summarised(self, source: int, i: int) -> bool:
        """Whether `source` wrote the summary that `i` starts from: retold there, or asked for as its window ended.

        A policy's summary may be too short to be found again, or none at all; it is as much to blame as a good one.
        """
        if self.roles[source].branch not in _SUMMARISING:
            return False
        windows = [self.headers[n].get(WINDOW_HEADER, "") for n in (source, i)]
        is_asked = self.calls[source].call.kind is CallKind.AUXILIARY and windows[0] != windows[1] != ""
        return is_asked or self._retold(source, i)

    def _return(self, i: int, branch: Branch) -> int | None:
        others = (j for j in self.placed if self.roles[j].branch is not branch)
        return next((j for j in others if self.order(j) > self.order(i) and self._retold(i, j)), None)

    def _retold(self, i: int, j: int) -> bool:
        text = _summary_text(self.calls[i].answer.content)
        return len(text) >= MIN_TOLD_CHARS and any(text in m.content for m in self.calls[j].messages)


_SUMMARISING = (Branch.CONTINUATION, Branch.COMPACTION, Branch.AUXILIARY)
"""What a call that wrote a summary was taken for before the summary was found again; a later one follows an earlier."""


def _continued(tree: Tree, numbers: Sequence[int]) -> dict[int, int]:
    """Call → the call whose whole path its prompt holds, by exact ids."""
    call_at = {leaf: call for call, leaf in enumerate(tree.leaves) if len(tree.nodes[leaf].ids)}
    found: dict[int, int] = {}
    for sample, leaf in enumerate(tree.leaves):
        node = tree.nodes[leaf].parent if tree.nodes[leaf].call == sample else -1
        while node >= 0 and (node not in call_at or tree.nodes[node].call == sample):
            node = tree.nodes[node].parent
        if node >= 0:
            found[numbers[sample]] = numbers[call_at[node]]
    return found


def _texts(arguments: str) -> list[str]:
    """Every text inside a tool call's arguments; the whole when they are no JSON."""
    try:
        waiting = [json.loads(arguments)]
    except (ValueError, RecursionError):
        return [arguments.strip()]
    found: list[str] = []
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            found.append(value.strip())
        elif isinstance(value, dict | list):
            waiting += value.values() if isinstance(value, dict) else value
    return found


def _summary_text(content: str) -> str:
    """The words of an answer that a harness retells, without a wrapping tag such as <summary>."""
    text = content.strip()
    if text.startswith("<") and text.endswith(">"):
        text = text.partition(">")[2].rpartition("<")[0]
    return text.strip()


def _alike_text(a: Said, b: Said) -> bool:
    """Whether two conversations open alike but for a few words: most of the words of one are the other's."""
    first, second = (set(" ".join(m.content for m in c.messages).split()) for c in (a, b))
    return 2 * len(first & second) > min(len(first), len(second)) > 0
