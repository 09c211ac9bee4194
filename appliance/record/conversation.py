"""The wire-neutral JSON of a call: messages, tools and the answer, as the record keeps them beside the raw bytes.

The cold start re-renders a teacher's calls from it, so it holds exactly what rendering reads.
"""

from __future__ import annotations

from collections.abc import Sequence

from appliance.capture.wire.body import JsonObject, compact, get_list, get_str, load_object, need_object, need_str
from appliance.types import Call, Message, Request, Said, Tool, ToolCall


def neutral_json(request: Request, message: Message) -> bytes:
    """`request`'s messages and tools and the answer `message`, as compact JSON; empty fields are left out."""
    return compact(
        {
            "messages": [_message_out(m) for m in request.messages],
            "tools": [_tool_out(t) for t in request.tools],
            "answer": _message_out(message),
        }
    )


def from_neutral_json(data: bytes) -> tuple[tuple[Message, ...], tuple[Tool, ...], Message]:
    """(messages, tools, answer) of `neutral_json`; ValueError names the place of what is wrong."""
    body = load_object(data)
    messages = tuple(_message_in(m, f"messages[{i}]") for i, m in enumerate(get_list(body, "messages", "messages")))
    tools = tuple(_tool_in(t, f"tools[{i}]") for i, t in enumerate(get_list(body, "tools", "tools")))
    return messages, tools, _message_in(body.get("answer"), "answer")


def _message_out(message: Message) -> JsonObject:
    out: JsonObject = {"role": message.role, "content": message.content}
    if message.reasoning:
        out["reasoning"] = message.reasoning
    if message.tool_calls:
        out["tool_calls"] = [
            {"id": c.id, "name": c.name, "arguments": c.arguments, "namespace": c.namespace} for c in message.tool_calls
        ]
    if message.tool_call_id:
        out["tool_call_id"] = message.tool_call_id
    return out


def _tool_out(tool: Tool) -> JsonObject:
    return {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "namespace": tool.namespace,
        "kind": tool.kind,
    }


def _message_in(value: object, place: str) -> Message:
    source = need_object(value, place)
    calls: list[ToolCall] = []
    for i, item in enumerate(get_list(source, "tool_calls", f"{place}.tool_calls")):
        at = f"{place}.tool_calls[{i}]"
        call = need_object(item, at)
        calls.append(
            ToolCall(
                id=get_str(call, "id", f"{at}.id"),
                name=get_str(call, "name", f"{at}.name"),
                arguments=get_str(call, "arguments", f"{at}.arguments"),
                namespace=get_str(call, "namespace", f"{at}.namespace"),
            )
        )
    return Message(
        role=need_str(source, "role", f"{place}.role"),
        content=get_str(source, "content", f"{place}.content"),
        reasoning=get_str(source, "reasoning", f"{place}.reasoning"),
        tool_calls=tuple(calls),
        tool_call_id=get_str(source, "tool_call_id", f"{place}.tool_call_id"),
    )


def _tool_in(value: object, place: str) -> Tool:
    source = need_object(value, place)
    return Tool(
        name=need_str(source, "name", f"{place}.name"),
        description=get_str(source, "description", f"{place}.description"),
        parameters=get_str(source, "parameters", f"{place}.parameters") or "{}",
        namespace=get_str(source, "namespace", f"{place}.namespace"),
        kind=get_str(source, "kind", f"{place}.kind") or "function",
    )


def said(calls: Sequence[Call], conversations: Sequence[bytes]) -> list[Said]:
    """Calls with their neutral conversations; an empty one (ids only) is a call of no words."""
    found = []
    for call, text in zip(calls, conversations, strict=True):
        empty: tuple[tuple[Message, ...], tuple[Tool, ...], Message] = ((), (), Message("assistant"))
        messages, tools, answer = from_neutral_json(text) if text.strip() not in (b"", b"{}") else empty
        found.append(Said(call, messages, tools, answer))
    return found
