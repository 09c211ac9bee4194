"""Anthropic Messages: content blocks in, content blocks and server-sent events out. Pure; no clock, no I/O.

A user turn that holds tool results becomes tool messages and, for the text beside them, a user message, in the
order of its blocks. Assistant messages that follow each other are one turn, as one sampled answer was. Tools
marked `defer_loading` stay out of the prompt's head and are shown where a `tool_reference` names them, so that a
tool loaded in mid-conversation leaves every earlier token in place.
"""

from __future__ import annotations

import base64
import json

from appliance.capture.wire.body import (
    JsonObject,
    argument_object,
    compact,
    get_bool,
    get_count,
    get_list,
    get_str,
    kind_of,
    load_object,
    need_object,
    need_str,
    object_text,
    schema_text,
    settings_text,
)
from appliance.capture.wire.turns import Turns
from appliance.types import Answer, Message, Request, StopReason, Tool, ToolCall

_NOT_SETTINGS = frozenset(
    {
        "messages",
        "system",
        "tools",
        "stream",
        "max_tokens",
        "metadata",
        "cache_control",
        "context_management",
        "service_tier",
        "betas",
        "anthropic_beta",
    }
)
# Spoken to the API and not to the model: Claude Code puts its version and a hash there.
_BILLING = "x-anthropic-billing-header:"
# What Claude Code echoes for an answer of nothing.
_NO_CONTENT = "(no content)"
_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}
_DEFERRED = dict[str, Tool]
_Block = tuple[str, JsonObject]  # its place, and itself


def parse_request(body: bytes) -> Request:
    """The request in `body`; ValueError names the place of what cannot be understood."""
    source = load_object(body)
    items = get_list(source, "messages", "messages")
    if not items:
        raise ValueError("messages: missing or empty")
    tools, deferred = _tools(source)
    return Request(
        wire="messages",
        model=get_str(source, "model", "model"),
        messages=(*_system(source.get("system")), *_messages(items, deferred)),
        tools=tools,
        stream=get_bool(source, "stream", "stream"),
        max_tokens=get_count(source, "max_tokens"),
        raw=body,
        settings=settings_text(source, _NOT_SETTINGS),
    )


def _system(value: object) -> tuple[Message, ...]:
    blocks = [{"text": value}] if isinstance(value, str) else value
    texts: list[str] = []
    for i, item in enumerate(get_list({"system": blocks}, "system", "system")):
        text = get_str(need_object(item, f"system[{i}]"), "text", f"system[{i}].text")
        if text and not text.startswith(_BILLING):
            texts.append(text)
    return (Message("system", "\n".join(texts)),) if texts else ()


def _messages(items: list[object], deferred: _DEFERRED) -> tuple[Message, ...]:
    turns = Turns()
    for i, item in enumerate(items):
        place = f"messages[{i}]"
        source = need_object(item, place)
        role = need_str(source, "role", f"{place}.role")
        blocks = _blocks(source.get("content"), f"{place}.content")
        if role == "assistant":
            _assistant(turns, blocks)
        elif role in ("user", "system"):
            _user(turns, role, blocks, deferred)
        else:
            raise ValueError(f"{place}.role: unknown role {role!r}")
    return turns.messages


def _assistant(turns: Turns, blocks: list[_Block]) -> None:
    turns.assistant()
    for at, block in blocks:
        kind = block.get("type")
        if kind == "text":
            text = get_str(block, "text", f"{at}.text")
            turns.assistant("" if text == _NO_CONTENT else text)
        elif kind == "thinking":
            turns.assistant(reasoning=get_str(block, "thinking", f"{at}.thinking"))
        elif kind == "tool_use":
            name = need_str(block, "name", f"{at}.name")
            arguments = object_text(block.get("input"), f"{at}.input")
            turns.assistant(call=ToolCall(get_str(block, "id", f"{at}.id"), name, arguments))


def _user(turns: Turns, role: str, blocks: list[_Block], deferred: _DEFERRED) -> None:
    for at, block in blocks:
        if block.get("type") == "tool_result":
            text = "\n".join(_result_texts(block.get("content"), f"{at}.content", deferred))
            turns.result(text, get_str(block, "tool_use_id", f"{at}.tool_use_id"))
        else:
            turns.say(role, _block_text(block, at, deferred))
    if not blocks:
        turns.say(role, "")
    turns.close()


def _result_texts(value: object, place: str, deferred: _DEFERRED) -> list[str]:
    return [_block_text(block, at, deferred) for at, block in _blocks(value, place)]


def _block_text(block: JsonObject, place: str, deferred: _DEFERRED) -> str:
    kind = block.get("type", "text")
    if kind == "text":
        return get_str(block, "text", f"{place}.text")
    if kind == "tool_reference":
        name = need_str(block, "tool_name", f"{place}.tool_name")
        return _tool_line(deferred[name]) if name in deferred else f"Tool {name} is available."
    if kind == "search_result":
        return "\n".join(_result_texts(block.get("content"), f"{place}.content", deferred))
    if kind == "document":
        source = need_object(block.get("source"), f"{place}.source")
        if source.get("type") == "text":
            return get_str(source, "data", f"{place}.source.data")
        if source.get("type") == "content":
            return "\n".join(_result_texts(source.get("content"), f"{place}.source.content", deferred))
    raise ValueError(f"{place}: this model takes text only, not {kind!r}")


def _blocks(value: object, place: str) -> list[_Block]:
    """(place, block) of a content: text alone is one text block; absent is none."""
    if value is None:
        return []
    if isinstance(value, str):
        return [(place, {"type": "text", "text": value})]
    if not isinstance(value, list):
        raise ValueError(f"{place}: expected a string or an array, got {kind_of(value)}")
    return [(f"{place}[{i}]", need_object(item, f"{place}[{i}]")) for i, item in enumerate(value)]


