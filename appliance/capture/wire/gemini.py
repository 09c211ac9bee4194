"""Gemini generateContent and streamGenerateContent: contents and parts in, candidates out. Pure; no clock, no I/O.

The model's name and whether to stream stand in the path, so they are given beside the body. A stream is server-sent
events (`alt=sse`) or, without that, one JSON array written piece by piece; its last chunk bears the finish reason.
Field names are read in camel case and in snake case, as the API does.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from appliance.capture.wire.body import (
    JsonObject,
    argument_object,
    compact,
    get_bool,
    get_count,
    get_list,
    get_str,
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
        "contents",
        "systemInstruction",
        "system_instruction",
        "tools",
        "model",
        "labels",
        "safetySettings",
        "safety_settings",
    }
)
_ROLES = {"": "user", "user": "user", "function": "user", "model": "assistant", "system": "system"}
# A function's response of one of these names and a text is that text; any other is shown as JSON.
_RESULT_KEYS = ("output", "result", "content", "error")
# The API's own schema dialect shouts its types; models learnt JSON Schema's.
_SCHEMA_TYPES = frozenset({"STRING", "NUMBER", "INTEGER", "BOOLEAN", "ARRAY", "OBJECT", "NULL"})
_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    413: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}

_Part = tuple[str, JsonObject]  # its place, and itself


def parse_request(body: bytes, model: str = "", stream: bool = False, is_array: bool = False) -> Request:
    """The request in `body`, for the path's `model`; ValueError names the place of what cannot be understood."""
    return _request(load_object(body), body, Request("gemini", model, (), stream=stream, is_array=is_array))


def parse_count(body: bytes, model: str = "") -> Request:
    """The request whose tokens `countTokens` asks for."""
    source = load_object(body)
    inner = _field(source, "generateContentRequest")
    if inner is not None:
        source = need_object(inner, "generateContentRequest")
    return _request(source, body, Request("gemini", model, ()))


def _request(source: JsonObject, body: bytes, frame: Request) -> Request:
    items = get_list(source, "contents", "contents")
    if not items:
        raise ValueError("contents: missing or empty")
    if _field(source, "cachedContent") is not None:
        raise ValueError("cachedContent: not supported, send the whole contents")
    options = need_object(_field(source, "generationConfig") or {}, "generationConfig")
    if _field(options, "candidateCount") not in (None, 1):
        raise ValueError("generationConfig.candidateCount: only one candidate a request is supported")
    limit = {"generationConfig.maxOutputTokens": _field(options, "maxOutputTokens")}
    return replace(
        frame,
        messages=(*_system(_field(source, "systemInstruction")), *_messages(items)),
        tools=_tools(source),
        max_tokens=get_count(limit, "generationConfig.maxOutputTokens"),
        raw=body,
        settings=settings_text(source, _NOT_SETTINGS),
    )


def _field(source: Mapping[str, object], name: str) -> object:
    """`source[name]`, or the same in snake case."""
    value = source.get(name)
    return value if value is not None else source.get(_snake(name))


@cache
def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name)


def _system(value: object) -> tuple[Message, ...]:
    if value is None or isinstance(value, str):
        return (Message("system", value),) if value else ()
    place = "systemInstruction"
    parts = _parts(need_object(value, place), place)
    text = "\n".join(_user_text(part, at) for at, part in parts)
    return (Message("system", text),) if text else ()


def _messages(items: list[object]) -> tuple[Message, ...]:
    turns = Turns()
    for i, item in enumerate(items):
        place = f"contents[{i}]"
        source = need_object(item, place)
        role = _ROLES.get(get_str(source, "role", f"{place}.role"))
        if role is None:
            raise ValueError(f"{place}.role: unknown role {source['role']!r}")
        parts = _parts(source, place)
        if role == "assistant":
            _model(turns, parts)
        else:
            _user(turns, role, parts)
    return turns.messages


def _parts(source: JsonObject, place: str) -> list[_Part]:
    at = f"{place}.parts"
    return [(f"{at}[{i}]", need_object(p, f"{at}[{i}]")) for i, p in enumerate(get_list(source, "parts", at))]


def _model(turns: Turns, parts: list[_Part]) -> None:
    turns.assistant()
    for at, part in parts:
        call = _field(part, "functionCall")
        if call is not None:
            source = need_object(call, f"{at}.functionCall")
            name = need_str(source, "name", f"{at}.functionCall.name")
            arguments = object_text(source.get("args"), f"{at}.functionCall.args")
            turns.assistant(call=ToolCall(get_str(source, "id", f"{at}.functionCall.id"), name, arguments))
        elif get_bool(part, "thought", f"{at}.thought"):
            turns.assistant(reasoning=get_str(part, "text", f"{at}.text"))
        else:
            turns.assistant(get_str(part, "text", f"{at}.text"))


def _user(turns: Turns, role: str, parts: list[_Part]) -> None:
    for at, part in parts:
        response = _field(part, "functionResponse")
        if response is None:
            turns.say(role, _user_text(part, at))
            continue
        source = need_object(response, f"{at}.functionResponse")
        if get_list(source, "parts", f"{at}.functionResponse.parts"):
            raise ValueError(f"{at}.functionResponse.parts: this model takes text only")
        turns.result(_result_text(source.get("response")), get_str(source, "id", f"{at}.functionResponse.id"))
    if not parts:
        turns.say(role, "")
    turns.close()


def _user_text(part: JsonObject, place: str) -> str:
    for kind in ("inlineData", "fileData", "executableCode", "codeExecutionResult", "functionCall"):
        if _field(part, kind) is not None:
            raise ValueError(f"{place}: this model takes text only here, not {kind!r}")
    return get_str(part, "text", f"{place}.text")


