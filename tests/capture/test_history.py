"""Which recorded call a request continues, whatever its harness did to the echo."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.capture.history import History, Place, request_key
from appliance.capture.wire import chat, gemini, messages, responses
from appliance.types import Message, Request, Tool, ToolCall
from tests.support.json_values import JSON

HI = Message("user", "hi")
CALL = ToolCall("call_3x0_0", "bash", '{"command": "ls",  "timeout": 1.0}')
SAID = Message("assistant", "So:", "hm", (CALL,))
BASH = Tool("bash", "Run.", '{"type": "object"}')


def request(*turns: Message, **more: object) -> Request:
    return replace(Request("chat", "m", turns, (BASH,)), **more)  # type: ignore[arg-type]


def history(*answers: Message) -> History[str]:
    """Calls named "0", "1", … that all asked `HI` and were answered so."""
    known: History[str] = History()
    for i, answer in enumerate(answers):
        known.add(request(HI), known.look(request(HI)).history, answer, str(i))
    return known


def place(known: History[str], *turns: Message) -> Place[str]:
    return known.look(request(*turns, Message("tool", "a b")))


ECHOES = {
    "word for word": SAID,
    "without reasoning": replace(SAID, reasoning=""),
    "other ids": replace(SAID, tool_calls=(replace(CALL, id="callx"),)),
    "compact arguments, keys in another order": replace(
        SAID, tool_calls=(replace(CALL, arguments='{"timeout":1,"command":"ls"}'),)
    ),
    "right-stripped and padded text": replace(SAID, content=" So:\n"),
}


@pytest.mark.parametrize("echo", ECHOES.values(), ids=ECHOES.keys())
def test_an_echo_is_found_whatever_the_harness_did_to_it(echo: Message) -> None:
    found = place(history(SAID), HI, echo)
    assert (found.call, found.n) == ("0", 2)


@pytest.mark.parametrize(
    "edited",
    [
        replace(SAID, content="So not:"),
        replace(SAID, tool_calls=()),
        replace(SAID, tool_calls=(replace(CALL, name="sh"),)),
        replace(SAID, tool_calls=(replace(CALL, arguments='{"command": "ls -a"}'),)),
        replace(SAID, role="user"),
    ],
)
def test_an_edited_turn_is_another_conversation(edited: Message) -> None:
    assert place(history(SAID), HI, edited).call is None


def test_an_edited_user_turn_or_other_tools_are_another_conversation() -> None:
    assert place(history(SAID), Message("user", "ho"), SAID).call is None
    assert history(SAID).look(request(HI, SAID, tools=())).call is None


def test_of_two_answers_that_read_alike_the_ids_then_the_reasoning_then_the_order_decide() -> None:
    first, second = SAID, replace(SAID, reasoning="hmm", tool_calls=(replace(CALL, id="call_3x1_0"),))
    known = history(first, second)
    assert place(known, HI, first).call == "0"
    assert place(known, HI, replace(first, reasoning="")).call == "0"
    assert place(known, HI, replace(first, tool_calls=(replace(CALL, id=""),))).call == "0"
    assert place(known, HI, replace(first, reasoning="", tool_calls=(replace(CALL, id=""),))).call == "1"


def test_the_longest_recorded_conversation_is_continued() -> None:
    known = history(SAID)
    result = Message("tool", "a b")
    then = request(HI, SAID, result)
    known.add(then, known.look(then).history, Message("assistant", "done"), "later")
    found = known.look(request(HI, SAID, result, Message("assistant", "done"), Message("user", "more")))
    assert (found.call, found.n) == ("later", 4)


def test_a_retry_has_the_key_of_what_it_repeats_streamed_or_not() -> None:
    assert request_key(request(HI, stream=True)) == request_key(request(HI))
    assert request_key(request(HI, settings='{"temperature":1}')) != request_key(request(HI))


# ------------------------------------------------------------------ the same through each wire's own forms


ARGUMENTS = '{"command": "ls"}'


def test_every_way_of_saying_nothing_beside_a_tool_call_is_the_same_turn() -> None:
    said = Message("assistant", "", "hm", (ToolCall("call_1", "bash", ARGUMENTS),)).canonical()
    for content in ({"content": None}, {"content": ""}, {"content": []}, {}):
        call = {"id": "x", "index": 0, "function": {"name": "bash", "arguments": '{"command":"ls"}'}}
        body = {"messages": [{"role": "assistant", "tool_calls": [call], **content}]}
        assert chat.parse_request(json.dumps(body).encode()).messages[0].canonical() == said


def test_a_text_and_a_list_of_one_text_part_are_the_same_turn_with_or_without_cache_marks() -> None:
    block = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}
    plain = json.dumps({"system": "s", "messages": [{"role": "user", "content": "hi"}]}).encode()
    marked = {"system": [{"type": "text", "text": "s"}], "messages": [{"role": "user", "content": [block]}]}
    assert messages.parse_request(json.dumps(marked).encode()).messages == messages.parse_request(plain).messages


def test_the_name_on_a_tool_message_does_not_count() -> None:
    def one(**more: str) -> Message:
        body = {"messages": [{"role": "tool", "tool_call_id": "c", "content": "x", **more}]}
        return chat.parse_request(json.dumps(body).encode()).messages[0]

    assert one(name="bash").canonical() == one().canonical()


def test_arguments_are_the_same_turn_on_wires_that_carry_them_as_text_and_parsed() -> None:
    arguments = {"b": [1.0, 1e3, 12345678901234567890], "a": {"x": "\u00e9\ud83d\ude00", "y": None}}
    text = '{"a": {"x": "\\u00e9\\ud83d\\ude00", "y": null}, "b": [1, 1000, 12345678901234567000]}'
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": text}}]}
    tool_use = {"type": "tool_use", "id": "t", "name": "f", "input": arguments}
    function_call = {"functionCall": {"name": "f", "args": arguments}}
    item = {"type": "function_call", "name": "f", "arguments": text, "call_id": "c"}
    turns = [
        chat.parse_request(json.dumps({"messages": [call]}).encode()),
        messages.parse_request(json.dumps({"messages": [{"role": "assistant", "content": [tool_use]}]}).encode()),
        gemini.parse_request(json.dumps({"contents": [{"role": "model", "parts": [function_call]}]}).encode()),
        responses.parse_request(json.dumps({"input": [item]}).encode()),
    ]
    assert len({turn.messages[0].canonical() for turn in turns}) == 1


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.text(max_size=4), JSON, max_size=4))
def test_arguments_written_in_any_other_way_are_the_same_turn(value: dict[str, object]) -> None:
    def turn(text: str) -> tuple[object, ...]:
        return Message("assistant", tool_calls=(ToolCall("", "f", text),)).canonical()

    shuffled = dict(sorted(value.items(), reverse=True))
    forms = [json.dumps(value), json.dumps(value, ensure_ascii=False, indent=2), json.dumps(shuffled)]
    assert len({turn(form) for form in forms}) == 1
