"""Responses' input items and tools as messages and tools. Pure.

Contiguous assistant items (reasoning, message, calls) are one turn, as one sampled answer was (`Turns`).
"""

from __future__ import annotations

import base64
import json

from appliance.capture.wire.body import (
    CUSTOM_SCHEMA,
    JsonObject,
    argument_text,
    get_list,
    get_str,
    need_object,
    need_str,
    schema_text,
    text_of,
)
from appliance.capture.wire.turns import Turns
from appliance.types import Message, Tool, ToolCall

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal")
_SEAL = "corral."
_SHELL_SCHEMA = (
    '{"type": "object", "properties": {"command": {"type": "array", "items": {"type": "string"}}}, '
    '"required": ["command"]}'
)
# What codex and the SDK may add to a local_shell_call; kept when echoed so that nothing is lost on re-rendering.
SHELL_OPTIONS = ("timeout_ms", "working_directory", "user")


def input_messages(source: JsonObject) -> tuple[Message, ...]:
    """Instructions and input items as messages; ValueError names the place of what cannot be understood."""
    turns = Turns()
    instructions = get_str(source, "instructions", "instructions")
    if instructions:
        turns.say("system", instructions)
        turns.close()
    value = source.get("input")
    if isinstance(value, str):
        turns.say("user", value)
        return turns.messages
    for i, item in enumerate(get_list(source, "input", "input")):
        _add_item(turns, need_object(item, f"input[{i}]"), f"input[{i}]")
    return turns.messages


def _add_item(turns: Turns, item: JsonObject, place: str) -> None:
    """One input item; kinds that say nothing to a text model add nothing."""
    kind = item.get("type") or "message"
    if kind == "message":
        role = _ROLES.get(need_str(item, "role", f"{place}.role"))
        if role is None:
            raise ValueError(f"{place}.role: unknown role {item['role']!r}")
        if role == "assistant":
            turns.assistant(_text(item.get("content"), f"{place}.content", ""))
        else:
            turns.say(role, _text(item.get("content"), f"{place}.content"))
            turns.close()
    elif kind == "reasoning":
        turns.assistant(reasoning=_reasoning(item, place))
    elif kind in ("function_call", "custom_tool_call", "local_shell_call"):
        turns.assistant(call=_call(item, str(kind), place))
    elif kind in ("function_call_output", "custom_tool_call_output", "local_shell_call_output"):
        call_id = get_str(item, "call_id", f"{place}.call_id") or get_str(item, "id", f"{place}.id")
        turns.result(_text(item.get("output"), f"{place}.output"), call_id)
    elif kind == "item_reference":
        raise ValueError(f"{place}: item references are not supported, send the whole input")


def _reasoning(item: JsonObject, place: str) -> str:
    """The thought's own text, else what `sealed` put where only that came back, else the summary."""
    text = _text(item.get("content"), f"{place}.content", "")
    handle = item.get("encrypted_content")
    if not text and isinstance(handle, str):
        text = opened(handle)
    return text or _text(item.get("summary"), f"{place}.summary")


def sealed(reasoning: str) -> str:
    """`encrypted_content` for a client that keeps no other part of a thought. It hides nothing from anyone."""
    return _SEAL + base64.b64encode(reasoning.encode("utf-8", "replace")).decode()


def opened(handle: str) -> str:
    """What `sealed` closed; '' for another model's handle."""
    try:
        return base64.b64decode(handle.removeprefix(_SEAL), validate=True).decode() if handle.startswith(_SEAL) else ""
    except ValueError:
        return ""


def _call(item: JsonObject, kind: str, place: str) -> ToolCall:
    call_id = get_str(item, "call_id", f"{place}.call_id") or get_str(item, "id", f"{place}.id")
    if kind == "local_shell_call":
        action = need_object(item.get("action"), f"{place}.action")
        kept = {"command": get_list(action, "command", f"{place}.action.command")} | {
            key: action[key] for key in SHELL_OPTIONS if action.get(key) is not None
        }
        return ToolCall(call_id, "local_shell", json.dumps(kept, ensure_ascii=False))
    name = need_str(item, "name", f"{place}.name")
    namespace = get_str(item, "namespace", f"{place}.namespace")
    if kind == "custom_tool_call":
        text = get_str(item, "input", f"{place}.input")
        return ToolCall(call_id, name, json.dumps({"input": text}, ensure_ascii=False), namespace)
    return ToolCall(call_id, name, argument_text(item.get("arguments"), f"{place}.arguments"), namespace)


def _text(value: object, place: str, separator: str = "\n") -> str:
    """Text of a content: a string, a list of parts, or (tool outputs) an object with `content`."""
    if isinstance(value, dict):
        return _text(value["content"], f"{place}.content", separator) if "content" in value else json.dumps(value)
    return text_of(value, place, _TEXT_PARTS, separator)


def offered_tools(items: list[object], place: str, namespace: str = "") -> list[Tool]:
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
            tools += offered_tools(get_list(entry, "tools", f"{at}.tools"), f"{at}.tools", name)
    return tools


def _named(entry: JsonObject, place: str, parameters: str, namespace: str, kind: str) -> Tool:
    description = get_str(entry, "description", f"{place}.description")
    return Tool(need_str(entry, "name", f"{place}.name"), description, parameters, namespace, kind)
