"""Chat Completions: lenient in, strict out (checked by the official client library's own types)."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from appliance.capture.wire import chat
from appliance.capture.wire.body import load_object
from appliance.record.conversation import from_neutral_json, neutral_json
from appliance.types import Answer, Message, Request, StopReason, ToolCall
from tests.support.json_values import JSON


def body(*messages: object, **extra: object) -> bytes:
    return json.dumps({"model": "m", "messages": list(messages)} | extra).encode()


def events(data: bytes) -> list[str]:
    assert data.endswith(b"\n\n")
    return [line.removeprefix("data: ") for line in data.decode().split("\n\n") if line]


REQUEST = Request("chat", "m", (Message("user", "hi"),), stream=True, include_usage=True)
ANSWER = Answer(
    Message(
        "assistant",
        "So:",
        "hm",
        (ToolCall("call_a", "bash", '{"command": "ls"}'), ToolCall("call_b", "bash", "{broken")),
    ),
    StopReason.STOP,
    11,
    5,
)


# ------------------------------------------------------------------ in


def test_what_pi_sends_in_its_second_request() -> None:
    request = chat.parse_request(
        body(
            {"role": "system", "content": "You are a coding agent."},
            {"role": "user", "content": [{"type": "text", "text": "Read"}, {"type": "text", "text": "notes"}]},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": '{"command":"ls"}'}}
                ],
            },
            {"role": "tool", "content": "alpha 7\n", "tool_call_id": "call_1"},
            stream=True,
            stream_options={"include_usage": True},
            max_tokens=512,
            tools=[
                {
                    "type": "function",
                    "function": {"name": "bash", "description": "d", "parameters": {"type": "object"}, "strict": False},
                }
            ],
        )
    )
    assert [m.role for m in request.messages] == ["system", "user", "assistant", "tool"]
    assert request.messages[1].content == "Read\nnotes"
    assert request.messages[2] == Message("assistant", tool_calls=(ToolCall("call_1", "bash", '{"command":"ls"}'),))
    assert (request.stream, request.include_usage, request.max_tokens) == (True, True, 512)
    assert request.tools[0].parameters == '{"type": "object"}'


@pytest.mark.parametrize("content", [None, "", []])
def test_contents_of_a_turn_of_tool_calls_are_alike(content: object) -> None:
    message = {"role": "assistant", "content": content}
    assert chat.parse_request(body(message)).messages[0].content == ""


def test_developer_is_system_and_old_style_function_calls_are_tool_calls() -> None:
    call = {"role": "assistant", "function_call": {"name": "f", "arguments": {"a": 1}}}
    request = chat.parse_request(
        body({"role": "developer", "content": "x"}, call, {"role": "function", "content": "y"})
    )
    assert [m.role for m in request.messages] == ["system", "assistant", "tool"]
    assert request.messages[1].tool_calls[0].arguments == '{"a": 1}'


def test_a_retry_is_equal_in_settings_and_a_different_temperature_is_not() -> None:
    user = {"role": "user", "content": "x"}
    plain = chat.parse_request(body(user, temperature=1, stream=False, metadata={"try": 1}))
    again = chat.parse_request(body(user, metadata={"try": 2}, stream=True, temperature=1))
    other = chat.parse_request(body(user, temperature=0))
    assert plain.settings == again.settings != other.settings


def test_lone_surrogates_become_the_replacement_character() -> None:
    assert chat.parse_request(b'{"messages":[{"role":"user","content":"a\\ud800b"}]}').messages[0].content == "a\ufffdb"


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (b"", "line 1 column 1"),
        (b"\xff{}", "body: not UTF-8"),
        (b"[]", "expected an object, got array"),
        (b"{}", "messages: missing"),
        (body(), "messages: missing"),
        (body("x"), "messages[0]: expected an object, got string"),
        (body({"role": "king", "content": "x"}), "messages[0].role: unknown role 'king'"),
        (
            body({"role": "user", "content": [{"type": "image_url"}]}),
            "messages[0].content[0]: this model takes text only",
        ),
        (body({"role": "user"}, n=2), "n: only one"),
        (body({"role": "user"}, max_tokens=0), "max_tokens: must be at least 1"),
        (body({"role": "user"}, tools=[{"type": "function"}]), "tools[0].function"),
        (body({"role": "assistant", "tool_calls": [{"function": {"name": 3}}]}), "tool_calls[0].function.name"),
        (b'{"messages":' + b"[" * 5000 + b"]" * 5000 + b"}", "nested"),
    ],
)
def test_bad_bodies_are_refused_with_their_place(data: bytes, place: str) -> None:
    with pytest.raises(ValueError) as e:
        chat.parse_request(data)
    assert place in str(e.value)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=60) | JSON.map(lambda v: json.dumps(v).encode()))
def test_any_bytes_are_a_request_or_a_value_error(data: bytes) -> None:
    with suppress(ValueError):
        assert isinstance(chat.parse_request(data), Request)


MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool", "developer"])},
    optional={
        "content": JSON,
        "tool_calls": st.lists(st.fixed_dictionaries({"id": JSON, "function": JSON}), max_size=2) | JSON,
        "reasoning_content": JSON,
        "tool_call_id": JSON,
        "function_call": JSON,
    },
)


@settings(max_examples=150, deadline=None)
@given(st.lists(MESSAGES, min_size=1, max_size=3), JSON, JSON, JSON)
def test_any_shape_of_body_is_a_request_or_a_value_error(
    messages: list[object], tools: object, n: object, options: object
) -> None:
    try:
        request = chat.parse_request(body(*messages, tools=tools, n=n, stream_options=options))
    except ValueError:
        return
    again, tools_again, answer = from_neutral_json(neutral_json(request, Message("assistant", "x")))
    assert (again, tools_again, answer) == (request.messages, request.tools, Message("assistant", "x"))


def test_scrubbing_leaves_ordinary_bodies_alone() -> None:
    assert load_object('{"é": ["\\u00e9", 1.5, null]}'.encode()) == {"é": ["é", 1.5, None]}


# ------------------------------------------------------------------ out


def test_the_whole_answer_is_the_librarys_own_type() -> None:
    value = json.loads(chat.answer_json(REQUEST, ANSWER, "3x0"))
    reply = ChatCompletion.model_validate(value, strict=True)
    assert reply.choices[0].finish_reason == "tool_calls"
    assert [c.function.arguments for c in reply.choices[0].message.tool_calls or []] == ['{"command": "ls"}', "{broken"]
    assert reply.usage is not None and reply.usage.total_tokens == 16


def test_every_chunk_is_the_librarys_own_type_and_the_end_comes_last() -> None:
    before = [
        chat.stream_start(REQUEST, "3x0"),
        chat.keep_alive(REQUEST, "3x0", 1),
        *chat.stream_answer(REQUEST, ANSWER, "3x0"),
    ]
    end = events(chat.stream_end(REQUEST, ANSWER, "3x0"))
    chunks = [ChatCompletionChunk.model_validate_json(e) for part in before for e in events(part)]
    assert all(c.choices[0].finish_reason is None for c in chunks)
    assert end[-1] == "[DONE]"
    last, usage = (ChatCompletionChunk.model_validate_json(e) for e in end[:-1])
    assert last.choices[0].finish_reason == "tool_calls" and usage.choices == [] and usage.usage is not None
    arguments = {0: "", 1: ""}
    for chunk in chunks:
        for part in chunk.choices[0].delta.tool_calls or []:
            arguments[part.index] += part.function.arguments if part.function and part.function.arguments else ""
    assert arguments == {0: '{"command": "ls"}', 1: "{broken"}


def test_usage_is_sent_only_where_it_was_asked_for() -> None:
    plain = Request("chat", "m", (Message("user", "hi"),), stream=True)
    assert b"usage" not in chat.stream_end(plain, ANSWER, "3x0")


def test_custom_tools_come_and_go_as_free_text() -> None:
    request = chat.parse_request(
        body(
            {"role": "user", "content": "x"},
            {
                "role": "assistant",
                "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "patch", "input": "a\nb"}}],
            },
            tools=[{"type": "custom", "custom": {"name": "patch", "description": "d"}}],
        )
    )
    (call,) = request.messages[1].tool_calls
    assert call.arguments == '{"input": "a\\nb"}'
    value = json.loads(chat.answer_json(request, Answer(request.messages[1], StopReason.STOP), "1x1"))
    out = ChatCompletion.model_validate(value, strict=True).choices[0].message.tool_calls
    assert out is not None and out[0].type == "custom" and out[0].custom.input == "a\nb"


def test_an_empty_answer_is_an_empty_string_and_errors_have_their_code() -> None:
    empty = json.loads(chat.answer_json(REQUEST, Answer(Message("assistant"), StopReason.STOP), "1x1"))
    assert empty["choices"][0]["message"]["content"] == ""
    error = json.loads(chat.error_body(400, "no", "context_length_exceeded"))["error"]
    assert (error["code"], error["type"]) == ("context_length_exceeded", "invalid_request_error")
