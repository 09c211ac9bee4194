"""The four wires for tests that hold on each: their paths, a rich body each, and how to read what comes back."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from appliance.capture.wire import chat, gemini, messages, responses
from appliance.types import Request

SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
Json = dict[str, Any]


@dataclass(frozen=True, eq=False)
class WireCase:
    """One wire. `ask(text)` is its smallest body; `rich` a later request, with tools, a thought, a call, a result."""

    name: str
    path: str
    stream_path: str
    parse: Callable[[bytes], Request]
    ask: Callable[[str], Json]
    rich: Json
    text: Callable[[Json], str]
    error: Callable[[Json], tuple[Any, str]]

    def post(self, text: str, stream: bool) -> tuple[str, Json]:
        """(path, body) that asks `text`."""
        body = self.ask(text)
        if self.path != self.stream_path:
            return self.stream_path if stream else self.path, body
        return self.path, body | {"stream": stream}

    def streamed_text(self, sent: str) -> str:
        """The answer's text of a whole event stream."""
        values = [json.loads(e.partition("data: ")[2]) for e in sent.split("\n\n") if "data: {" in e]
        return "".join(_piece(self.name, value) for value in values)


def _piece(wire: str, value: Json) -> str:
    if wire == "chat":
        return "".join(choice["delta"].get("content") or "" for choice in value.get("choices", []))
    if wire == "responses":
        return str(value["delta"]) if value["type"] == "response.output_text.delta" else ""
    if wire == "messages":
        return str(value.get("delta", {}).get("text", ""))
    parts = value["candidates"][0]["content"]["parts"] if "candidates" in value else []
    return "".join(part.get("text", "") for part in parts if not part.get("thought"))


_CALL = {"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
CHAT = WireCase(
    "chat",
    "/v1/chat/completions",
    "/v1/chat/completions",
    chat.parse_request,
    lambda text: {"model": "m", "messages": [{"role": "user", "content": text}]},
    {
        "model": "m",
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Read"}, {"type": "text", "text": "it"}]},
            {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [_CALL]},
            {"role": "tool", "tool_call_id": "call_1", "name": "bash", "content": "a b"},
        ],
        "tools": [
            {"type": "function", "function": {"name": "bash", "description": "Run.", "parameters": SCHEMA}},
            {"type": "custom", "custom": {"name": "patch", "description": "Edit."}},
        ],
        "stream": False,
        "stream_options": {"include_usage": True},
        "max_completion_tokens": 64,
        "temperature": 0.5,
    },
    lambda reply: str(reply["choices"][0]["message"]["content"]),
    lambda reply: (reply["error"]["code"], reply["error"]["message"]),
)
RESPONSES = WireCase(
    "responses",
    "/v1/responses",
    "/v1/responses",
    responses.parse_request,
    lambda text: {"model": "m", "input": [{"role": "user", "content": text}]},
    {
        "model": "m",
        "instructions": "Be brief.",
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Base."}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Read"}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "function_call", "name": "bash", "arguments": '{"command": "ls"}', "call_id": "c1"},
            {"type": "function_call_output", "call_id": "c1", "output": "a b"},
            {"type": "custom_tool_call", "name": "patch", "input": "x", "call_id": "c2"},
            {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "ok"}]},
        ],
        "tools": [
            {"type": "function", "name": "bash", "parameters": SCHEMA},
            {"type": "custom", "name": "patch"},
            {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "spawn"}]},
        ],
        "stream": False,
        "include": ["reasoning.encrypted_content"],
        "max_output_tokens": 64,
    },
    lambda reply: str(reply["output"][-1]["content"][0]["text"]),
    lambda reply: (reply["error"]["code"], reply["error"]["message"]),
)
MESSAGES = WireCase(
    "messages",
    "/v1/messages",
    "/v1/messages",
    messages.parse_request,
    lambda text: {"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": text}]},
    {
        "model": "m",
        "max_tokens": 64,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Read"}, {"type": "text", "text": "it"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "tool_use", "id": "t1", "name": "bash", "input": {"command": "ls"}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "a b"}]},
            {"role": "system", "content": "# Environment"},
        ],
        "tools": [
            {"name": "bash", "description": "Run.", "input_schema": SCHEMA},
            {"name": "late", "input_schema": SCHEMA, "defer_loading": True},
        ],
        "stream": False,
    },
    lambda reply: str(reply["content"][-1]["text"]),
    lambda reply: (reply["error"]["type"], reply["error"]["message"]),
)
GEMINI = WireCase(
    "gemini",
    "/v1beta/models/m:generateContent",
    "/v1beta/models/m:streamGenerateContent?alt=sse",
    partial(gemini.parse_request, model="m"),
    lambda text: {"contents": [{"role": "user", "parts": [{"text": text}]}]},
    {
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "contents": [
            {"role": "user", "parts": [{"text": "Read"}, {"text": "it"}]},
            {"role": "model", "parts": [{"text": "hm", "thought": True}, {"text": "So:"}]},
            {"role": "model", "parts": [{"functionCall": {"id": "f", "name": "bash", "args": {"command": "ls"}}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "bash", "response": {"output": "a b"}}}]},
        ],
        "tools": [{"functionDeclarations": [{"name": "bash", "parameters": SCHEMA}]}],
        "generationConfig": {"maxOutputTokens": 64, "candidateCount": 1},
    },
    lambda reply: str(reply["candidates"][0]["content"]["parts"][-1]["text"]),
    lambda reply: (reply["error"]["status"], reply["error"]["message"]),
)
WIRE_CASES = (CHAT, RESPONSES, MESSAGES, GEMINI)
