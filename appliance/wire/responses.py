"""OpenAI Responses: items in, items and server-sent events out. Pure; no clock, no I/O.

Contiguous assistant items (reasoning, message, calls) are one turn, as one sampled answer was. The
terminal event is `response.completed` (or `response.incomplete` when the token limit cut the answer);
codex leaves at that event, so it is sent after the commit (I3).
"""

from __future__ import annotations

import json
from dataclasses import replace

from appliance.types import Answer, Message, Request, StopReason, Tool, ToolCall
from appliance.wire.body import (
    CUSTOM_SCHEMA,
    JsonObject,
    argument_text,
    compact,
    custom_input,
    get_bool,
    get_count,
    get_list,
    get_str,
    kind_of,
    load_object,
    need_object,
    need_str,
    schema_text,
    settings_text,
)

_NOT_SETTINGS = frozenset(
    {
        "input",
        "instructions",
        "tools",
        "stream",
        "stream_options",
        "max_output_tokens",
        "user",
        "metadata",
        "client_metadata",
        "store",
        "include",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
    }
)
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal")
_SHELL_SCHEMA = (
    '{"type": "object", "properties": {"command": {"type": "array", "items": {"type": "string"}}}, '
    '"required": ["command"]}'
)
# What codex and the SDK may add to a local_shell_call; kept when echoed so that nothing is lost on re-rendering.
_SHELL_OPTIONS = ("timeout_ms", "working_directory", "user")


def parse_request(body: bytes) -> Request:
    """The request in `body`; ValueError names the place of what cannot be understood."""
    source = load_object(body)
    if source.get("previous_response_id") is not None:
        raise ValueError("previous_response_id: not supported, send the whole input")
    messages = _messages(source)
    if not messages:
        raise ValueError("input: missing or empty")
    return Request(
        wire="responses",
        model=get_str(source, "model", "model"),
        messages=messages,
        tools=tuple(_tools(get_list(source, "tools", "tools"), "tools", "")),
        stream=get_bool(source, "stream", "stream"),
        max_tokens=get_count(source, "max_output_tokens"),
        raw=body,
        settings=settings_text(source, _NOT_SETTINGS),
    )


def _messages(source: JsonObject) -> tuple[Message, ...]:
    out: list[Message] = []
    instructions = get_str(source, "instructions", "instructions")
    if instructions:
        out.append(Message("system", instructions))
    value = source.get("input")
    if isinstance(value, str):
        return (*out, Message("user", value))
    open_turn = False
    for i, item in enumerate(get_list(source, "input", "input")):
        message = _item(need_object(item, f"input[{i}]"), f"input[{i}]")
        if message is None:
            continue
        if message.role == "assistant" and open_turn:
            out[-1] = _joined(out[-1], message)
        else:
            out.append(message)
        open_turn = message.role == "assistant"
    return tuple(out)


def _joined(turn: Message, item: Message) -> Message:
    return replace(
        turn,
        content=turn.content + item.content,
        reasoning=turn.reasoning + item.reasoning,
        tool_calls=turn.tool_calls + item.tool_calls,
    )


def _item(item: JsonObject, place: str) -> Message | None:
    """One input item as a message; None for kinds that say nothing to a text model."""
    kind = item.get("type") or "message"
    if kind == "message":
        role = _ROLES.get(need_str(item, "role", f"{place}.role"))
        if role is None:
            raise ValueError(f"{place}.role: unknown role {item['role']!r}")
        return Message(role, _text(item.get("content"), f"{place}.content"))
    if kind == "reasoning":
        text = _text(item.get("content"), f"{place}.content") or _text(item.get("summary"), f"{place}.summary")
        return Message("assistant", reasoning=text)
    if kind in ("function_call", "custom_tool_call", "local_shell_call"):
        return Message("assistant", tool_calls=(_call(item, str(kind), place),))
    if kind in ("function_call_output", "custom_tool_call_output", "local_shell_call_output"):
        call_id = get_str(item, "call_id", f"{place}.call_id") or get_str(item, "id", f"{place}.id")
        return Message("tool", _text(item.get("output"), f"{place}.output"), tool_call_id=call_id)
    if kind == "item_reference":
        raise ValueError(f"{place}: item references are not supported, send the whole input")
    return None


def _call(item: JsonObject, kind: str, place: str) -> ToolCall:
    call_id = get_str(item, "call_id", f"{place}.call_id") or get_str(item, "id", f"{place}.id")
    if kind == "local_shell_call":
        action = need_object(item.get("action"), f"{place}.action")
        kept = {"command": get_list(action, "command", f"{place}.action.command")} | {
            key: action[key] for key in _SHELL_OPTIONS if action.get(key) is not None
        }
        return ToolCall(call_id, "local_shell", json.dumps(kept, ensure_ascii=False))
    name = need_str(item, "name", f"{place}.name")
    namespace = get_str(item, "namespace", f"{place}.namespace")
    if kind == "custom_tool_call":
        text = get_str(item, "input", f"{place}.input")
        return ToolCall(call_id, name, json.dumps({"input": text}, ensure_ascii=False), namespace)
    return ToolCall(call_id, name, argument_text(item.get("arguments"), f"{place}.arguments"), namespace)


