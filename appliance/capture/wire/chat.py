"""OpenAI Chat Completions: parsed leniently, emitted strictly. Pure; no clock, no I/O.

The terminal event is everything from `finish_reason` on, so that a harness cannot see the end of its
answer before `stream_end` is sent (I3).
"""

from __future__ import annotations

import json

from appliance.capture.wire.body import (
    CUSTOM_SCHEMA,
    JsonObject,
    argument_text,
    compact,
    custom_input,
    get_bool,
    get_count,
    get_list,
    get_str,
    load_object,
    need_object,
    need_str,
    schema_text,
    settings_text,
    text_of,
)
from appliance.types import Answer, Message, Request, StopReason, Tool, ToolCall

# Fields that do not change an answer: a retry may differ in them, and they are kept in `raw`.
_NOT_SETTINGS = frozenset(
    {
        "messages",
        "tools",
        "functions",
        "stream",
        "stream_options",
        "max_tokens",
        "max_completion_tokens",
        "user",
        "metadata",
        "store",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "session_id",
    }
)
_TEXT_PARTS = ("text", "refusal", "input_text", "output_text")
_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


def parse_request(body: bytes) -> Request:
    """The request in `body`; ValueError names the place of what cannot be understood."""
    source = load_object(body)
    items = get_list(source, "messages", "messages")
    if not items:
        raise ValueError("messages: missing or empty")
    if source.get("n") not in (None, 1):
        raise ValueError("n: only one choice a request is supported")
    options = source.get("stream_options")
    return Request(
        wire="chat",
        model=get_str(source, "model", "model"),
        messages=tuple(_message(item, f"messages[{i}]") for i, item in enumerate(items)),
        tools=_tools(source),
        stream=get_bool(source, "stream", "stream"),
        max_tokens=get_count(source, "max_completion_tokens") or get_count(source, "max_tokens"),
        raw=body,
        settings=settings_text(source, _NOT_SETTINGS),
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
    )


def _message(value: object, place: str) -> Message:
    source = need_object(value, place)
    role = _ROLES.get(need_str(source, "role", f"{place}.role"))
    if role is None:
        raise ValueError(f"{place}.role: unknown role {source['role']!r}")
    reasoning = source.get("reasoning_content") or source.get("reasoning")
    return Message(
        role=role,
        content=text_of(source.get("content"), f"{place}.content", _TEXT_PARTS, "" if role == "assistant" else "\n"),
        reasoning=reasoning if role == "assistant" and isinstance(reasoning, str) else "",
        tool_calls=_tool_calls(source, place) if role == "assistant" else (),
        tool_call_id=get_str(source, "tool_call_id", f"{place}.tool_call_id") if role == "tool" else "",
    )


def _tool_calls(source: JsonObject, place: str) -> tuple[ToolCall, ...]:
    calls: list[ToolCall] = []
    legacy = source.get("function_call")
    if isinstance(legacy, dict):
        calls.append(_function_call("", legacy, f"{place}.function_call"))
    for i, item in enumerate(get_list(source, "tool_calls", f"{place}.tool_calls")):
        at = f"{place}.tool_calls[{i}]"
        call = need_object(item, at)
        call_id = get_str(call, "id", f"{at}.id")
        if isinstance(call.get("custom"), dict):
            custom = need_object(call["custom"], f"{at}.custom")
            text = get_str(custom, "input", f"{at}.custom.input")
            name = need_str(custom, "name", f"{at}.custom.name")
            calls.append(ToolCall(call_id, name, json.dumps({"input": text}, ensure_ascii=False)))
        else:
            function = need_object(call.get("function"), f"{at}.function")
            calls.append(_function_call(call_id, function, f"{at}.function"))
    return tuple(calls)


def _function_call(call_id: str, function: JsonObject, place: str) -> ToolCall:
    name = need_str(function, "name", f"{place}.name")
    return ToolCall(call_id, name, argument_text(function.get("arguments"), f"{place}.arguments"))


def _tools(source: JsonObject) -> tuple[Tool, ...]:
    tools: list[Tool] = []
    for i, item in enumerate(get_list(source, "tools", "tools")):
        at = f"tools[{i}]"
        entry = need_object(item, at)
        if entry.get("type", "function") == "function":
            tools.append(_function_tool(need_object(entry.get("function"), f"{at}.function"), f"{at}.function"))
        elif entry.get("type") == "custom":
            custom = need_object(entry.get("custom"), f"{at}.custom")
            name = need_str(custom, "name", f"{at}.custom.name")
            description = get_str(custom, "description", f"{at}.custom.description")
            tools.append(Tool(name, description, CUSTOM_SCHEMA, kind="custom"))
    for i, item in enumerate(get_list(source, "functions", "functions")):
        tools.append(_function_tool(need_object(item, f"functions[{i}]"), f"functions[{i}]"))
    return tuple(tools)


