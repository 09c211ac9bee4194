"""OpenAI messages, one conversation a line: out of a rollout, and in for a cold start. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from appliance.errors import ExportError
from appliance.report.export.atif import text_of, tool_definition, tools_of
from appliance.report.export.chains import chains
from appliance.report.trace import Recollection
from appliance.types import Message, Tool, ToolCall

ROLES = ("system", "user", "assistant", "tool")


def lines(told: Recollection) -> Iterator[dict[str, Any]]:
    """A rollout's conversations, the main one first, each with the rollout's reward."""
    for chain in chains(told):
        yield {
            "messages": [_out(message) for message in chain.messages],
            "tools": [tool_definition(tool) for tool in chain.tools],
            "run": told.run.id,
            "rollout": told.rollout.id,
            "harness": told.rollout.plan.harness,
            "task": told.rollout.plan.task,
            "branch": str(chain.branch),
            "reward": told.rollout.reward,
        }


def _out(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        found["reasoning_content"] = message.reasoning
    if message.tool_calls:
        found["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.full_name, "arguments": c.arguments}}
            for c in message.tool_calls
        ]
    if message.role == "tool":
        found["tool_call_id"] = message.tool_call_id
    return found


def conversation(line: Mapping[str, Any], place: str) -> tuple[str, tuple[Message, ...], tuple[Tool, ...]]:
    """(harness or "", messages, tools) of one line; ExportError names the message that cannot be read."""
    told = line.get("messages")
    if not isinstance(told, list):
        raise ExportError(f"{place}: no list `messages`", 'a line is {"messages": [{"role": …, "content": …}, …]}')
    messages = tuple(_in(message, f"{place}: message {n}") for n, message in enumerate(told))
    return str(line.get("harness") or ""), messages, tuple(tools_of(line.get("tools") or ()))


def _in(message: Any, place: str) -> Message:
    role = message.get("role") if isinstance(message, dict) else None
    role = "system" if role == "developer" else role
    if role not in ROLES:
        raise ExportError(f"{place}: role {role!r}", f"known are {', '.join(ROLES)}")
    calls = tuple(_call(call, place) for call in message.get("tool_calls") or ())
    return Message(
        role=role,
        content=text_of(message.get("content"), place),
        reasoning=str(message.get("reasoning_content") or message.get("reasoning") or ""),
        tool_calls=calls,
        tool_call_id=str(message.get("tool_call_id") or ""),
    )


def _call(call: Any, place: str) -> ToolCall:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not function.get("name"):
        raise ExportError(f"{place}: a tool call without a function name", "name the function of each tool call")
    arguments = function.get("arguments", "{}")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return ToolCall(str(call.get("id") or ""), str(function["name"]), text)
