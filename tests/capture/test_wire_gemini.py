"""Gemini: contents in, candidates out (checked by the official client library's own types)."""

from __future__ import annotations

import json

import pytest
from google.genai import types
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.capture.wire import gemini
from appliance.record.conversation import from_neutral_json, neutral_json
from appliance.types import Answer, Message, Request, StopReason, ToolCall
from tests.support.json_values import JSON

ANSWER = Answer(
    Message(
        "assistant", "So:", "hm", (ToolCall("call_a", "bash", '{"command": "ls"}'), ToolCall("call_b", "x", "[1]"))
    ),
    StopReason.STOP,
    11,
    5,
)


def body(*contents: object, **extra: object) -> bytes:
    return json.dumps({"contents": list(contents)} | extra).encode()


def turn(role: str, *parts: object) -> dict[str, object]:
    return {"role": role, "parts": list(parts)}


def request(is_array: bool = False) -> Request:
    return gemini.parse_request(body(turn("user", {"text": "hi"})), "m", stream=True, is_array=is_array)


# ------------------------------------------------------------------ in


def test_what_gemini_cli_sends_in_its_second_request() -> None:
    got = gemini.parse_request(
        body(
            turn("user", {"text": "<session>"}, {"text": "Read"}),
            turn("model", {"text": "hm", "thought": True, "thoughtSignature": "c2ln"}, {"text": "So:"}),
            turn("model", {"functionCall": {"id": "own", "name": "run", "args": {"command": "ls"}}}),
            turn(
                "user",
                {"functionResponse": {"id": "own", "name": "run", "response": {"output": "a\n"}}},
                {"functionResponse": {"id": "o2", "name": "run", "response": {"a": 1, "b": "\u00e9"}}},
                {"text": "<reminder>"},
            ),
            systemInstruction=turn("user", {"text": "Be"}, {"text": "brief."}),
            tools=[
                {"functionDeclarations": [{"name": "run", "parametersJsonSchema": {"type": "object"}}]},
                {"googleSearch": {}},
            ],
            generationConfig={"maxOutputTokens": 7, "temperature": 0},
        ),
        "gemini-x",
    )
    assert got.messages == (
        Message("system", "Be\nbrief."),
        Message("user", "<session>\nRead"),
        Message("assistant", "So:", "hm", (ToolCall("own", "run", '{"command": "ls"}'),)),
        Message("tool", "a\n", tool_call_id="own"),
        Message("tool", '{"a": 1, "b": "\u00e9"}', tool_call_id="o2"),
        Message("user", "<reminder>"),
    )
    assert (got.model, got.max_tokens, [tool.name for tool in got.tools]) == ("gemini-x", 7, ["run"])


def test_snake_case_and_shouted_types_are_read_as_the_api_reads_them() -> None:
    schema = {"type": "OBJECT", "properties": {"type": {"type": "STRING", "enum": ["OBJECT"]}}}
    got = gemini.parse_request(
        body(
            {"parts": [{"function_response": {"name": "f", "response": {"error": "no"}}}]},
            system_instruction={"parts": [{"text": "s"}]},
            tools=[{"function_declarations": [{"name": "f", "parameters": schema}]}],
            generation_config={"max_output_tokens": 7},
        )
    )
    assert got.messages == (Message("system", "s"), Message("tool", "no")) and got.max_tokens == 7
    plain = {"type": "object", "properties": {"type": {"type": "string", "enum": ["OBJECT"]}}}
    assert json.loads(got.tools[0].parameters) == plain


def test_counting_takes_contents_or_a_whole_request() -> None:
    contents = [turn("user", {"text": "hi"})]
    whole = json.dumps({"generateContentRequest": {"model": "models/m", "contents": contents}}).encode()
    assert (
        gemini.parse_count(whole).messages == gemini.parse_count(body(*contents)).messages == (Message("user", "hi"),)
    )


