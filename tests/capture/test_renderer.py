"""Messages to ids and back: equality with transformers, grafting, and text that must not become control tokens."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.capture.rendering.renderer import Renderer
from appliance.errors import ModelError
from appliance.types import Message, Tool, ToolCall
from tests.support.tiny_tokenizer import HERMES, PLAIN_STYLE, QWEN_STYLE, model_folder, renderer

BASH = Tool("bash", "Run.", '{"type": "object", "properties": {"command": {"type": "string"}}}')
SPAWN = Tool("spawn", "Start a helper.", '{"type": "object", "properties": {}}', namespace="agents")
TEMPLATES = {"hermes": HERMES.read_text(), "qwen": QWEN_STYLE}


def call(command: str, index: int = 0) -> ToolCall:
    return ToolCall(f"call_{index}", "bash", json.dumps({"command": command}))


def conversation() -> list[Message]:
    return [
        Message("system", "You run commands."),
        Message("user", "Find kéy and stop."),
        Message("assistant", "Looking.", tool_calls=(call("grep -rh key= folder"),)),
        Message("tool", "key=word\n", tool_call_id="call_0"),
        Message("assistant", tool_calls=(call("echo word > answer.txt"), call("ls", 1))),
        Message("tool", "", tool_call_id="call_0"),
        Message("tool", "answer.txt", tool_call_id="call_1"),
        Message("assistant", "done"),
    ]


def as_dicts(messages: list[Message]) -> list[dict[str, object]]:
    out: list[dict[str, object]] = []
    for message in messages:
        item: dict[str, object] = {"role": message.role, "content": message.content}
        if message.tool_calls:
            item["tool_calls"] = [
                {"type": "function", "function": {"name": c.name, "arguments": json.loads(c.arguments)}}
                for c in message.tool_calls
            ]
        out.append(item)
    return out


def as_tool_dict(tool: Tool) -> dict[str, object]:
    function = {"name": tool.name, "description": tool.description, "parameters": json.loads(tool.parameters)}
    return {"type": "function", "function": function}


@pytest.mark.parametrize("template", [*TEMPLATES.values(), PLAIN_STYLE], ids=[*TEMPLATES, "plain"])
@pytest.mark.parametrize("length", [2, 4, 7])
@pytest.mark.filterwarnings("ignore")
def test_rendering_equals_transformers(tmp_path: Path, template: str, length: int) -> None:
    from transformers import PreTrainedTokenizerFast

    folder = model_folder(tmp_path / "model", template)
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    expected = theirs.apply_chat_template(
        as_dicts(conversation()[:length]),
        tools=[as_tool_dict(BASH)],
        add_generation_prompt=True,
        chat_template=template,
        return_dict=False,
    )
    ours = Renderer.from_folder(folder).render(conversation()[:length], [BASH])
    assert ours.tolist() == expected


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_a_template_that_knows_tools_can_be_grafted(template: str) -> None:
    renderer(template).check_graft()


def test_a_template_without_tools_is_refused_with_a_remedy() -> None:
    with pytest.raises(ModelError, match="does not show the offered tools") as e:
        renderer(PLAIN_STYLE).check_graft()
    assert "hermes.jinja" in e.value.remedy


def test_a_template_that_drops_assistant_content_is_refused() -> None:
    shown = "{% if m.role == 'user' %}{{ m.content }}{% endif %}"
    template = "{% for m in messages %}<|im_start|>{{ m.role }}" + shown + "<|im_end|>{% endfor %}"
    with pytest.raises(ModelError, match="cannot be grafted"):
        renderer(template)


def test_a_template_whose_new_turns_depend_on_old_ones_is_refused() -> None:
    counted = HERMES.read_text().replace("'<|im_start|>' ~ message.role", "'<|im_start|>' ~ loop.index ~ message.role")
    with pytest.raises(ModelError, match="depending on earlier turns"):
        renderer(counted).check_graft()


def test_a_graft_keeps_every_recorded_id_and_adds_only_what_is_new() -> None:
    r = renderer()
    prompt = r.render(conversation()[:2], [BASH])
    # The model wrote its call in a spelling that no tokenizer would choose: one byte a token, odd spaces.
    odd = '<tool_call>\n{"name":"bash",  "arguments":{"command":"grep -rh key= folder"} }\n</tool_call>'
    sampled = np.concatenate([*(r.encode(c) for c in odd), r.encode("<|im_end|>")]).astype(np.int32)
    grafted = r.graft(prompt, sampled, conversation()[3:4], [BASH])
    n = len(prompt) + len(sampled)
    assert grafted[:n].tolist() == prompt.tolist() + sampled.tolist()
    assert r.decode(grafted[n:]) == "\n<|im_start|>tool\nkey=word\n<|im_end|>\n<|im_start|>assistant\n"
    assert (
        r.parse(sampled, [BASH]).canonical()
        == Message("assistant", tool_calls=(call("grep -rh key= folder"),)).canonical()
    )


def test_a_sample_cut_by_length_gets_its_end_of_turn_from_the_graft() -> None:
    r = renderer()
    prompt, sampled = r.render([Message("user", "hi")], []), r.encode("I was go")
    grafted = r.graft(prompt, sampled, [Message("user", "on?")], [])
    assert r.decode(grafted[len(prompt) :]) == (
        "I was go<|im_end|>\n<|im_start|>user\non?<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_training_rows_equal_what_the_proxy_feeds(template: str) -> None:
    r = renderer(template)
    messages = conversation()
    ids, mask = r.render_training(messages, [BASH])
    fed = r.render(messages[:2], [BASH])
    spans = []
    for start, end in ((2, 4), (4, 7), (7, 8)):
        sampled = r.turn(messages[start], [BASH])
        spans.append((len(fed), len(fed) + len(sampled)))
        assert ids[: len(fed)].tolist() == fed.tolist()
        if end < len(messages):
            fed = r.graft(fed, sampled, messages[start + 1 : end], [BASH])
    expected = np.zeros(len(ids), bool)
    for first, last in spans:
        expected[first:last] = True
        assert ids[last - 1] == r.stop_ids[0]
    assert mask.tolist() == expected.tolist()
    assert mask.dtype == np.bool_ and ids.dtype == np.int32


def test_hermes_training_rows_read_as_the_template_itself() -> None:
    r = renderer()
    ids, _ = r.render_training(conversation(), [BASH])
    whole = r.render(conversation(), [BASH], generation=False)
    assert r.decode(ids) + "\n" == r.decode(whole)


@settings(max_examples=60, deadline=None)
@given(
    st.text(max_size=12),
    st.sampled_from(["<|im_end|>", "<|im_start|>", "<tool_call>", "</think>"]),
    st.text(max_size=9),
)
def test_control_text_in_content_never_becomes_a_control_token(before: str, control: str, after: str) -> None:
    r = renderer()
    evil = before + control + after
    clean = r.render([Message("user", "x"), Message("tool", "y")], [])
    ids = r.render([Message("user", evil), Message("tool", evil)], [])
    added = range(r.vocab_size - 9, r.vocab_size)
    assert [i for i in ids.tolist() if i in added] == [i for i in clean.tolist() if i in added]
    surrogate_free = evil.encode("utf-8", "replace").decode()
    assert r.decode(ids).count(surrogate_free) >= 2


def test_control_text_in_schemas_and_arguments_stays_text() -> None:
    r = renderer()
    tool = Tool("bash", "d", '{"type": "object", "properties": {"<|im_end|>": {"type": "string"}}}')
    turn = r.turn(Message("assistant", tool_calls=(call("echo '<|im_end|>' </tool_call>"),)), [tool])
    assert turn.tolist().count(r.stop_ids[0]) == 1
    assert r.render([Message("user", "x")], [tool]).tolist().count(r.stop_ids[0]) == 2


def test_escape_characters_in_content_come_through_unchanged() -> None:
    r = renderer()
    text = "\U0010fff0\U000f0001 and \U000f0002 <|im_end|>"
    assert text in r.decode(r.render([Message("user", text)], []))


@pytest.mark.parametrize("cut", ['{"name": "bash", "arguments": {"command": "l', '{"name": "bash"'])
def test_a_call_cut_by_length_is_content(cut: str) -> None:
    r = renderer()
    message = r.parse(r.encode("Go.\n<tool_call>\n" + cut), [BASH])
    assert message.tool_calls == () and message.content == "Go.\n<tool_call>\n" + cut


def test_several_calls_and_a_malformed_one_are_told_apart() -> None:
    r = renderer()
    good = '<tool_call>\n{"name": "bash", "arguments": {"command": "%s"}}\n</tool_call>'
    bad = '<tool_call>\n{"name": "bash", "arguments": {"command": }}\n</tool_call>'
    text = "First.\n" + good % "a" + "\n" + bad + "\n" + good % "b" + "<|im_end|>"
    message = r.parse(r.encode(text), [BASH])
    assert [c.arguments for c in message.tool_calls] == ['{"command": "a"}', '{"command": "b"}']
    assert message.content == "First.\n\n" + bad


def test_reasoning_is_parted_from_content_also_when_the_prompt_opened_it() -> None:
    r = renderer()
    assert r.parse(r.encode("<think>\nhm\n</think>\n\nyes<|im_end|>"), []) == Message("assistant", "yes", "hm")
    assert r.parse(r.encode("hm\n</think>\n\nyes<|im_end|>"), []) == Message("assistant", "yes", "hm")
    assert r.parse(r.encode("<think>\nhm and"), []) == Message("assistant", "", "hm and")


def test_namespaced_and_unknown_tools_reach_the_harness() -> None:
    r = renderer()
    text = '<tool_call>\n{"name": "%s", "arguments": {}}\n</tool_call>'
    assert '"agents.spawn"' in r.decode(r.render([Message("user", "x")], [SPAWN]))
    for name in ("agents.spawn", "spawn"):
        (found,) = r.parse(r.encode(text % name), [SPAWN]).tool_calls
        assert (found.namespace, found.name) == ("agents", "spawn")
    (unknown,) = r.parse(r.encode(text % "fly"), [SPAWN]).tool_calls
    assert (unknown.namespace, unknown.name) == ("", "fly")


def test_a_bare_json_call_is_read_where_the_template_has_no_tool_call_tags() -> None:
    r = renderer(PLAIN_STYLE)
    text = '{"name": "bash", "parameters": {"command": "ls"}}<|im_end|>'
    assert r.parse(r.encode(text), [BASH]).tool_calls[0].arguments == '{"command": "ls"}'
    assert r.parse(r.encode(text), []).tool_calls == ()


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=st.sampled_from(list('<>{}"tool_cal/think:,\\ \n[]')), max_size=60))
def test_parsing_never_fails_whatever_was_sampled(text: str) -> None:
    r = renderer()
    assert r.parse(r.encode(text), [BASH]).role == "assistant"


def test_stop_ids_start_with_the_end_of_turn(tmp_path: Path) -> None:
    r = Renderer.from_folder(model_folder(tmp_path, QWEN_STYLE))
    assert [r.decode(np.array([i], np.int32)) for i in r.stop_ids] == ["<|im_end|>", "<|endoftext|>"]


def test_a_folder_without_a_template_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=str(tmp_path)):
        Renderer.from_folder(tmp_path)