def _text(value: object, place: str) -> str:
    """Text of a content: a string, a list of parts, or (tool outputs) an object with `content`."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return _text(value.get("content"), f"{place}.content") if "content" in value else json.dumps(value)
    if not isinstance(value, list):
        raise ValueError(f"{place}: expected a string or an array, got {kind_of(value)}")
    texts: list[str] = []
    for i, item in enumerate(value):
        part = need_object(item, f"{place}[{i}]")
        kind = part.get("type", "text")
        if kind not in _TEXT_PARTS:
            raise ValueError(f"{place}[{i}]: this model takes text only, not {kind!r}")
        texts.append(get_str(part, "refusal" if kind == "refusal" else "text", f"{place}[{i}].text"))
    return "".join(texts)


def _tools(items: list[object], place: str, namespace: str) -> list[Tool]:
    """Function, custom, local_shell and (one level of) namespace tools; hosted tools are left out."""
    tools: list[Tool] = []
    for i, item in enumerate(items):
        at = f"{place}[{i}]"
        entry = need_object(item, at)
        kind = entry.get("type", "function")
        if kind == "function":
            parameters = schema_text(entry.get("parameters"), f"{at}.parameters")
            tools.append(_named(entry, at, parameters, namespace, "function"))
        elif kind == "custom":
            tools.append(_named(entry, at, CUSTOM_SCHEMA, namespace, "custom"))
        elif kind == "local_shell":
            tools.append(Tool("local_shell", "Run a command.", _SHELL_SCHEMA, kind="local_shell"))
        elif kind == "namespace" and not namespace:
            name = need_str(entry, "name", f"{at}.name")
            tools += _tools(get_list(entry, "tools", f"{at}.tools"), f"{at}.tools", name)
    return tools


def _named(entry: JsonObject, place: str, parameters: str, namespace: str, kind: str) -> Tool:
    description = get_str(entry, "description", f"{place}.description")
    return Tool(need_str(entry, "name", f"{place}.name"), description, parameters, namespace, kind)


# ------------------------------------------------------------------ what the harness is told


def answer_json(request: Request, answer: Answer, call_id: str) -> bytes:
    """The whole answer as one `response` object."""
    return compact(_final(request, answer, call_id))


def stream_start(request: Request, call_id: str) -> bytes:
    """`response.created` and the first `response.in_progress` (sequence numbers 0 and 1)."""
    response = _response(request, call_id, "in_progress", [])
    return _event("response.created", 0, response=response) + _event("response.in_progress", 1, response=response)


def keep_alive(request: Request, call_id: str, n: int) -> bytes:
    """A real `response.in_progress` event: codex's idle clock ignores comments. `n` counts them from 1."""
    return _event("response.in_progress", 1 + n, response=_response(request, call_id, "in_progress", []))


def stream_answer(request: Request, answer: Answer, call_id: str, num_keep_alives: int = 0) -> list[bytes]:
    """added, deltas and done of every item."""
    out: list[bytes] = []
    for index, item in enumerate(_items(request, answer, call_id)):
        for kind, fields in _item_events(item, index):
            out.append(_event(kind, 2 + num_keep_alives + len(out), **fields))
    return out


def stream_end(request: Request, answer: Answer, call_id: str, num_keep_alives: int = 0) -> bytes:
    """The terminal event, with the whole response in it."""
    response = _final(request, answer, call_id)
    items = _items(request, answer, call_id)
    num_events = sum(len(_item_events(item, index)) for index, item in enumerate(items))
    return _event(f"response.{response['status']}", 2 + num_keep_alives + num_events, response=response)


def stream_error(request: Request, call_id: str, message: str, kind: str) -> bytes:
    """The end of a stream that failed after its headers were sent."""
    response = _response(request, call_id, "failed", []) | {"error": {"code": kind, "message": message}}
    return _event("response.failed", 1_000_000, response=response)


def error_body(status: int, message: str, kind: str) -> bytes:
    """An error as this API words it; `kind` becomes `code`."""
    family = "server_error" if status >= 500 else "invalid_request_error"
    return compact({"error": {"message": message, "type": family, "param": None, "code": kind}})


def context_error(num_tokens: int, limit: int) -> str:
    """The words by which clients of this API know that they must compact."""
    return (
        f"Your input exceeds the context window of this model ({num_tokens} tokens, limit {limit}). "
        "Please adjust your input and try again."
    )