def _result_text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and len(value) == 1:
        ((key, text),) = value.items()
        if key in _RESULT_KEYS and isinstance(text, str):
            return text
    return json.dumps(value, ensure_ascii=False)


def _tools(source: JsonObject) -> tuple[Tool, ...]:
    """Function declarations; the API's own tools (search, code execution, …) are left out."""
    tools: list[Tool] = []
    for i, item in enumerate(get_list(source, "tools", "tools")):
        at = f"tools[{i}].functionDeclarations"
        declared = {at: _field(need_object(item, f"tools[{i}]"), "functionDeclarations")}
        for j, entry in enumerate(get_list(declared, at, at)):
            place = f"{at}[{j}]"
            function = need_object(entry, place)
            schema = _field(function, "parametersJsonSchema")
            if schema is None:
                schema = _plain_schema(_field(function, "parameters"))
            tools.append(
                Tool(
                    name=need_str(function, "name", f"{place}.name"),
                    description=get_str(function, "description", f"{place}.description"),
                    parameters=schema_text(schema, f"{place}.parameters"),
                )
            )
    return tuple(tools)


def _plain_schema(value: object) -> object:
    if isinstance(value, list):
        return [_plain_schema(v) for v in value]
    if not isinstance(value, dict):
        return value
    shouted = value.get("type")
    plain: JsonObject = {k: _plain_schema(v) for k, v in value.items()}
    if isinstance(shouted, str) and shouted in _SCHEMA_TYPES:
        plain["type"] = shouted.lower()
    return plain


# ------------------------------------------------------------------ what the harness is told


def answer_json(request: Request, answer: Answer, call_id: str) -> bytes:
    """The whole answer as one `GenerateContentResponse`."""
    return compact(_chunk(request, call_id, _answer_parts(answer, call_id), answer))


def stream_start(request: Request, call_id: str) -> bytes:
    """Nothing for events; an array opens with a chunk, so that every later one follows a comma."""
    return b"[" + compact(_nothing(request, call_id)) if request.is_array else b""


def keep_alive(request: Request, call_id: str, n: int) -> bytes:
    """A chunk that says nothing: an empty thought, which no client takes for an answer or for a broken one."""
    return _framed(request, _nothing(request, call_id))


def stream_answer(request: Request, answer: Answer, call_id: str, num_keep_alives: int = 0) -> list[bytes]:
    """Every part but the last, a chunk each."""
    return [_framed(request, _chunk(request, call_id, [part])) for part in _answer_parts(answer, call_id)[:-1]]


def stream_end(request: Request, answer: Answer, call_id: str, num_keep_alives: int = 0) -> bytes:
    """The terminal chunk: the last part with the finish reason and the usage."""
    last = _chunk(request, call_id, _answer_parts(answer, call_id)[-1:], answer)
    return _framed(request, last) + (b"]" if request.is_array else b"")


def stream_error(request: Request, call_id: str, message: str, kind: str, num_keep_alives: int = 0) -> bytes:
    """The end of a stream that failed after its headers were sent. Its clients look for an error outside of events."""
    body = error_body(503, message, kind)
    return b"," + body + b"]" if request.is_array else body + b"\n\n"


def error_body(status: int, message: str, kind: str) -> bytes:
    """An error as this API words it: its status word follows from the number."""
    word = _STATUS.get(status, "INTERNAL" if status >= 500 else "INVALID_ARGUMENT")
    return compact({"error": {"code": status, "message": message, "status": word}})


def context_error(num_tokens: int, limit: int) -> str:
    """The words by which clients of this API know that they must compact."""
    return f"The input token count ({num_tokens}) exceeds the maximum number of tokens allowed ({limit})."


def count_json(num_tokens: int) -> bytes:
    """The answer of `countTokens`."""
    return compact({"totalTokens": num_tokens})


def _answer_parts(answer: Answer, call_id: str) -> list[JsonObject]:
    message, parts = answer.message, list[JsonObject]()
    if message.reasoning:
        parts.append({"text": message.reasoning, "thought": True, "thoughtSignature": _signature(call_id)})
    if message.content or not message.tool_calls:
        parts.append({"text": message.content})
    for call in message.tool_calls:
        function = {"id": call.id, "name": call.full_name, "args": argument_object(call.arguments)}
        parts.append({"functionCall": function})
    return parts


def _signature(call_id: str) -> str:
    """Clients only carry it back; it says which call thought this."""
    return base64.b64encode(f"corral {call_id}".encode()).decode()


def _nothing(request: Request, call_id: str) -> JsonObject:
    return _chunk(request, call_id, [{"text": "", "thought": True}])


def _chunk(request: Request, call_id: str, parts: list[JsonObject], end: Answer | None = None) -> JsonObject:
    candidate: JsonObject = {"content": {"role": "model", "parts": parts}, "index": 0}
    chunk: JsonObject = {"candidates": [candidate], "modelVersion": request.model or "policy", "responseId": call_id}
    if end is not None:
        candidate["finishReason"] = "MAX_TOKENS" if end.stop_reason is StopReason.LENGTH else "STOP"
        chunk["usageMetadata"] = {
            "promptTokenCount": end.num_prompt_tokens,
            "candidatesTokenCount": end.num_sampled_tokens,
            "totalTokenCount": end.num_prompt_tokens + end.num_sampled_tokens,
        }
    return chunk


def _framed(request: Request, value: JsonObject) -> bytes:
    return b"," + compact(value) if request.is_array else b"data: " + compact(value) + b"\n\n"
