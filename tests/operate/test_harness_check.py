"""Real harnesses in real sandboxes through the real proxy: a three-turn tool task, answered by a script."""

from __future__ import annotations

from pathlib import Path

import anyio
import numpy as np
import pytest

from appliance.config.runconfig import home, podman_home
from appliance.errors import HarnessFileError
from appliance.harness.catalog import Shelf
from appliance.harness.harness import Harness
from appliance.operate.harness_check import Card, card_text, checked, prefix_share
from appliance.runs.scripted_responder import ScriptedPolicy, byte_renderer
from appliance.runs.teachers import ScriptedTeacher, SpokenTeacher
from appliance.sandbox.images.build import base_ref, build_images
from appliance.types import Call, Message, Request, Sample, StopReason, Tool

BASH = Tool("bash", "Run.", '{"type": "object", "properties": {"command": {"type": "string"}}}')
# The harnesses of ./install.sh test.
TEN = (
    "pi", "pi-responses", "pi-messages", "codex", "claude-code", "claude-code-bare", "opencode", "mini-swe-agent",
    "gemini-cli", "qwen-code", "openclaw", "nanobot", "strands",
)  # fmt: skip
KEYS = {
    "name", "version", "offline", "wires", "tool_call", "exit_code", "roots", "unexplained_forks", "prefix_share",
    "seconds", "peak_mb",
}  # fmt: skip


@pytest.fixture(scope="module")
def images() -> Path:
    """The state folder whose images are used; what is missing is built."""
    folder = podman_home(home())
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def toy(script: str, **changes: object) -> Harness:
    """A harness over the base image that runs `script`."""
    settings: dict[str, object] = {
        "name": "toy", "version": "1", "wire": "chat", "check": ("echo", "1"), "layer": "FROM {base}\n",
        "argv": ("sh", "-c", f"{script} # {{base_url}} {{prompt}}"), "env": {}, "files": {},
        "memory_bytes": 200_000_000, "pids": 64, "quirks": {},
    }  # fmt: skip
    return Harness(**(settings | changes))  # type: ignore[arg-type]


@pytest.fixture
def toy_image(images: Path) -> Path:
    build_images(images, [toy("true")], print)
    return images


@pytest.mark.real
@pytest.mark.parametrize("name", TEN)
def test_a_harness_keeps_its_contract(images: Path, name: str) -> None:
    harness = Shelf.of(home()).get(name)
    build_images(images, [harness], print)
    card = checked(images, harness)
    assert card.problem == "", card_text(card)
    assert set(card.as_dict()) >= KEYS
    assert (card.offline, card.tool_call, card.exit_code, card.wires) == (True, True, 0, (harness.wire,))
    assert (card.roots, card.forks, card.unexplained_forks, card.stray_ids) == (1, (), 0, 0)
    assert card.calls >= 4 and card.left_behind == () and card.peak_mb > 0
    assert card.prefix_share > 0.5, "most of each later prompt is an earlier path"


@pytest.mark.real
def test_several_runs_say_how_stable_a_harness_is(images: Path) -> None:
    build_images(images, [Shelf.of(home()).get("pi")], print)
    card = checked(images, Shelf.of(home()).get("pi"), runs=2)
    assert card.stability is not None and card.problem == ""
    assert (card.stability.same_prompts, card.stability.same_tools, card.stability.same_order) == (1.0, 1.0, 1.0)
    assert card.stability.shareable_between > 0.2 and "over 2 runs" in card_text(card)


@pytest.mark.real
@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("sleep 600", "harness:timeout"),
        ("no-such-program", "not in its image"),
        ("exit 3", "exit code 3"),
    ],
)
def test_a_harness_that_breaks_its_contract_is_told_what_it_broke(toy_image: Path, script: str, said: str) -> None:
    card = checked(toy_image, toy(script), timeout_s=4)
    assert said in card.problem and not card.offline and card.left_behind == ()
    assert said in card_text(card)


