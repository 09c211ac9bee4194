"""Anthropic Messages: blocks in, blocks and events out (checked by the official client library's own types)."""

from __future__ import annotations

import json

import pytest
from anthropic.types import Message as Reply
from anthropic.types import RawMessageStreamEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from appliance.capture.wire import messages
from appliance.record.conversation import from_neutral_json, neutral_json
from appliance.types import Answer, Message, Request, StopReason, Tool, ToolCall
from tests.support.json_values import JSON

EVENT: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)
ANSWER = Answer(
    Message(
        "assistant", "So:", "hm", (ToolCall("call_a", "bash", '{"command": "ls"}'), ToolCall("call_b", "x", "{no"))
    ),
    StopReason.STOP,
    11,
    5,
)


def body(*turns: object, **extra: object) -> bytes:
    return json.dumps({"model": "m", "max_tokens": 9, "messages": list(turns)} | extra).encode()


def parsed(*turns: object, **extra: object) -> tuple[Message, ...]:
    return messages.parse_request(body(*turns, **extra)).messages


def request() -> Request:
    return messages.parse_request(body({"role": "user", "content": "hi"}, stream=True))


def events(*parts: bytes) -> list[dict[str, object]]:
    out = []
    for block in b"".join(parts).decode().split("\n\n")[:-1]:
        head, data = block.split("\n")
        value = json.loads(data.removeprefix("data: "))
        assert head == f"event: {value['type']}"
        out.append(value)
    return out


# ------------------------------------------------------------------ in


def test_what_claude_code_sends_in_its_second_request() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    got = messages.parse_request(
        body(
            {"role": "user", "content": [{"type": "text", "text": "<note>"}, {"type": "text", "text": "Read"} | mark]},
            {"role": "system", "content": "# Environment"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "zzz"},
                    {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}} | mark,
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "a\n"}]},
                    {"type": "text", "text": "<reminder>"},
                ],
            },
            system=[
                {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.332.abc; x"},
                {"type": "text", "text": "You are Claude Code."} | mark,
                {"type": "text", "text": "Be brief."},
            ],
            tools=[{"name": "Bash", "description": "d", "input_schema": {"type": "object"}} | mark],
            thinking={"type": "adaptive"},
            context_management={"edits": []},
            metadata={"user_id": "x"},
            stream=True,
        )
    )
    assert got.messages == (
        Message("system", "You are Claude Code.\nBe brief."),
        Message("user", "<note>\nRead"),
        Message("system", "# Environment"),
        Message("assistant", "", "hm", (ToolCall("t1", "Bash", '{"command": "ls"}'),)),
        Message("tool", "a\n", tool_call_id="t1"),
        Message("user", "<reminder>"),
    )
    assert got.tools == (Tool("Bash", "d", '{"type": "object"}'),)
    assert (got.stream, got.max_tokens) == (True, 9)


def test_a_tool_loaded_in_mid_conversation_is_shown_where_it_is_referred_to_and_the_head_stays() -> None:
    head = {"name": "ToolSearch", "input_schema": {"type": "object"}}
    late = {"name": "Fetch", "description": "Get.", "input_schema": {"type": "object"}, "defer_loading": True}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "tool_reference", "tool_name": "Fetch"}]}
    before = messages.parse_request(body({"role": "user", "content": "hi"}, tools=[head]))
    after = messages.parse_request(body({"role": "user", "content": [result]}, tools=[late, head]))
    assert after.tools == before.tools == (Tool("ToolSearch", "", '{"type": "object"}'),)
    shown = json.loads(after.messages[0].content)
    assert shown["function"] == {"name": "Fetch", "description": "Get.", "parameters": {"type": "object"}}


def test_assistant_messages_in_a_row_are_one_turn_and_a_placeholder_for_nothing_is_nothing() -> None:
    thinking = {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}]}
    redacted = {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}
    assert parsed(thinking, redacted, {"role": "assistant", "content": "So:"}) == (Message("assistant", "So:", "hm"),)
    assert parsed({"role": "assistant", "content": "(no content)"}) == (Message("assistant"),)


def test_documents_of_text_are_text_and_server_tools_are_left_out() -> None:
    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "inside"}}
    assert parsed({"role": "user", "content": [document]}) == (Message("user", "inside"),)
    got = messages.parse_request(
        body({"role": "user", "content": "x"}, tools=[{"type": "web_search_20250305", "name": "web_search"}])
    )
    assert got.tools == ()