def _function_tool(function: JsonObject, place: str) -> Tool:
    return Tool(
        name=need_str(function, "name", f"{place}.name"),
        description=get_str(function, "description", f"{place}.description"),
        parameters=schema_text(function.get("parameters"), f"{place}.parameters"),
    )


# ------------------------------------------------------------------ what the harness is told


def answer_json(request: Request, answer: Answer, call_id: str) -> bytes:
    """The whole answer as one `chat.completion` object."""
    message: JsonObject = {"role": "assistant", "content": answer.message.content or None, "refusal": None}
    if answer.message.reasoning:
        message["reasoning_content"] = answer.message.reasoning
    if answer.message.tool_calls:
        message["tool_calls"] = [_call_out(request, call) for call in answer.message.tool_calls]
    elif message["content"] is None:
        message["content"] = ""  # an empty answer is a string on this wire; null means "tool calls instead"
    choice: JsonObject = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(answer)}
    return compact(_head(request, call_id, "chat.completion") | {"choices": [choice], "usage": _usage(answer)})


def stream_start(request: Request, call_id: str) -> bytes:
    """The first chunk: the role and nothing else."""
    return _chunk(request, call_id, {"role": "assistant", "content": ""})


def keep_alive(request: Request, call_id: str, n: int) -> bytes:
    """A chunk with an empty delta: comments do not reset every client's clock. `n` counts them from 1."""
    return _chunk(request, call_id, {})


def stream_answer(request: Request, answer: Answer, call_id: str, num_keep_alives: int = 0) -> list[bytes]:
    """Every delta: reasoning, content, then each tool call as its head and its arguments."""
    message, out = answer.message, []
    if message.reasoning:
        out.append(_chunk(request, call_id, {"reasoning_content": message.reasoning}))
    if message.content:
        out.append(_chunk(request, call_id, {"content": message.content}))
    for index, call in enumerate(message.tool_calls):
        whole = _call_out(request, call)
        detail = whole[str(whole["type"])]
        assert isinstance(detail, dict)
        text_key = "input" if whole["type"] == "custom" else "arguments"
        text = detail[text_key]
        head = whole | {"index": index, str(whole["type"]): detail | {text_key: ""}}
        if whole["type"] == "custom":
            del head["type"]  # the published type of this chunk knows functions only; `custom` says what it is
        rest: JsonObject = {"index": index, str(whole["type"]): {text_key: text}}
        out += [_chunk(request, call_id, {"tool_calls": [part]}) for part in (head, rest)]
    return out


def stream_end(request: Request, answer: Answer, call_id: str, num_keep_alives: int = 0) -> bytes:
    """The terminal event: finish reason, usage where asked for, [DONE]."""
    end = _chunk(request, call_id, {}, _finish_reason(answer))
    if request.include_usage:
        end += _event(_head(request, call_id, "chat.completion.chunk") | {"choices": [], "usage": _usage(answer)})
    return end + b"data: [DONE]\n\n"


def stream_error(request: Request, call_id: str, message: str, kind: str, num_keep_alives: int = 0) -> bytes:
    """The end of a stream that failed after its headers were sent."""
    return b"data: " + error_body(500, message, kind) + b"\n\n"


def error_body(status: int, message: str, kind: str) -> bytes:
    """An error as this API words it; `kind` becomes `code`."""
    family = "server_error" if status >= 500 else "invalid_request_error"
    return compact({"error": {"message": message, "type": family, "param": None, "code": kind}})


def context_error(num_tokens: int, limit: int) -> str:
    """The words by which clients of this API know that they must compact."""
    return (
        f"This model's maximum context length is {limit} tokens. However, your messages resulted in "
        f"{num_tokens} tokens. Please reduce the length of the messages."
    )


def _call_out(request: Request, call: ToolCall) -> JsonObject:
    if any(tool.kind == "custom" and tool.name == call.name for tool in request.tools):
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": custom_input(call.arguments)}}
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _finish_reason(answer: Answer) -> str:
    if answer.stop_reason is StopReason.LENGTH:
        return "length"
    return "tool_calls" if answer.message.tool_calls else "stop"


def _usage(answer: Answer) -> JsonObject:
    total = answer.num_prompt_tokens + answer.num_sampled_tokens
    return {
        "prompt_tokens": answer.num_prompt_tokens,
        "completion_tokens": answer.num_sampled_tokens,
        "total_tokens": total,
    }


def _head(request: Request, call_id: str, kind: str) -> JsonObject:
    # `created` needs a clock, which this package does not take; no client reads it.
    return {"id": f"chatcmpl-{call_id}", "object": kind, "created": 0, "model": request.model or "policy"}


def _chunk(request: Request, call_id: str, delta: JsonObject, finish_reason: str | None = None) -> bytes:
    choice: JsonObject = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return _event(_head(request, call_id, "chat.completion.chunk") | {"choices": [choice]})


def _event(value: JsonObject) -> bytes:
    return b"data: " + compact(value) + b"\n\n"