@pytest.mark.real
def test_a_harness_without_its_image_says_how_to_build_it(images: Path) -> None:
    with pytest.raises(HarnessFileError) as caught:
        checked(images, toy("true", layer="FROM {base}\nRUN : never built\n"))
    assert caught.value.remedy == "corral harness build toy"


def sampled(policy: ScriptedPolicy, messages: tuple[Message, ...], tools: tuple[Tool, ...]) -> Sample:
    """One call of `policy` on this conversation."""

    class Session:
        rollout_id, tokens_left = 1, 10_000

    prompt = policy.renderer.render(messages, tools)
    answer, sample = anyio.run(policy.answer, Session(), Request("chat", "m", messages, tools), prompt)
    assert sample is not None and answer.num_sampled_tokens == len(sample.sampled_ids)
    return sample


def test_a_scripted_policy_samples_the_ids_that_say_the_teachers_words() -> None:
    policy = ScriptedPolicy(ScriptedTeacher(["ls"]))
    sample = sampled(policy, (Message("user", "go"),), (BASH,))
    said = byte_renderer().parse(sample.sampled_ids, (BASH,))
    assert [(call.name, call.arguments) for call in said.tool_calls] == [("bash", '{"command": "ls"}')]
    assert sample.stop_reason is StopReason.STOP and len(sample.logprobs) == len(sample.sampled_ids)
    assert np.array_equal(policy.said[0], sample.sampled_ids)


def test_a_harness_without_tools_is_told_in_its_own_words() -> None:
    policy = ScriptedPolicy(SpokenTeacher(['echo "a"'], '{"keys": {command_json}}', "the end"))
    first = sampled(policy, (Message("user", "go"),), ())
    assert byte_renderer().parse(first.sampled_ids, ()).content == '{"keys": "echo \\"a\\""}'
    # Words that the harness put there itself, as aider's "Ok.", are no turn of the teacher's.
    again = sampled(policy, (Message("user", "go"), Message("assistant", "Ok."), Message("user", "ok")), ())
    assert byte_renderer().parse(again.sampled_ids, ()).content == '{"keys": "echo \\"a\\""}'
    told = Message("assistant", '{"keys": "echo \\"a\\""}\n')
    last = sampled(policy, (Message("user", "go"), told, Message("user", "ok")), ())
    assert byte_renderer().parse(last.sampled_ids, ()).content == "the end"


def test_one_byte_is_one_token_and_comes_back() -> None:
    text = "naïve  ☂\n<tool_call>\t"
    ids = byte_renderer().encode(text)
    assert len(ids) == len(text.encode()) and byte_renderer().decode(ids) == text


def call(prompt: list[int], sampled_ids: list[int]) -> Call:
    ids = [np.asarray(part, np.int32) for part in (prompt, sampled_ids)]
    sample = Sample(ids[0], ids[1], np.zeros(len(ids[1]), np.float32), StopReason.STOP, 0)
    return Call(0, 0, 0, "chat", sample, b"", b"", 0.0, 0.0)


def test_the_share_of_later_prompts_that_was_there_before() -> None:
    assert prefix_share([call([1, 2], [3])]) == 1.0
    assert prefix_share([call([1, 2], [3]), call([1, 2, 3, 4], [5])]) == 0.75
    assert prefix_share([call([1, 2], [3]), call([9, 9], [5])]) == 0.0


def test_a_card_reads_as_text_and_as_an_object() -> None:
    card = Card(
        "toy", "1", False, ("chat",), False, 3, 1, (), 0, 0.5, 1.0, 20.0, 2, 300, 0, (), "exit code 3", "oh\x1b[31m no"
    )
    assert "\x1b" not in card_text(card) and "oh" in card_text(card)
    assert set(card.as_dict()) >= KEYS


def test_the_base_images_are_two() -> None:
    assert base_ref() != base_ref("trixie")
