"""Google's own client against the real proxy over a real socket."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from google import genai
from google.genai import errors, types
from google.genai.client import AsyncClient

from appliance.capture.proxy import Limits
from appliance.errors import EngineError
from tests.support.scripted_engine import DONE, THINK_AND_CALL, Place, running, spelled

pytestmark = pytest.mark.anyio
BASH = types.FunctionDeclaration(
    name="bash",
    description="Run.",
    parameters=types.Schema(type="OBJECT", properties={"command": types.Schema(type="STRING")}, required=["command"]),
)
HI = types.Content(role="user", parts=[types.Part(text="hi")])


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def config(**more: Any) -> types.GenerateContentConfig:
    quiet = types.AutomaticFunctionCallingConfig(disable=True)
    tools = [types.Tool(function_declarations=[BASH])]
    return types.GenerateContentConfig(tools=tools, automatic_function_calling=quiet, **more)


@asynccontextmanager
async def client(at: Place, key: str = "x", base: str = "") -> AsyncIterator[AsyncClient]:
    # With a transport of its own it speaks through httpx; its aiohttp session warns of itself.
    transport = {"transport": httpx2.AsyncHTTPTransport()}
    once = types.HttpRetryOptions(attempts=1)
    options = types.HttpOptions(base_url=base or at.base, retry_options=once, async_client_args=transport)
    with genai.Client(api_key=key, http_options=options) as whole:
        async with whole.aio as c:
            yield c


async def ask(c: AsyncClient, stream: bool, contents: list[types.Content], **more: Any) -> list[types.Part]:
    """The parts of the answer; a streamed one must end with a finish reason and usage."""
    if not stream:
        reply = await c.models.generate_content(model="m", contents=contents, config=config(**more))
        return reply.candidates[0].content.parts
    chunks = [
        chunk
        async for chunk in await c.models.generate_content_stream(model="m", contents=contents, config=config(**more))
    ]
    assert [bool(chunk.candidates[0].finish_reason) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].usage_metadata.prompt_token_count
    return [part for chunk in chunks for part in chunk.candidates[0].content.parts]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_turn_comes_back_as_parts_and_its_echo_is_grafted(tmp_path: Path, stream: bool) -> None:
    async with running(tmp_path, THINK_AND_CALL, DONE) as at, client(at) as c:
        thought, text, call = await ask(c, stream, [HI], system_instruction="Be brief.")
        assert (thought.text, thought.thought, text.text) == ("hm", True, "So:")
        assert (call.function_call.name, call.function_call.args) == ("bash", {"command": "ls -a"})
        echo = types.Content(role="model", parts=[text, types.Part(function_call=call.function_call)])
        result = types.Part(function_response=types.FunctionResponse(name="bash", response={"output": "a b"}))
        contents = [HI, echo, types.Content(role="user", parts=[result])]
        (done,) = await ask(c, stream, contents, system_instruction="Be brief.")
        assert done.text == "done"
        begin, sampled = len(at.engine.fed[0]), spelled(THINK_AND_CALL)
        assert at.engine.fed[1][begin:][: len(sampled)].tolist() == sampled.tolist()
        assert at.said(1).endswith("\n<|im_start|>tool\na b<|im_end|>\n<|im_start|>assistant\n")
        assert "Be brief." in at.said(0) and '{"name": "bash", "arguments": {"command": "string"}}' in at.said(0)


async def test_without_alt_sse_the_stream_is_one_json_array(tmp_path: Path) -> None:
    async with running(tmp_path, THINK_AND_CALL) as at, at.http() as http:
        body = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
        reply = await http.post("/v1beta/models/m:streamGenerateContent", json=body)
        chunks = [types.GenerateContentResponse.model_validate(chunk) for chunk in reply.json()]
        assert chunks[-1].candidates[0].finish_reason == "STOP"
        assert chunks[-1].candidates[0].content.parts[0].function_call.name == "bash"
        # A repeated request gets the recorded answer, as events this time.
        again = await http.post("/v1beta/models/m:streamGenerateContent?alt=sse", json=body)
        data = [json.loads(line.removeprefix("data: ")) for line in again.text.split("\n\n") if line]
        assert data[-1] == reply.json()[-1] and len(at.record.drafts) == 1


async def test_tokens_are_counted_and_models_are_listed(tmp_path: Path) -> None:
    async with running(tmp_path) as at, client(at, key="tok", base=at.url) as c:
        counted = await c.models.count_tokens(model="m", contents=[HI])
        await c.models.generate_content(model="m", contents=[HI])
        assert counted.total_tokens == len(at.engine.fed[0])
        assert [model.name async for model in await c.models.list()] == ["models/corral"]
        assert (await c.models.get(model="any")).name == "models/any"


async def test_errors_have_the_shape_of_this_api(tmp_path: Path) -> None:
    async with (
        running(tmp_path, context_length=60) as at,
        client(at) as c,
        client(at, key="other", base=at.url) as stranger,
    ):
        long = types.Content(role="user", parts=[types.Part(text="word " * 60)])
        with pytest.raises(errors.ClientError, match="exceeds the maximum number of tokens allowed") as e:
            await ask(c, stream=True, contents=[long])
        assert (e.value.code, e.value.status) == (400, "INVALID_ARGUMENT")
        with pytest.raises(errors.ClientError) as unknown:
            await ask(stranger, stream=False, contents=[HI])
        assert (unknown.value.code, unknown.value.status) == (401, "UNAUTHENTICATED")
        image = types.Content(role="user", parts=[types.Part.from_bytes(data=b"x", mime_type="image/png")])
        with pytest.raises(errors.ClientError, match="takes text only"):
            await ask(c, stream=False, contents=[image])


async def test_an_engine_that_fails_in_a_stream_is_an_error_of_its_kind_which_clients_try_again(tmp_path: Path) -> None:
    async with running(tmp_path) as at, client(at) as c:
        at.engine.fault = EngineError("dead", "the engine ended")
        with pytest.raises(errors.ServerError, match="the engine ended") as e:
            await ask(c, stream=True, contents=[HI])
        assert (e.value.code, e.value.status) == (503, "UNAVAILABLE")


async def test_a_chat_that_was_kept_waiting_has_a_valid_history(tmp_path: Path) -> None:
    async with running(tmp_path, DONE, limits=Limits(keep_alive_s=0.01)) as at, client(at) as c:
        at.engine.held = anyio.Event()
        chat = c.chats.create(model="m")
        quiet = 0
        async for chunk in await chat.send_message_stream("hi"):
            quiet += not chunk.text
            if quiet == 3:
                at.engine.held.set()
        assert len(chat.get_history(curated=True)) == len(chat.get_history()) > 1
        # What is echoed are the parts as they came, quiet ones too: still the recorded turn.
        async for _ in await chat.send_message_stream("more"):
            pass
        begin = len(at.engine.fed[0])
        assert at.engine.fed[1][begin:][: len(spelled(DONE))].tolist() == spelled(DONE).tolist()