def test_arguments_that_were_no_json_come_back_as_they_were() -> None:
    blocks = json.loads(messages.answer_json(request(), ANSWER, "3x0"))["content"]
    assert blocks[3]["input"] == {"INVALID_JSON": "{no"}
    assert parsed({"role": "assistant", "content": blocks})[0].canonical() == ANSWER.message.canonical()


IMAGE = {"type": "image", "source": {"type": "url", "url": "http://x"}}


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (b"{", "line 1 column 2"),
        (b"[]", "body: expected an object, got array"),
        (b'{"messages": []}', "messages: missing or empty"),
        (body({"role": "robot", "content": "x"}), "messages[0].role: unknown role 'robot'"),
        (body({"role": "user", "content": 3}), "messages[0].content: expected a string or an array, got number"),
        (body({"role": "user", "content": [IMAGE]}), "messages[0].content[0]: this model takes text only, not 'image'"),
        (
            body({"role": "user", "content": [{"type": "tool_result", "content": [IMAGE]}]}),
            "messages[0].content[0].content[0]: this model takes text only",
        ),
        (body({"role": "assistant", "content": [{"type": "tool_use"}]}), "messages[0].content[0].name: missing"),
        (body({"role": "user"}, tools=[{"name": "a", "input_schema": 3}]), "tools[0].input_schema: expected an object"),
        (body({"role": "user"}, max_tokens=0), "max_tokens: must be at least 1"),
    ],
)
def test_bad_bodies_are_refused_with_their_place(data: bytes, place: str) -> None:
    with pytest.raises(ValueError) as e:
        messages.parse_request(data)
    assert place in str(e.value)


BLOCKS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "thinking", "tool_use", "tool_result", "tool_reference", "document", "image"])},
    optional={key: JSON for key in ("text", "thinking", "name", "id", "input", "content", "tool_use_id", "source")},
)
TURNS = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system"]) | JSON, "content": st.lists(BLOCKS, max_size=3) | JSON}
)


@settings(max_examples=40, deadline=None)
@given(st.lists(TURNS, max_size=4) | JSON, JSON, JSON)
def test_any_shape_of_body_is_a_request_or_a_value_error(turns: object, tools: object, system: object) -> None:
    data = json.dumps({"messages": turns, "tools": tools, "system": system}).encode()
    try:
        got = messages.parse_request(data)
    except ValueError:
        return
    again, tools_again, _ = from_neutral_json(neutral_json(got, Message("assistant")))
    assert (again, tools_again) == (got.messages, got.tools)


# ------------------------------------------------------------------ out


def test_the_whole_answer_is_the_librarys_own_type() -> None:
    reply = Reply.model_validate_json(messages.answer_json(request(), ANSWER, "3x0"), strict=True)
    assert [block.type for block in reply.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert (reply.stop_reason, reply.usage.input_tokens, reply.usage.output_tokens) == ("tool_use", 11, 5)


def test_every_event_is_the_librarys_own_type_and_the_end_comes_last() -> None:
    r = request()
    got = events(
        messages.stream_start(r, "3x0"),
        messages.keep_alive(r, "3x0", 1),
        *messages.stream_answer(r, ANSWER, "3x0", 1),
        messages.stream_end(r, ANSWER, "3x0", 1),
    )
    assert got[1] == {"type": "ping"}
    for value in got[:1] + got[2:]:
        assert EVENT.validate_python(value).type == value["type"]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    thinking = [*block[:2], *block[1:]]
    kinds = [value["type"] for value in got]
    assert kinds == ["message_start", "ping", *thinking, *block * 3, "message_delta", "message_stop"]
    assert [v["index"] for v in got if v["type"] == "content_block_stop"] == [0, 1, 2, 3]
    assert got[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}


def test_an_answer_cut_by_length_and_an_answer_of_nothing() -> None:
    cut = json.loads(messages.answer_json(request(), Answer(Message("assistant", "So"), StopReason.LENGTH), "3x0"))
    assert cut["stop_reason"] == "max_tokens"
    empty = json.loads(messages.answer_json(request(), Answer(Message("assistant"), StopReason.STOP), "3x0"))
    assert (empty["content"][0]["text"], empty["stop_reason"]) == ("", "end_turn")


@pytest.mark.parametrize(
    ("status", "family"),
    [(400, "invalid_request_error"), (401, "authentication_error"), (413, "request_too_large"), (500, "api_error"),
     (503, "overloaded_error")],
)  # fmt: skip
def test_an_errors_type_follows_from_its_status(status: int, family: str) -> None:
    error = json.loads(messages.error_body(status, "why", "kind"))
    assert error == {"type": "error", "error": {"type": family, "message": "why"}}