def _items(request: Request, answer: Answer, call_id: str) -> list[JsonObject]:
    """The output items; an answer of nothing is one empty message, so that the client sees a turn."""
    message, items = answer.message, list[JsonObject]()
    if message.reasoning:
        part = {"type": "reasoning_text", "text": message.reasoning}
        items.append({"id": f"rs_{call_id}", "type": "reasoning", "summary": [], "content": [part]})
    if message.content or not message.tool_calls:
        items.append(
            {
                "id": f"msg_{call_id}",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [_text_part(message.content)],
            }
        )
    kinds = {(tool.namespace, tool.name): tool.kind for tool in request.tools}
    for i, call in enumerate(message.tool_calls):
        kind = kinds.get((call.namespace, call.name), "function")
        items.append(_call_item(call, kind, f"{call_id}_{i}"))
    return items


def _text_part(text: str) -> JsonObject:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _call_item(call: ToolCall, kind: str, item_id: str) -> JsonObject:
    if kind == "local_shell":
        action = _shell_action(call.arguments)
        if action is not None:
            return {
                "id": f"lsh_{item_id}",
                "type": "local_shell_call",
                "call_id": call.id,
                "status": "completed",
                "action": action,
            }
    item: JsonObject = {"call_id": call.id, "name": call.name}
    if call.namespace:
        item["namespace"] = call.namespace
    if kind == "custom":
        return {"id": f"ctc_{item_id}", "type": "custom_tool_call", "input": custom_input(call.arguments)} | item
    fields: JsonObject = {"id": f"fc_{item_id}", "type": "function_call", "status": "completed"}
    return fields | item | {"arguments": call.arguments}


def _shell_action(arguments: str) -> JsonObject | None:
    """The action of a local_shell call; None when the model's arguments do not make one."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    command = value.get("command") if isinstance(value, dict) else None
    if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
        return None
    kept = {key: value[key] for key in _SHELL_OPTIONS if value.get(key) is not None}
    return {"type": "exec", "command": command, "env": {}} | kept


def _item_events(item: JsonObject, index: int) -> list[tuple[str, JsonObject]]:
    """(event name, fields) for one output item, in order."""
    at: JsonObject = {"item_id": item["id"], "output_index": index}
    added = ("response.output_item.added", {"output_index": index, "item": _emptied(item)})
    done = ("response.output_item.done", {"output_index": index, "item": item})
    if item["type"] == "message":
        part = get_list(item, "content", "content")[0]
        return [added, *_part_events(at, part, "response.output_text", {"logprobs": []}), done]
    if item["type"] == "reasoning":
        part = get_list(item, "content", "content")[0]
        return [added, *_part_events(at, part, "response.reasoning_text", {}), done]
    if item["type"] == "function_call":
        name = "response.function_call_arguments"
        end = at | {"name": item["name"], "arguments": item["arguments"]}
        return [added, (f"{name}.delta", at | {"delta": item["arguments"]}), (f"{name}.done", end), done]
    if item["type"] == "custom_tool_call":
        name = "response.custom_tool_call_input"
        return [
            added,
            (f"{name}.delta", at | {"delta": item["input"]}),
            (f"{name}.done", at | {"input": item["input"]}),
            done,
        ]
    return [added, done]


def _part_events(at: JsonObject, part: object, name: str, extra: JsonObject) -> list[tuple[str, JsonObject]]:
    full = need_object(part, "part")
    where = at | {"content_index": 0}
    return [
        ("response.content_part.added", where | {"part": full | {"text": ""}}),
        (f"{name}.delta", where | extra | {"delta": full["text"]}),
        (f"{name}.done", where | extra | {"text": full["text"]}),
        ("response.content_part.done", where | {"part": full}),
    ]


def _emptied(item: JsonObject) -> JsonObject:
    """The item as it is when it is added: in progress, its text still to come."""
    empty: JsonObject = {"content": []} if "content" in item else {}
    if "arguments" in item:
        empty = {"arguments": ""}
    if "input" in item:
        empty = {"input": ""}
    if "status" in item:
        empty = empty | {"status": "in_progress"}
    return item | empty


def _final(request: Request, answer: Answer, call_id: str) -> JsonObject:
    cut = answer.stop_reason is StopReason.LENGTH
    response = _response(request, call_id, "incomplete" if cut else "completed", _items(request, answer, call_id))
    response["incomplete_details"] = {"reason": "max_output_tokens"} if cut else None
    response["usage"] = {
        "input_tokens": answer.num_prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": answer.num_sampled_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": answer.num_prompt_tokens + answer.num_sampled_tokens,
    }
    return response


def _response(request: Request, call_id: str, status: str, output: list[JsonObject]) -> JsonObject:
    # `created_at` needs a clock, which this floor does not take; no client reads it.
    return {
        "id": f"resp_{call_id}",
        "object": "response",
        "created_at": 0,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": request.model or "policy",
        "output": output,
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "max_output_tokens": request.max_tokens,
        "usage": None,
    }


def _event(kind: str, sequence_number: int, **fields: object) -> bytes:
    data = compact({"type": kind, "sequence_number": sequence_number} | fields)
    return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"
