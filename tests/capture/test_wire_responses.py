"""Responses: items in, items and events out (checked by the official client library's own types)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from appliance.capture.wire import responses
from appliance.record.conversation import from_neutral_json, neutral_json
from appliance.types import Answer, Message, Request, StopReason, ToolCall
from tests.support.json_values import JSON

EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
FUNCTION = {"type": "function", "name": "exec_command", "strict": False, "parameters": {"type": "object"}}
TOOLS = [
    FUNCTION,
    {"type": "namespace", "name": "agents", "description": "d", "tools": [FUNCTION | {"name": "spawn"}]},
    {"type": "custom", "name": "patch", "description": "d", "format": {"type": "text"}},
    {"type": "local_shell"},
    {"type": "web_search"},
]


def body(*items: object, **extra: object) -> bytes:
    return json.dumps({"model": "m", "input": list(items)} | extra).encode()


def request() -> Request:
    return responses.parse_request(body({"role": "user", "content": "hi"}, tools=TOOLS, stream=True))


ANSWER = Answer(
    Message(
        "assistant",
        "So:",
        "hm",
        (
            ToolCall("call_a", "exec_command", '{"cmd": "ls"}'),
            ToolCall("call_b", "spawn", "{}", "agents"),
            ToolCall("call_c", "patch", '{"input": "a\\nb"}'),
            ToolCall("call_d", "local_shell", '{"command": ["ls", "-a"]}'),
            ToolCall("call_e", "local_shell", "{broken"),
        ),
    ),
    StopReason.STOP,
    11,
    5,
)


def events(*parts: bytes) -> list[dict[str, object]]:
    out = []
    for block in b"".join(parts).decode().split("\n\n")[:-1]:
        head, data = block.split("\n")
        value = json.loads(data.removeprefix("data: "))
        assert head == f"event: {value['type']}"
        out.append(value)
    return out


# ------------------------------------------------------------------ in


def test_what_codex_sends_in_its_second_request() -> None:
    got = responses.parse_request(
        body(
            {"type": "message", "id": "m1", "role": "developer", "content": [{"type": "input_text", "text": "Base."}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Read"}]},
            {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "zzz"},
            {
                "type": "function_call",
                "id": "fc",
                "name": "exec_command",
                "arguments": '{"cmd": "ls"}',
                "call_id": "c1",
            },
            {"type": "function_call_output", "id": "fco", "call_id": "c1", "output": "Output:\nalpha\n"},
            tools=TOOLS,
            store=False,
            include=["reasoning.encrypted_content"],
            client_metadata={"turn_id": "1"},
        )
    )
    assert [m.role for m in got.messages] == ["system", "user", "assistant", "tool"]
    assert got.messages[2].tool_calls == (ToolCall("c1", "exec_command", '{"cmd": "ls"}'),)
    assert got.messages[3] == Message("tool", "Output:\nalpha\n", tool_call_id="c1")
    assert [(t.namespace, t.name, t.kind) for t in got.tools] == [
        ("", "exec_command", "function"),
        ("agents", "spawn", "function"),
        ("", "patch", "custom"),
        ("", "local_shell", "local_shell"),
    ]


def test_contiguous_assistant_items_are_one_turn() -> None:
    items = json.loads(responses.answer_json(request(), ANSWER, "3x0"))["output"]
    outputs = [{"type": "function_call_output", "call_id": c.id, "output": "x"} for c in ANSWER.message.tool_calls]
    got = responses.parse_request(body({"role": "user", "content": "hi"}, *items, *outputs))
    assert [m.role for m in got.messages] == ["user", "assistant"] + ["tool"] * 5
    assert got.messages[1].canonical() == ANSWER.message.canonical()
    assert got.messages[1].reasoning == "hm"
    assert [c.namespace for c in got.messages[1].tool_calls] == ["", "agents", "", "", ""]


def test_instructions_come_first_and_a_string_is_a_user_turn() -> None:
    got = responses.parse_request(b'{"instructions": "Be brief.", "input": "hi"}')
    assert got.messages == (Message("system", "Be brief."), Message("user", "hi"))


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (b"{", "line 1 column 2"),
        (b'{"input": []}', "input: missing or empty"),
        (b'{"input": 3}', "input: expected an array, got number"),
        (b'{"input": "x", "previous_response_id": "r"}', "previous_response_id"),
        (
            body({"role": "user", "content": [{"type": "input_image"}]}),
            "input[0].content[0]: this model takes text only",
        ),
        (body({"type": "item_reference", "id": "x"}), "input[0]: item references"),
        (body({"type": "function_call", "arguments": "{}"}), "input[0].name: missing"),
        (body({"role": "user"}, tools=[{"type": "namespace", "name": "a", "tools": [3]}]), "tools[0].tools[0]"),
    ],
)
def test_bad_bodies_are_refused_with_their_place(data: bytes, place: str) -> None:
    with pytest.raises(ValueError) as e:
        responses.parse_request(data)
    assert place in str(e.value)


KINDS = [
    "message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output",
    "local_shell_call", "local_shell_call_output", "item_reference", "web_search_call",
]  # fmt: skip
ITEMS = st.fixed_dictionaries(
    {"type": st.sampled_from(KINDS)},
    optional={
        "role": st.sampled_from(["user", "assistant", "developer"]) | JSON,
        "content": JSON | st.lists(st.fixed_dictionaries({"type": st.just("input_text"), "text": JSON}), max_size=2),
        "name": JSON,
        "arguments": JSON,
        "call_id": JSON,
        "output": JSON,
        "action": st.fixed_dictionaries({"command": JSON}) | JSON,
        "summary": JSON,
        "input": JSON,
    },
)


@settings(max_examples=150, deadline=None)
@given(st.lists(ITEMS, max_size=4) | JSON, JSON, JSON)
def test_any_shape_of_body_is_a_request_or_a_value_error(items: object, tools: object, instructions: object) -> None:
    data = json.dumps({"input": items, "tools": tools, "instructions": instructions}).encode()
    try:
        got = responses.parse_request(data)
    except ValueError:
        return
    again, tools_again, _ = from_neutral_json(neutral_json(got, Message("assistant")))
    assert (again, tools_again) == (got.messages, got.tools)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_request_or_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        responses.parse_request(data)


# ------------------------------------------------------------------ out


def test_the_whole_answer_is_the_librarys_own_type() -> None:
    value = json.loads(responses.answer_json(request(), ANSWER, "3x0"))
    reply = Response.model_validate(value)
    assert [item.type for item in reply.output] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
        "custom_tool_call",
        "local_shell_call",
        "function_call",
    ]
    assert value["output"][3]["namespace"] == "agents" and value["output"][4]["input"] == "a\nb"
    assert reply.usage is not None and reply.usage.total_tokens == 16


@pytest.mark.parametrize("num_keep_alives", [0, 3])
def test_every_event_is_the_librarys_own_type_and_numbered_in_order(num_keep_alives: int) -> None:
    r = request()
    got = events(
        responses.stream_start(r, "3x0"),
        *(responses.keep_alive(r, "3x0", n + 1) for n in range(num_keep_alives)),
        *responses.stream_answer(r, ANSWER, "3x0", num_keep_alives),
        responses.stream_end(r, ANSWER, "3x0", num_keep_alives),
    )
    for value in got:
        assert EVENT.validate_python(value).type == value["type"]
    assert [value["sequence_number"] for value in got] == list(range(len(got)))
    kinds = [value["type"] for value in got]
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed"
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == 7
    done = [value["item"] for value in got if value["type"] == "response.output_item.done"]
    assert got[-1]["response"]["output"] == done  # type: ignore[index]


def test_an_answer_cut_by_length_is_incomplete() -> None:
    cut = Answer(Message("assistant", "So"), StopReason.LENGTH)
    (end,) = events(responses.stream_end(request(), cut, "3x0"))
    assert end["type"] == "response.incomplete"
    assert EVENT.validate_python(end).response.incomplete_details.reason == "max_output_tokens"  # type: ignore[union-attr]


def test_an_answer_of_nothing_is_still_a_turn() -> None:
    value = json.loads(responses.answer_json(request(), Answer(Message("assistant"), StopReason.STOP), "3x0"))
    assert value["output"][0]["content"][0]["text"] == ""


def test_a_stream_that_fails_says_so_in_an_event() -> None:
    (end,) = events(responses.stream_error(request(), "3x0", "the engine ended", "server_error"))
    assert EVENT.validate_python(end).type == "response.failed"