def _tools(source: JsonObject) -> tuple[tuple[Tool, ...], _DEFERRED]:
    """(tools for the head of the prompt, deferred ones by name). The API's own server tools are left out."""
    head: list[Tool] = []
    deferred: _DEFERRED = {}
    for i, item in enumerate(get_list(source, "tools", "tools")):
        at = f"tools[{i}]"
        entry = need_object(item, at)
        if entry.get("type") not in (None, "custom") and entry.get("input_schema") is None:
            continue
        tool = Tool(
            name=need_str(entry, "name", f"{at}.name"),
            description=get_str(entry, "description", f"{at}.description"),
            parameters=schema_text(entry.get("input_schema"), f"{at}.input_schema"),
        )
        if get_bool(entry, "defer_loading", f"{at}.defer_loading"):
            deferred[tool.name] = tool
        else:
            head.append(tool)
    return tuple(head), deferred


def _tool_line(tool: Tool) -> str:
    function = {"name": tool.name, "description": tool.description, "parameters": json.loads(tool.parameters)}
    return json.dumps({"type": "function", "function": function}, ensure_ascii=False)


# ------------------------------------------------------------------ what the harness is told


def answer_json(request: Request, answer: Answer, call_id: str) -> bytes:
    """The whole answer as one `message` object."""
    head = _head(request, call_id) | {"content": _content(answer, call_id), "stop_reason": _stop_reason(answer)}
    return compact(head | {"usage": _usage(answer)})


def stream_start(request: Request, call_id: str) -> bytes:
    """`message_start`: the message without content. How long its prompt is comes with `message_delta`."""
    return _event("message_start", message=_head(request, call_id))


def keep_alive(request: Request, call_id: str, n: int) -> bytes:
    """The API's own `ping`."""
    return _event("ping")


def stream_answer(request: Request, answer: Answer, call_id: str, num_keep_alives: int = 0) -> list[bytes]:
    """start, deltas and stop of every block."""
    out: list[bytes] = []
    for index, block in enumerate(_content(answer, call_id)):
        empty, deltas = _deltas(block)
        out.append(_event("content_block_start", index=index, content_block=empty))
        out += [_event("content_block_delta", index=index, delta=delta) for delta in deltas]
        out.append(_event("content_block_stop", index=index))
    return out


def stream_end(request: Request, answer: Answer, call_id: str, num_keep_alives: int = 0) -> bytes:
    """The terminal events: why it stopped and what it used, then `message_stop`."""
    delta = {"stop_reason": _stop_reason(answer), "stop_sequence": None}
    return _event("message_delta", delta=delta, usage=_usage(answer)) + _event("message_stop")


def stream_error(request: Request, call_id: str, message: str, kind: str, num_keep_alives: int = 0) -> bytes:
    """The end of a stream that failed after its headers were sent."""
    return b"event: error\ndata: " + error_body(503, message, kind) + b"\n\n"


def error_body(status: int, message: str, kind: str) -> bytes:
    """An error as this API words it: its type follows from the status."""
    family = _ERROR_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return compact({"type": "error", "error": {"type": family, "message": message}})


def context_error(num_tokens: int, limit: int) -> str:
    """The words by which clients of this API know that they must compact."""
    return f"prompt is too long: {num_tokens} tokens > {limit} maximum"


def count_json(num_tokens: int) -> bytes:
    """The answer of `count_tokens`."""
    return compact({"input_tokens": num_tokens})


def _content(answer: Answer, call_id: str) -> list[JsonObject]:
    message, blocks = answer.message, list[JsonObject]()
    if message.reasoning:
        blocks.append({"type": "thinking", "thinking": message.reasoning, "signature": _signature(call_id)})
    if message.content or not message.tool_calls:
        blocks.append({"type": "text", "text": message.content, "citations": None})
    for call in message.tool_calls:
        blocks.append(
            {"type": "tool_use", "id": call.id, "name": call.full_name, "input": argument_object(call.arguments)}
        )
    return blocks


def _signature(call_id: str) -> str:
    """Clients only carry it back; it says which call thought this."""
    return base64.b64encode(f"corral {call_id}".encode()).decode()


def _deltas(block: JsonObject) -> tuple[JsonObject, list[JsonObject]]:
    """(the block as it starts, its deltas)."""
    if block["type"] == "thinking":
        return block | {"thinking": "", "signature": ""}, [
            {"type": "thinking_delta", "thinking": block["thinking"]},
            {"type": "signature_delta", "signature": block["signature"]},
        ]
    if block["type"] == "text":
        deltas: list[JsonObject] = [{"type": "text_delta", "text": block["text"]}] if block["text"] else []
        return block | {"text": ""}, deltas
    text = compact(block["input"]).decode()
    return block | {"input": {}}, [{"type": "input_json_delta", "partial_json": text}]


def _stop_reason(answer: Answer) -> str:
    if answer.stop_reason is StopReason.LENGTH:
        return "max_tokens"
    return "tool_use" if answer.message.tool_calls else "end_turn"


def _usage(answer: Answer) -> JsonObject:
    return {
        "input_tokens": answer.num_prompt_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": answer.num_sampled_tokens,
    }


def _head(request: Request, call_id: str) -> JsonObject:
    return {
        "id": f"msg_{call_id}",
        "type": "message",
        "role": "assistant",
        "model": request.model or "policy",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    }


def _event(kind: str, **fields: object) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + compact({"type": kind} | fields) + b"\n\n"
