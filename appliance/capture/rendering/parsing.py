"""From a sampled answer's text to a message: reasoning, content and tool calls. Pure.

What the model got wrong stays visible: a block that is not a whole, well-formed call is content, so the
harness is told what the model said and deals with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from appliance.types import Message, Tool, ToolCall

_BLOCK = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")


def parse_answer(text: str, tools: Iterable[Tool], hermes: bool) -> Message:
    """`text` (without its end-of-turn token) as an assistant message; tool-call ids are call_0, call_1, …

    With `hermes`, calls are <tool_call> blocks; without, a whole answer that is one bare JSON call of an
    offered tool (Llama's way) is read too.
    """
    reasoning, content = _split_reasoning(text)
    names = {tool.full_name: tool for tool in tools}
    calls: list[ToolCall] = []

    def take(block: re.Match[str]) -> str:
        call = _call(block[1], names, len(calls))
        if call is None:
            return block[0]
        calls.append(call)
        return ""

    rest = _BLOCK.sub(take, content)
    if not calls and not hermes:
        bare = _call(content.removeprefix("<|python_tag|>"), names, 0)
        if bare is not None and bare.full_name in names:
            calls, rest = [bare], ""
    return Message(
        "assistant",
        content=rest.strip() if calls else content,
        reasoning=reasoning,
        tool_calls=tuple(calls),
    )


def _split_reasoning(text: str) -> tuple[str, str]:
    """(reasoning, content). Some templates open <think> in the prompt, so only the closing tag is sampled."""
    head, closed, tail = text.partition("</think>")
    if closed:
        return head.replace("<think>", "", 1).strip("\n"), tail.lstrip("\n")
    if text.lstrip().startswith("<think>"):
        return text.lstrip().removeprefix("<think>").strip("\n"), ""
    return "", text


def _call(block: str, names: dict[str, Tool], index: int) -> ToolCall | None:
    members = _members(block.strip())
    if members is None:
        return None
    try:
        name = json.loads(members.get("name", "null"))
        key = "arguments" if "arguments" in members else "parameters"
        arguments = members.get(key, "{}")
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    if not isinstance(name, str) or not name:
        return None
    if isinstance(value, str):
        arguments = value  # arguments written as a JSON string of JSON, as the API itself has them
    elif not isinstance(value, dict):
        return None
    tool = names.get(name) or _by_plain_name(name, names)
    if tool is not None:
        return ToolCall(f"call_{index}", tool.name, arguments, tool.namespace)
    return ToolCall(f"call_{index}", name, arguments)


def _by_plain_name(name: str, names: dict[str, Tool]) -> Tool | None:
    found = [tool for tool in names.values() if tool.name == name]
    return found[0] if len(found) == 1 else None


def _members(text: str) -> dict[str, str] | None:
    """Top-level members of a JSON object as their exact source text; None if `text` is not one object."""
    members: dict[str, str] = {}
    at = _skip(text, 0)
    if at >= len(text) or text[at] != "{":
        return None
    at = _skip(text, at + 1)
    try:
        while text[at] != "}":
            key, at = _DECODER.raw_decode(text, at)
            at = _skip(text, at)
            if not isinstance(key, str) or text[at] != ":":
                return None
            start = _skip(text, at + 1)
            _, at = _DECODER.raw_decode(text, start)
            members[key] = text[start:at]
            at = _skip(text, at)
            if text[at] == ",":
                at = _skip(text, at + 1)
            elif text[at] != "}":
                return None
    except (ValueError, IndexError, RecursionError):
        return None
    return members if _skip(text, at + 1) == len(text) else None


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space else at
