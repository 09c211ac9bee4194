"""What a teacher model upstream is asked and how its answer reads: OpenAI Chat and Anthropic Messages. Pure."""

from __future__ import annotations

import json

from appliance.capture.wire.body import (
    JsonObject,
    argument_text,
    compact,
    get_list,
    get_str,
    load_object,
    need_object,
    need_str,
)
from appliance.types import Message, Request, Tool, ToolCall


def openai_body(request: Request, model: str, max_tokens: int, limit: str = "max_tokens") -> bytes:
    """`request` as a Chat Completions body, not streamed. OpenAI's reasoning models call `limit` otherwise."""
    body: JsonObject = {"model": model, limit: max_tokens, "messages": [_openai(m) for m in request.messages]}
    if request.tools:
        body["tools"] = [
            {"type": "function", "function": _named(tool) | {"parameters": json.loads(tool.parameters)}}
            for tool in request.tools
        ]
    return compact(body)


def openai_message(body: bytes) -> tuple[Message, bool]:
    """(message, cut by length) of a Chat Completions answer; ValueError names the place."""
    choices = get_list(load_object(body), "choices", "choices")
    if not choices:
        raise ValueError("choices: empty")
    choice = need_object(choices[0], "choices[0]")
    source = need_object(choice.get("message"), "choices[0].message")
    calls: list[ToolCall] = []
    for i, item in enumerate(get_list(source, "tool_calls", "tool_calls")):
        call = need_object(item, f"tool_calls[{i}]")
        function = need_object(call.get("function"), f"tool_calls[{i}].function")
        name, space = _split(need_str(function, "name", f"tool_calls[{i}].function.name"))
        arguments = argument_text(function.get("arguments"), f"tool_calls[{i}].function.arguments")
        calls.append(ToolCall(get_str(call, "id", f"tool_calls[{i}].id"), name, arguments, space))
    reasoning = source.get("reasoning_content") or source.get("reasoning")
    message = Message(
        "assistant",
        content=get_str(source, "content", "choices[0].message.content"),
        reasoning=reasoning if isinstance(reasoning, str) else "",
        tool_calls=tuple(calls),
    )
    return message, choice.get("finish_reason") == "length"


def anthropic_body(request: Request, model: str, max_tokens: int) -> bytes:
    """`request` as a Messages body: system apart, results inside user turns, neighbours of one role joined."""
    system = [m.content for m in request.messages if m.role == "system"]
    turns: list[JsonObject] = []
    for message in request.messages:
        if message.role == "system":
            continue
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _blocks(message)
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] = [*get_list(turns[-1], "content", "content"), *blocks]
        elif blocks:
            turns.append({"role": role, "content": blocks})
    body: JsonObject = {"model": model, "max_tokens": max_tokens, "messages": turns}
    if system:
        body["system"] = "\n\n".join(system)
    if request.tools:
        body["tools"] = [_named(tool) | {"input_schema": json.loads(tool.parameters)} for tool in request.tools]
    return compact(body)


def anthropic_message(body: bytes) -> tuple[Message, bool]:
    """(message, cut by length) of a Messages answer; ValueError names the place."""
    source = load_object(body)
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for i, item in enumerate(get_list(source, "content", "content")):
        at = f"content[{i}]"
        block = need_object(item, at)
        if block.get("type") == "text":
            texts.append(get_str(block, "text", f"{at}.text"))
        elif block.get("type") == "thinking":
            thoughts.append(get_str(block, "thinking", f"{at}.thinking"))
        elif block.get("type") == "tool_use":
            name, space = _split(need_str(block, "name", f"{at}.name"))
            arguments = argument_text(block.get("input"), f"{at}.input")
            calls.append(ToolCall(get_str(block, "id", f"{at}.id"), name, arguments, space))
    message = Message("assistant", "".join(texts), "".join(thoughts), tuple(calls))
    return message, source.get("stop_reason") == "max_tokens"


def _openai(message: Message) -> JsonObject:
    out: JsonObject = {"role": message.role, "content": message.content}
    if message.tool_calls:
        out["tool_calls"] = [
            {
                "id": c.id,
                "type": "function",
                "function": {"name": _joined(c.namespace, c.name), "arguments": c.arguments},
            }
            for c in message.tool_calls
        ]
    if message.role == "tool":
        out["tool_call_id"] = message.tool_call_id
    return out


def _blocks(message: Message) -> list[JsonObject]:
    if message.role == "tool":
        return [{"type": "tool_result", "tool_use_id": message.tool_call_id, "content": message.content}]
    blocks: list[JsonObject] = [{"type": "text", "text": message.content}] if message.content.strip() else []
    for call in message.tool_calls:
        try:
            arguments = json.loads(call.arguments)
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            arguments = {"input": call.arguments}
        name = _joined(call.namespace, call.name)
        blocks.append({"type": "tool_use", "id": call.id, "name": name, "input": arguments})
    return blocks


def _named(tool: Tool) -> JsonObject:
    return {"name": _joined(tool.namespace, tool.name), "description": tool.description}


# Upstream APIs allow letters, digits, _ and - in names; two underscores part a namespace from its tool.
def _joined(namespace: str, name: str) -> str:
    return f"{namespace}__{name}" if namespace else name


def _split(name: str) -> tuple[str, str]:
    namespace, parted, plain = name.rpartition("__")
    return (plain, namespace) if parted and namespace and plain else (name, "")
