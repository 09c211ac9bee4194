"""Anthropic's own client against the real proxy over a real socket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anthropic
import pytest

from appliance.capture.proxy import Limits
from tests.support.scripted_engine import DONE, THINK_AND_CALL, Place, running, spelled

pytestmark = pytest.mark.anyio
BASH = {
    "name": "bash",
    "description": "Run.",
    "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}
ASK: dict[str, Any] = {
    "model": "m",
    "max_tokens": 200,
    "tools": [BASH],
    "messages": [{"role": "user", "content": "hi"}],
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def client(at: Place, **options: Any) -> anthropic.AsyncAnthropic:
    options = {"base_url": at.base, "api_key": "x", "max_retries": 0, "_strict_response_validation": True} | options
    return anthropic.AsyncAnthropic(**options)


async def ask(c: anthropic.AsyncAnthropic, stream: bool, **body: Any) -> anthropic.types.Message:
    if not stream:
        return await c.messages.create(**ASK | body)
    async with c.messages.stream(**ASK | body) as events:
        return await events.get_final_message()


@pytest.mark.parametrize("stream", [False, True])
async def test_thinking_text_and_a_tool_call_come_back_as_blocks(tmp_path: Path, stream: bool) -> None:
    async with running(tmp_path, THINK_AND_CALL) as at, client(at) as c:
        reply = await ask(c, stream)
        thinking, text, call = reply.content
        assert (thinking.type, thinking.thinking) == ("thinking", "hm") and thinking.signature
        assert (text.type, text.text) == ("text", "So:")
        assert (call.type, call.name, call.input) == ("tool_use", "bash", {"command": "ls -a"})
        assert reply.stop_reason == "tool_use"
        assert reply.usage.input_tokens == len(at.engine.fed[0])
        assert reply.usage.output_tokens == len(spelled(THINK_AND_CALL))


@pytest.mark.parametrize("stream", [False, True])
async def test_an_echoed_turn_is_grafted_by_its_recorded_ids(tmp_path: Path, stream: bool) -> None:
    async with running(tmp_path, THINK_AND_CALL, DONE) as at, client(at) as c:
        first = await ask(c, stream)
        result = {"type": "tool_result", "tool_use_id": first.content[2].id, "content": "a b"}
        note = {"type": "text", "text": "go on", "cache_control": {"type": "ephemeral"}}
        echo = [block.model_dump(exclude_none=True) for block in first.content]
        turns = [*ASK["messages"], {"role": "assistant", "content": echo}, {"role": "user", "content": [result, note]}]
        second = await ask(c, stream, messages=turns)
        assert second.content[0].text == "done" and second.stop_reason == "end_turn"
        sampled = spelled(THINK_AND_CALL)
        begin = len(at.engine.fed[0])
        assert at.engine.fed[1][:begin].tolist() == at.engine.fed[0].tolist()
        assert at.engine.fed[1][begin:][: len(sampled)].tolist() == sampled.tolist()
        assert at.said(1).endswith(
            "\n<|im_start|>tool\na b<|im_end|>\n<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n"
        )


async def test_tokens_are_counted_by_the_renderer_and_are_no_call(tmp_path: Path) -> None:
    async with running(tmp_path) as at, client(at) as c:
        counted = await c.messages.count_tokens(**{k: v for k, v in ASK.items() if k != "max_tokens"})
        await ask(c, stream=False)
        assert counted.input_tokens == len(at.engine.fed[0])
        assert len(at.record.drafts) == 1


async def test_the_api_key_names_the_rollout_too(tmp_path: Path) -> None:
    async with running(tmp_path) as at:
        async with client(at, base_url=at.url, api_key="tok") as by_key:
            assert (await ask(by_key, stream=True)).content[0].text == "done"
        async with client(at, base_url=at.url, api_key=None, auth_token="tok") as by_bearer:
            assert [m.id async for m in by_bearer.models.list()] == ["corral"]
        async with client(at, base_url=at.url, api_key="other") as unknown:
            with pytest.raises(anthropic.AuthenticationError):
                await ask(unknown, stream=False)


async def test_errors_have_the_shape_of_this_api(tmp_path: Path) -> None:
    async with running(tmp_path, context_length=60, limits=Limits(max_body_bytes=5000)) as at, client(at) as c:
        with pytest.raises(anthropic.BadRequestError) as long:
            await ask(c, stream=True, messages=[{"role": "user", "content": "word " * 60}])
        assert "prompt is too long: " in long.value.message and " tokens > 60 maximum" in long.value.message
        assert long.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]
        with pytest.raises(anthropic.RequestTooLargeError):
            await ask(c, stream=False, messages=[{"role": "user", "content": "x" * 6000}])
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}
        with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\].content\[0\]: this model takes text only"):
            await ask(c, stream=False, messages=[{"role": "user", "content": [image]}])
