"""OpenAI's own client against the real proxy over a real socket: what is special on its two wires."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.scripted_engine import DONE, END, THINK_AND_CALL, Place, running, spelled

pytestmark = pytest.mark.anyio
PATCH = f'<tool_call>\n{{"name": "patch", "arguments": {{"input": "*** a\\n+b"}}}}\n</tool_call>{END}'
SPAWN = f'<tool_call>\n{{"name": "agents.spawn", "arguments": {{"task": "look"}}}}\n</tool_call>{END}'
HI = {"role": "user", "content": "hi"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def client(at: Place) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{at.base}/v1", api_key="x", max_retries=0, _strict_response_validation=True)


async def respond(c: openai.AsyncOpenAI, stream: bool, **body: Any) -> list[Any]:
    """The output items of one answer."""
    if not stream:
        return list((await c.responses.create(model="m", **body)).output)
    async with c.responses.stream(model="m", **body) as events:
        return list((await events.get_final_response()).output)


def kept(at: Place, said: str) -> bool:
    """Whether the second prompt is the first with the recorded ids of `said` after it."""
    first, second, sampled = at.engine.fed[0].tolist(), at.engine.fed[1].tolist(), spelled(said).tolist()
    return second[: len(first)] == first and second[len(first) :][: len(sampled)] == sampled


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("line", "tool", "fields"),
    [
        (PATCH, {"type": "custom", "name": "patch"}, {"type": "custom_tool_call", "input": "*** a\n+b"}),
        (
            SPAWN,
            {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "spawn"}]},
            {"type": "function_call", "namespace": "agents", "name": "spawn", "arguments": '{"task": "look"}'},
        ),
    ],
    ids=["custom", "namespace"],
)
async def test_each_kind_of_tool_is_answered_with_its_item_and_its_echo_is_grafted(
    tmp_path: Path, stream: bool, line: str, tool: dict[str, object], fields: dict[str, str]
) -> None:
    async with running(tmp_path, line, DONE) as at, client(at) as c:
        (item,) = await respond(c, stream, input=[HI], tools=[tool])
        echo = item.model_dump(exclude_none=True)
        assert fields.items() <= echo.items()
        result = {"type": f"{fields['type']}_output", "call_id": item.call_id, "output": "ok"}
        (done,) = await respond(c, stream, input=[HI, echo, result], tools=[tool])
        assert done.content[0].text == "done" and kept(at, line)


async def test_a_client_that_keeps_only_the_sealed_thought_brings_it_back(tmp_path: Path) -> None:
    said = THINK_AND_CALL.replace("hm", "h\u00e9 \u2713")
    tools = [{"type": "function", "name": "bash", "parameters": {"type": "object", "properties": {}}, "strict": False}]
    async with running(tmp_path, said, DONE) as at, client(at) as c:
        thought, text, call = await respond(
            c, True, input=[HI], tools=tools, store=False, include=["reasoning.encrypted_content"]
        )
        sealed = {"type": "reasoning", "id": thought.id, "summary": [], "encrypted_content": thought.encrypted_content}
        rest = [item.model_dump(exclude_none=True) for item in (text, call)]
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "a b"}
        await respond(c, True, input=[HI, sealed, *rest, result], tools=tools)
        assert kept(at, said)
        echoed = at.record.drafts[1].messages_json.decode()
        assert '"reasoning":"h\u00e9 \u2713"' in echoed


@pytest.mark.parametrize(
    ("field", "value"), [("previous_response_id", "resp_1"), ("conversation", "conv_1"), ("background", True)]
)
async def test_what_would_need_a_memory_of_ours_is_refused_by_name(tmp_path: Path, field: str, value: object) -> None:
    async with running(tmp_path) as at, client(at) as c:
        with pytest.raises(openai.BadRequestError, match=f"{field}: not supported"):
            await c.responses.create(model="m", input="hi", **{field: value})  # type: ignore[call-overload]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_custom_tool_on_chat_is_called_with_its_free_text(tmp_path: Path, stream: bool) -> None:
    tool = {"type": "custom", "custom": {"name": "patch"}}
    body: dict[str, Any] = {"model": "m", "messages": [HI], "tools": [tool]}
    async with running(tmp_path, PATCH, DONE) as at, client(at) as c:
        if stream:
            parts = [part async for part in await c.chat.completions.create(**body, stream=True)]
            calls = [d.model_dump() for part in parts for d in part.choices[0].delta.tool_calls or ()]
            said = "".join(call["custom"].get("input", "") for call in calls)
            assert (calls[0]["custom"]["name"], said) == ("patch", "*** a\n+b")
            return
        message = (await c.chat.completions.create(**body)).choices[0].message
        (call,) = message.tool_calls or ()
        assert (call.type, call.custom.input) == ("custom", "*** a\n+b")
        result = {"role": "tool", "tool_call_id": call.id, "content": "ok"}
        await c.chat.completions.create(**body | {"messages": [HI, message.model_dump(exclude_none=True), result]})
        assert kept(at, PATCH)


async def test_more_than_one_choice_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as at, client(at) as c:
        with pytest.raises(openai.BadRequestError, match="n: only one choice a request is supported"):
            await c.chat.completions.create(model="m", messages=[HI], n=2)  # type: ignore[list-item]
