"""Calls of one rollout as text: what was asked, what was answered, and the bytes as they went over the wire."""

from __future__ import annotations

from dataclasses import dataclass, replace

from appliance.record.conversation import from_neutral_json
from appliance.record.store import Store
from appliance.types import Call, Message
from tui.text import plain, plain_line

MAX_CHARS = 200_000
"""Characters of one text that are shown; a terminal is no place for more."""


@dataclass(frozen=True, slots=True)
class CallText:
    """One call. `num_known` messages were in the previous call already. `answer` None: the record's text is broken.

    Token counts and `policy_version` are None for a teacher's call, which has no token ids.
    """

    id: int
    sequence: int
    wire: str
    lineage: str
    stop_reason: str
    is_delivered: bool
    seconds: float
    num_prompt_tokens: int | None
    num_sampled_tokens: int | None
    policy_version: int | None
    tools: tuple[str, ...]
    messages: tuple[Message, ...]
    answer: Message | None
    num_known: int
    request: str
    response: str


def read_calls(store: Store, rollout_id: int) -> tuple[CallText, ...]:
    """The calls of a rollout's latest attempt, in order."""
    found: list[CallText] = []
    before: tuple[Message, ...] = ()
    for call, neutral in zip(store.calls(rollout_id), store.conversations(rollout_id), strict=False):
        text = _call_text(call, neutral, before)
        before = (*text.messages, text.answer) if text.answer else text.messages
        found.append(text)
    return tuple(found)


def _call_text(call: Call, neutral: bytes, before: tuple[Message, ...]) -> CallText:
    sample = call.sample
    answer: Message | None = None
    try:
        raw_messages, raw_tools, raw_answer = from_neutral_json(neutral)
        messages, tools, answer = tuple(_safe(m) for m in raw_messages), raw_tools, _safe(raw_answer)
    except ValueError:  # the raw bytes are still shown
        messages, tools = (), ()
    return CallText(
        id=call.id,
        sequence=call.sequence,
        wire=plain_line(call.wire),
        lineage=plain_line(call.lineage),
        stop_reason=str(sample.stop_reason) if sample else "",
        is_delivered=call.delivered,
        seconds=call.ended_at - call.started_at,
        num_prompt_tokens=len(sample.prompt_ids) if sample else None,
        num_sampled_tokens=len(sample.sampled_ids) if sample else None,
        policy_version=sample.policy_version if sample else None,
        tools=tuple(plain_line(t.name) for t in tools),
        messages=messages,
        answer=answer,
        num_known=_num_shared(before, messages),
        request=_decoded(call.request_bytes),
        response=_decoded(call.response_bytes),
    )


def _num_shared(before: tuple[Message, ...], messages: tuple[Message, ...]) -> int:
    """How many leading messages the previous call had already; an edited history shares fewer."""
    shared = 0
    for old, new in zip(before, messages, strict=False):
        if old.canonical() != new.canonical():
            break
        shared += 1
    return shared


def _safe(message: Message) -> Message:
    calls = tuple(
        replace(c, id=plain_line(c.id), name=plain_line(c.name), arguments=_short(plain(c.arguments)))
        for c in message.tool_calls
    )
    return Message(
        role=plain_line(message.role),
        content=_short(plain(message.content)),
        reasoning=_short(plain(message.reasoning)),
        tool_calls=calls,
        tool_call_id=plain_line(message.tool_call_id),
    )


def _decoded(body: bytes) -> str:
    return _short(plain(body[: 4 * MAX_CHARS].decode("utf-8", "backslashreplace")))


def _short(text: str) -> str:
    return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}\n… {len(text) - MAX_CHARS} more characters"
