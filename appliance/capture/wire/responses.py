"""OpenAI Responses: items in, items and server-sent events out. Pure; no clock, no I/O.

The terminal event is `response.completed` (or `response.incomplete` when the token limit cut the answer);
codex leaves at that event, so it is sent after the commit (I3).
"""

from __future__ import annotations

import json

from appliance.capture.wire.body import (
    JsonObject,
    compact,
    custom_input,
    get_bool,
    get_count,
    get_list,
    get_str,
    load_object,
    need_object,
    settings_text,
)
from appliance.capture.wire.items import SHELL_OPTIONS, input_messages, offered_tools, sealed
from appliance.types import Answer, Request, StopReason, ToolCall

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


def parse_request(body: bytes) -> Request:
    """The request in `body`; ValueError names the place of what cannot be understood."""
    source = load_object(body)
    if source.get("previous_response_id") is not None:
        raise ValueError("previous_response_id: not supported, send the whole input")
    for name in ("conversation", "prompt"):
        if source.get(name) is not None:
            raise ValueError(f"{name}: not supported, send the whole input")
    if source.get("background"):
        raise ValueError("background: not supported, the answer is made while the request waits")
    messages = input_messages(source)
    if not messages:
        raise ValueError("input: missing or empty")
    return Request(
        wire="responses",
        model=get_str(source, "model", "model"),
        messages=messages,
        tools=tuple(offered_tools(get_list(source, "tools", "tools"), "tools")),
        stream=get_bool(source, "stream", "stream"),
        max_tokens=get_count(source, "max_output_tokens"),
        raw=body,
        settings=settings_text(source, _NOT_SETTINGS),
        seals_reasoning="reasoning.encrypted_content" in get_list(source, "include", "include"),
    )


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


def stream_error(request: Request, call_id: str, message: str, kind: str, num_keep_alives: int = 0) -> bytes:
    """The end of a stream that failed after its headers were sent."""
    response = _response(request, call_id, "failed", []) | {"error": {"code": kind, "message": message}}
    return _event("response.failed", 2 + num_keep_alives, response=response)


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


def count_json(num_tokens: int) -> bytes:
    """The answer of `input_tokens`."""
    return compact({"object": "response.input_tokens", "input_tokens": num_tokens})


def _items(request: Request, answer: Answer, call_id: str) -> list[JsonObject]:
    """The output items; an answer of nothing is one empty message, so that the client sees a turn."""
    message, items = answer.message, list[JsonObject]()
    if message.reasoning:
        part = {"type": "reasoning_text", "text": message.reasoning}
        item: JsonObject = {"id": f"rs_{call_id}", "type": "reasoning", "summary": [], "content": [part]}
        if request.seals_reasoning:
            item["encrypted_content"] = sealed(message.reasoning)
        items.append(item)
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
    kept = {key: value[key] for key in SHELL_OPTIONS if value.get(key) is not None}
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
    # `created_at` needs a clock, which this package does not take; no client reads it.
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