def test_the_echo_of_an_answer_is_the_answer() -> None:
    parts = json.loads(gemini.answer_json(request(), ANSWER, "3x0"))["candidates"][0]["content"]["parts"]
    assert parts[3]["functionCall"]["args"] == {"INVALID_JSON": "[1]"}
    echo = gemini.parse_request(body(turn("model", *parts))).messages[0]
    assert echo.canonical() == ANSWER.message.canonical() and echo.reasoning == "hm"


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (b"{", "line 1 column 2"),
        (b'{"contents": []}', "contents: missing or empty"),
        (body({"role": "robot"}), "contents[0].role: unknown role 'robot'"),
        (body(turn("user", {"inlineData": {}}, {})), "contents[0].parts[0]: this model takes text only here"),
        (body(turn("user", {"file_data": {}})), "contents[0].parts[0]: this model takes text only here"),
        (body(turn("user", {"text": 3})), "contents[0].parts[0].text: expected a string, got number"),
        (body(turn("model", {"functionCall": {}})), "contents[0].parts[0].functionCall.name: missing"),
        (body(turn("user"), cachedContent="x"), "cachedContent: not supported"),
        (body(turn("user"), generationConfig={"candidateCount": 2}), "only one candidate"),
        (body(turn("user"), tools=[{"functionDeclarations": [{}]}]), "tools[0].functionDeclarations[0].name: missing"),
    ],
)
def test_bad_bodies_are_refused_with_their_place(data: bytes, place: str) -> None:
    with pytest.raises(ValueError) as e:
        gemini.parse_request(data)
    assert place in str(e.value)


NAMES = ("text", "thought", "functionCall", "functionResponse", "inlineData", "thoughtSignature")
PARTS = st.fixed_dictionaries({}, optional={name: JSON for name in NAMES})
CONTENTS = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "model"]) | JSON, "parts": st.lists(PARTS, max_size=3) | JSON}
)


@settings(max_examples=40, deadline=None)
@given(st.lists(CONTENTS, max_size=4) | JSON, JSON, JSON)
def test_any_shape_of_body_is_a_request_or_a_value_error(contents: object, tools: object, system: object) -> None:
    data = json.dumps({"contents": contents, "tools": tools, "systemInstruction": system}).encode()
    try:
        got = gemini.parse_request(data)
    except ValueError:
        return
    again, tools_again, _ = from_neutral_json(neutral_json(got, Message("assistant")))
    assert (again, tools_again) == (got.messages, got.tools)


# ------------------------------------------------------------------ out


@pytest.mark.parametrize("num_keep_alives", [0, 2])
@pytest.mark.parametrize("is_array", [False, True])
def test_every_chunk_is_the_librarys_own_type_and_only_the_last_has_a_finish_reason(
    is_array: bool, num_keep_alives: int
) -> None:
    r = request(is_array)
    alive = [gemini.keep_alive(r, "3x0", n + 1) for n in range(num_keep_alives)]
    sent = gemini.stream_start(r, "3x0") + b"".join(alive)
    sent += b"".join(gemini.stream_answer(r, ANSWER, "3x0")) + gemini.stream_end(r, ANSWER, "3x0")
    if is_array:
        values = json.loads(sent)[1:]
    else:
        values = [json.loads(line.removeprefix("data: ")) for line in sent.decode().split("\n\n")[:-1]]
    chunks = [types.GenerateContentResponse.model_validate(value) for value in values]
    finished = [bool(chunk.candidates and chunk.candidates[0].finish_reason) for chunk in chunks]
    assert finished == [False] * (len(chunks) - 1) + [True] and len(chunks) == 4 + num_keep_alives
    usage = chunks[-1].usage_metadata
    assert usage is not None and (usage.prompt_token_count, usage.total_token_count) == (11, 16)


def test_an_answer_cut_by_length_and_an_answer_of_nothing() -> None:
    cut = json.loads(gemini.answer_json(request(), Answer(Message("assistant", "So"), StopReason.LENGTH), "3x0"))
    assert cut["candidates"][0]["finishReason"] == "MAX_TOKENS"
    empty = json.loads(gemini.answer_json(request(), Answer(Message("assistant"), StopReason.STOP), "3x0"))
    assert empty["candidates"][0]["content"]["parts"] == [{"text": ""}]


def test_a_stream_that_fails_says_so_in_its_own_frame() -> None:
    event = gemini.stream_error(request(), "3x0", "the engine ended", "unavailable")
    assert json.loads(event)["error"]["status"] == "UNAVAILABLE"
    array = request(is_array=True)
    whole = gemini.stream_start(array, "3x0") + gemini.stream_error(array, "3x0", "the engine ended", "unavailable")
    assert json.loads(whole)[-1]["error"]["code"] == 503
