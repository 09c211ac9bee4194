"""Who made a call: the harness's main agent, a sub-agent, a side call of the harness, or a program it started. Pure.

Harnesses that say so in headers are believed. For the others the conversation tells: what continues a recorded call
belongs to its line; a new line without tools is a side call; one whose task stands in an earlier tool call is a
sub-agent's; one from another client program is a stray that inherited the endpoint.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from appliance.types import Answer, CallKind, Message, Request, Tool

WINDOW_HEADER = "x-codex-window-id"
"""<thread>:<n>; n grows with each compaction."""
# Headers by which harnesses tell sub-agents and side calls from the main agent; kept on the record.
HEADERS = (
    "x-openai-subagent",
    "x-codex-parent-thread-id",
    "thread-id",
    WINDOW_HEADER,
    "x-claude-code-agent-id",
    "x-claude-code-session-id",
    "x-session-id",
    "x-parent-session-id",
)
# Values of x-openai-subagent that are not an agent at work but housekeeping.
_CODEX_SIDE = ("compact", "memory_consolidation")
_SIDE_TEXT = re.compile(
    r"\btitle generator\b|\b(generate|write|create|come up with) an? (very |short |brief |concise |\d-?\w* )*title\b"
    r"|\bsummari[sz](e|ing|ation of) (the|this|our) (conversation|session|chat)"
    r"|\bsummary of (the|this|our) (conversation|session|chat)|\bconversation summar|\bsummarization assistant"
    r"|CONTEXT CHECKPOINT COMPACTION|\bcontext[- ]compaction\b|\bcontext summarization\b",
    re.IGNORECASE,
)
_MIN_TASK = 16
"""Characters a first user message must have to be looked for in tool calls; shorter ones are there by chance."""
_KEPT_ARGUMENTS = 200
_END = 1500
_SIDE_WORDS = ("title", "summar", "compaction")


@dataclass(frozen=True, slots=True)
class Lineage:
    """Whose call it is. `agent` and `parent` are the harness's own ids, or empty; `why` says how it is known.

    `step`: of the task, from 0, each of which is a conversation of its own.
    """

    kind: CallKind = CallKind.MAIN
    agent: str = ""
    parent: str = ""
    why: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    step: int = 0

    def text(self) -> str:
        """As the record keeps it: JSON, or nothing for the main agent of a harness that sends no ids."""
        found: dict[str, object] = {"kind": str(self.kind)} if self.kind is not CallKind.MAIN else {}
        found |= {k: v for k, v in (("agent", self.agent), ("parent", self.parent), ("why", self.why)) if v}
        if self.headers:
            found["headers"] = dict(self.headers)
        if self.step:
            found["step"] = self.step
        return json.dumps(found, separators=(",", ":"), ensure_ascii=False) if found else ""


def from_text(text: str) -> Lineage:
    """A lineage as the record keeps it."""
    found = json.loads(text) if text else {}
    kind = CallKind(found.get("kind", CallKind.MAIN))
    agent, parent, why = (str(found.get(key, "")) for key in ("agent", "parent", "why"))
    return Lineage(kind, agent, parent, why, found.get("headers", {}), int(found.get("step", 0)))


@dataclass(slots=True)
class _Main:
    client: str
    tools: tuple[Tool, ...]
    thread: str


@dataclass(slots=True)
class Family:
    """What is known of one rollout's agents; `mark` each call as it comes, `heard` each answer as it is recorded."""

    main: _Main | None = None
    arguments: list[str] = field(default_factory=list)

    def mark(self, request: Request, headers: Mapping[str, str], continues: Lineage | None) -> Lineage:
        """Whose call this is. `continues` is the lineage of the recorded call that the request continues."""
        kept = {name: headers[name] for name in HEADERS if name in headers}
        said = self._by_headers(kept)
        if said is None:
            said = self._by_conversation(request, _client(headers), continues)
        if said.kind is CallKind.MAIN and self.main is None:
            self.main = _Main(_client(headers), request.tools, _thread(kept))
        elif said.kind is CallKind.MAIN and self.main is not None and not self.main.client:
            self.main.client = _client(headers)  # the record of an earlier proxy does not name the program
        return Lineage(said.kind, said.agent, said.parent, said.why, kept)

    def heard(self, answer: Answer) -> None:
        """Remember what was answered: a sub-agent's task comes out of a tool call."""
        self.arguments += [call.arguments for call in answer.message.tool_calls]
        del self.arguments[:-_KEPT_ARGUMENTS]

    def _by_headers(self, kept: Mapping[str, str]) -> Lineage | None:
        codex = kept.get("x-openai-subagent", "")
        if codex in _CODEX_SIDE:
            return Lineage(CallKind.AUXILIARY, why=f"x-openai-subagent: {codex}")
        if codex or "x-codex-parent-thread-id" in kept:
            agent, parent = kept.get("thread-id", ""), kept.get("x-codex-parent-thread-id", "")
            return Lineage(CallKind.SUB_AGENT, agent, parent, "codex's headers")
        if "x-claude-code-agent-id" in kept:
            agent, parent = kept["x-claude-code-agent-id"], kept.get("x-claude-code-session-id", "")
            return Lineage(CallKind.SUB_AGENT, agent, parent, "claude-code's headers")
        if "x-parent-session-id" in kept:
            agent, parent = kept.get("x-session-id", ""), kept["x-parent-session-id"]
            return Lineage(CallKind.SUB_AGENT, agent, parent, "its session has a parent session")
        thread = _thread(kept)
        if self.main is not None and thread and self.main.thread and thread != self.main.thread:
            return Lineage(CallKind.SUB_AGENT, thread, self.main.thread, "another session id than the main agent's")
        return None

    def _by_conversation(self, request: Request, client: str, continues: Lineage | None) -> Lineage:
        is_side = asks_for_side_work(request)
        if continues is not None:
            if is_side and continues.kind is CallKind.MAIN:
                return Lineage(CallKind.AUXILIARY, why="asks for a summary of the conversation")
            return Lineage(continues.kind, continues.agent, continues.parent, continues.why)
        if is_side and not request.tools:
            return Lineage(CallKind.AUXILIARY, why="asks for a title or a summary")
        if self.main is None:
            return Lineage()
        if self.main.client and client != self.main.client:
            return Lineage(CallKind.STRAY, agent=client, why="another client program, and no recorded conversation")
        if self.main.tools and not request.tools:
            return Lineage(CallKind.AUXILIARY, why="a conversation of its own without tools")
        if self._was_given(request.messages):
            return Lineage(CallKind.SUB_AGENT, why="its task stands in an earlier tool call")
        return Lineage()

    def _was_given(self, messages: tuple[Message, ...]) -> bool:
        task = next((m.content.strip() for m in messages if m.role == "user"), "")
        if len(task) < _MIN_TASK:
            return False
        spellings = [json.dumps(task, ensure_ascii=ascii_only)[1:-1] for ascii_only in (False, True)]
        return any(spelling in arguments for arguments in self.arguments for spelling in spellings)


