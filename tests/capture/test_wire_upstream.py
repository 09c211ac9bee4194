"""What a teacher upstream is asked, held against the official clients' types, and how its answers read."""

from __future__ import annotations

import json

import pytest
from anthropic.types import Message as AnthropicMessage
from anthropic.types import MessageParam, ToolParam
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from pydantic import TypeAdapter

from appliance.capture.wire.upstream import anthropic_body, anthropic_message, openai_body, openai_message
from appliance.types import Message, Request, Tool, ToolCall

SHELL = Tool("sh", "runs a command", '{"type":"object","properties":{"command":{"type":"string"}}}', "box")
ASKED = Request(
    wire="chat",
    model="m",
    messages=(
        Message("system", "Be brief."),
        Message("user", "How many?"),
        Message("assistant", "I look.", tool_calls=(ToolCall("a", "sh", '{"command":"ls"}', "box"),)),
        Message("tool", "3", tool_call_id="a"),
        Message("user", "And now?"),
        Message("assistant", " ", tool_calls=(ToolCall("b", "sh", "not JSON", "box"),)),
    ),
    tools=(SHELL,),
)


def test_a_conversation_with_tools_becomes_messages_of_anthropic() -> None:
    body = json.loads(anthropic_body(ASKED, "claude", 100))
    TypeAdapter(list[MessageParam]).validate_python(body["messages"])
    TypeAdapter(list[ToolParam]).validate_python(body["tools"])
    assert (body["model"], body["max_tokens"], body["system"]) == ("claude", 100, "Be brief.")
    assert [turn["role"] for turn in body["messages"]] == ["user", "assistant", "user", "assistant"]
    assert body["messages"][1]["content"] == [
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "a", "name": "box__sh", "input": {"command": "ls"}},
    ]
    # the result and what the user said next are one turn; an empty text is no block
    assert [block["type"] for block in body["messages"][2]["content"]] == ["tool_result", "text"]
    assert body["messages"][2]["content"][0]["tool_use_id"] == "a"
    assert body["messages"][3]["content"] == [
        {"type": "tool_use", "id": "b", "name": "box__sh", "input": {"input": "not JSON"}}
    ]
    assert body["tools"][0]["input_schema"]["properties"] == {"command": {"type": "string"}}


def test_an_answer_of_anthropic_reads_with_its_calls_and_thoughts() -> None:
    answer = AnthropicMessage.model_validate({
        "id": "m", "type": "message", "role": "assistant", "model": "claude", "stop_sequence": None,
        "stop_reason": "max_tokens", "usage": {"input_tokens": 1, "output_tokens": 2},
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "s"},
            {"type": "text", "text": "So "}, {"type": "text", "text": "be it."},
            {"type": "tool_use", "id": "c", "name": "box__sh", "input": {"command": "ls"}},
        ],
    })  # fmt: skip
    message, is_cut = anthropic_message(answer.model_dump_json().encode())
    assert (message.content, message.reasoning, is_cut) == ("So be it.", "Hm.", True)
    (call,) = message.tool_calls
    assert (call.id, call.name, call.namespace, json.loads(call.arguments)) == ("c", "sh", "box", {"command": "ls"})
    with pytest.raises(ValueError, match=r"content\[0\]\.name"):
        anthropic_message(b'{"content": [{"type": "tool_use", "id": "c"}]}')


def test_the_same_conversation_becomes_messages_of_openai_and_back() -> None:
    body = json.loads(openai_body(ASKED, "gpt", 100, "max_completion_tokens"))
    TypeAdapter(list[ChatCompletionMessageParam]).validate_python(body["messages"])
    TypeAdapter(list[ChatCompletionToolParam]).validate_python(body["tools"])
    assert body["max_completion_tokens"] == 100 and "max_tokens" not in body
    assert [m["role"] for m in body["messages"]] == ["system", "user", "assistant", "tool", "user", "assistant"]
    answer = {"choices": [{"finish_reason": "stop", "message": body["messages"][2]}]}
    message, is_cut = openai_message(json.dumps(answer).encode())
    assert message == ASKED.messages[2] and not is_cut