def asks_for_side_work(request: Request) -> bool:
    """Whether the system prompt or the newest user message asks for a title or for a summary of the conversation."""
    last = next((m.content for m in reversed(request.messages) if m.role == "user"), "")
    first = request.messages[0].content if request.messages and request.messages[0].role == "system" else ""
    return _is_side_text(last) or (not request.tools and _is_side_text(first))


def _is_side_text(text: str) -> bool:
    """Looks at both ends only: what is asked for stands before or after what it is asked of."""
    ends = text if len(text) <= 2 * _END else f"{text[:_END]}\n{text[-_END:]}"
    low = ends.lower()
    return any(word in low for word in _SIDE_WORDS) and bool(_SIDE_TEXT.search(ends))


def opens_window(headers: Mapping[str, str], earlier: Lineage) -> bool:
    """Whether a request says that it comes from another window of `earlier`'s thread: a compaction lies between."""
    told = [kept.get(WINDOW_HEADER, "").rpartition(":") for kept in (headers, earlier.headers)]
    return bool(told[0][0]) and told[0][0] == told[1][0] and told[0][2] != told[1][2]


def _client(headers: Mapping[str, str]) -> str:
    """The product in front of the user agent's version: `OpenAI/Python`, `claude-cli`, `codex_exec`."""
    product = re.match(r"[A-Za-z_./ -]*[A-Za-z]", headers.get("user-agent", ""))
    return product[0] if product else ""


def _thread(kept: Mapping[str, str]) -> str:
    return kept.get("thread-id") or kept.get("x-session-id") or ""
