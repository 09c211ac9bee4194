"""The capture proxy over real sockets with the official client library, a record in lists and a scripted engine."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import httpx
import openai
import pytest

from appliance.capture.proxy import Limits, Proxy
from appliance.capture.upstream import Upstream, UpstreamTeacher
from appliance.engine.policy_responder import EngineAnswerer, Sampling
from appliance.errors import EngineError, StoreError
from appliance.record.conversation import from_neutral_json
from appliance.record.store import Store
from appliance.runs.teachers import ScriptedTeacher
from appliance.trees.lineage import from_text
from appliance.types import CallKind, Purpose, RolloutPlan
from tests.support.scripted_engine import CALL_LS as SAY_LS
from tests.support.scripted_engine import DONE as SAY_DONE
from tests.support.scripted_engine import ListRecord, ScriptedEngine, spelled
from tests.support.tiny_tokenizer import renderer

pytestmark = pytest.mark.anyio
BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}
EXEC = {
    "type": "function",
    "name": "exec_command",
    "description": "Run.",
    "strict": False,
    "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]},
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Place:
    proxy: Proxy
    record: ListRecord
    engine: ScriptedEngine
    url: str

    def client(self, token: str = "tok") -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            base_url=f"{self.url}/s/{token}/v1", api_key="x", max_retries=0, _strict_response_validation=True
        )

    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, trust_env=False, timeout=10)


@asynccontextmanager
async def running(folder: Path, *lines: str, limits: Limits | None = None, **sampling: int) -> AsyncIterator[Place]:
    engine, record = ScriptedEngine(list(lines)), ListRecord()
    answerer = EngineAnswerer(engine, renderer(), Sampling(**{"max_tokens": 256, "context_length": 4000, **sampling}))
    async with Proxy(record, folder, limits, answerer, port=0) as proxy:
        proxy.open(3, "tok")
        yield Place(proxy, record, engine, f"http://127.0.0.1:{proxy.port}")


def chat_body(*messages: dict[str, object], **extra: object) -> dict[str, object]:
    return {"model": "m", "messages": list(messages) or [{"role": "user", "content": "hi"}], "tools": [BASH], **extra}


USER = {"role": "user", "content": "hi"}


# ------------------------------------------------------------------ the two wires, by their own client


async def test_a_chat_call_comes_back_whole(tmp_path: Path) -> None:
    async with running(tmp_path, SAY_LS) as at, at.client() as client:
        reply = await client.chat.completions.create(**chat_body())
        (call,) = reply.choices[0].message.tool_calls
        assert (call.function.name, call.function.arguments) == ("bash", '{"command":"ls -a"}')
        assert reply.choices[0].finish_reason == "tool_calls"
        assert reply.usage.completion_tokens == len(spelled(SAY_LS))
        assert at.record.drafts[0].template == renderer().fingerprint


async def test_a_streamed_chat_call_adds_up(tmp_path: Path) -> None:
    async with running(tmp_path, "<think>\nhm\n</think>\n\nSo:\n" + SAY_LS) as at, at.client() as client:
        async with client.chat.completions.stream(**chat_body(stream_options={"include_usage": True})) as stream:
            reply = await stream.get_final_completion()
        message = reply.choices[0].message
        assert message.content == "So:" and message.tool_calls[0].function.arguments == '{"command":"ls -a"}'
        assert reply.usage.prompt_tokens == len(at.engine.fed[0])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_responses_call_comes_back_whole(tmp_path: Path, stream: bool) -> None:
    line = SAY_LS.replace("bash", "exec_command").replace('command":"ls', 'cmd":"ls')
    async with running(tmp_path, "<think>\nhm\n</think>\n\nSo:\n" + line) as at, at.client() as client:
        if stream:
            async with client.responses.stream(model="m", input="hi", tools=[EXEC]) as events:
                numbers = [event.sequence_number async for event in events]
                reply = await events.get_final_response()
            assert numbers == list(range(len(numbers)))
        else:
            reply = await client.responses.create(model="m", input="hi", tools=[EXEC])
        assert [item.type for item in reply.output] == ["reasoning", "message", "function_call"]
        assert reply.output_text == "So:" and reply.output[2].arguments == '{"cmd":"ls -a"}'


async def test_an_answer_cut_by_length_says_so_on_both_wires(tmp_path: Path) -> None:
    async with running(tmp_path, "abcdefgh", "abcdefgh", max_tokens=5) as at, at.client() as client:
        chat = await client.chat.completions.create(**chat_body())
        assert (chat.choices[0].finish_reason, chat.choices[0].message.content) == ("length", "abcde")
        reply = await client.responses.create(model="m", input="hi")
        assert (reply.status, reply.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        assert (await at.proxy.close("tok")).limit_reached


async def test_the_unix_socket_serves_the_same(tmp_path: Path) -> None:
    async with running(tmp_path, SAY_DONE) as at:
        transport = httpx.AsyncHTTPTransport(uds=str(tmp_path / "proxy.sock"))
        async with httpx.AsyncClient(transport=transport, base_url="http://corral") as client:
            reply = await client.post("/s/tok/v1/chat/completions", json=chat_body())
        assert reply.json()["choices"][0]["message"]["content"] == "done"
        assert at.proxy.directory == tmp_path


# ------------------------------------------------------------------ the record


async def test_I2_the_recorded_prompt_is_what_the_engine_was_fed(tmp_path: Path) -> None:
    async with running(tmp_path, SAY_LS, SAY_DONE) as at, at.client() as client:
        await two_turns(client)
        for draft, fed in zip(at.record.drafts, at.engine.fed, strict=True):
            assert draft.sample is not None and draft.sample.prompt_ids.tolist() == fed.tolist()
            assert draft.sample.policy_version == 7 and draft.wire == "chat"


async def two_turns(client: openai.AsyncOpenAI, echo: Callable[[dict], dict] = lambda m: m) -> dict:  # type: ignore[type-arg]
    first = await client.chat.completions.create(**chat_body(USER))
    said = echo(first.choices[0].message.model_dump(exclude_none=True))
    calls = said.get("tool_calls") or [{"id": "none"}]
    result = {"role": "tool", "tool_call_id": calls[0]["id"], "content": "a b"}
    second = await client.chat.completions.create(**chat_body(USER, said, result))
    return second.model_dump()


def reserialised(message: dict) -> dict:  # type: ignore[type-arg]
    """An echo as several harnesses make it: compact arguments, new ids, null content, no reasoning."""
    call = message["tool_calls"][0]
    arguments = json.dumps(json.loads(call["function"]["arguments"]), separators=(",", ":"))
    function = {"name": "bash", "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "", "type": "function", "function": function}]}


@pytest.mark.parametrize("echo", [lambda m: m, reserialised], ids=["exact", "reserialised"])
async def test_an_echoed_turn_is_grafted_by_its_recorded_ids(tmp_path: Path, echo: Callable[[dict], dict]) -> None:  # type: ignore[type-arg]
    said = "<think>\nhm\n</think>\n\n" + SAY_LS
    async with running(tmp_path, said, SAY_DONE) as at, at.client() as client:
        await two_turns(client, echo)
        first, second = at.engine.fed
        assert second[: len(first)].tolist() == first.tolist()
        assert second[len(first) :][: len(spelled(said))].tolist() == spelled(said).tolist()
        rest = renderer().decode(second[len(first) + len(spelled(said)) :])
        assert rest == "\n<|im_start|>tool\na b<|im_end|>\n<|im_start|>assistant\n"


async def test_an_edited_history_is_rendered_anew(tmp_path: Path) -> None:
    def edited(message: dict) -> dict:  # type: ignore[type-arg]
        return {"role": "assistant", "content": "I never called anything"}

    async with running(tmp_path, SAY_LS, SAY_DONE) as at, at.client() as client:
        await two_turns(client, edited)
        assert "I never called anything" in renderer().decode(at.engine.fed[1])


async def test_responses_items_are_grafted_too(tmp_path: Path) -> None:
    line = "<think>\nhm\n</think>\n\nSo:\n" + SAY_LS.replace("bash", "exec_command").replace('command":"ls', 'cmd":"ls')
    async with running(tmp_path, line, SAY_DONE) as at, at.client() as client:
        first = await client.responses.create(model="m", input="hi", tools=[EXEC])
        items = [{"role": "user", "content": "hi"}, *(item.model_dump(exclude_none=True) for item in first.output)]
        items.append({"type": "function_call_output", "call_id": first.output[2].call_id, "output": "a b"})
        await client.responses.create(model="m", input=items, tools=[EXEC])
        start = len(at.engine.fed[0])
        assert at.engine.fed[1][start:][: len(spelled(line))].tolist() == spelled(line).tolist()


async def test_neutral_json_gives_back_the_conversation(tmp_path: Path) -> None:
    async with running(tmp_path, SAY_LS) as at, at.client() as client:
        await client.chat.completions.create(**chat_body())
        messages, tools, answer = from_neutral_json(at.record.drafts[0].messages_json)
        assert [m.content for m in messages] == ["hi"] and tools[0].name == "bash"
        assert answer.tool_calls[0].arguments == '{"command":"ls -a"}'


# ------------------------------------------------------------------ I3: committed before the end is seen


@pytest.mark.parametrize("path", ["chat/completions", "responses"])
async def test_I3_a_client_that_drops_at_the_terminal_event_finds_the_call_committed(tmp_path: Path, path: str) -> None:
    body = chat_body(stream=True) if path.startswith("chat") else {"model": "m", "input": "hi", "stream": True}
    end = "[DONE]" if path.startswith("chat") else "response.completed"
    async with running(tmp_path, SAY_DONE) as at, at.http() as http:
        async with http.stream("POST", f"/s/tok/v1/{path}", json=body) as reply:
            async for line in reply.aiter_lines():
                if "done" in line and "output_text.delta" not in line:
                    assert len(at.record.drafts) == 1
                if end in line:
                    break
        assert len(at.record.drafts) == 1 and at.record.delivered[1]


async def test_nothing_of_an_answer_is_sent_when_it_cannot_be_recorded(tmp_path: Path) -> None:
    async with running(tmp_path, SAY_DONE) as at, at.http() as http:
        at.record.fault = StoreError("record.db: the disk is full")
        reply = await http.post("/s/tok/v1/chat/completions", json=chat_body(stream=True))
        assert "done" not in reply.text and "disk is full" in reply.text
        settled = await at.proxy.close("tok")
        assert settled.error is not None and settled.error.label == "capture:not_recorded"


async def test_a_client_that_leaves_early_leaves_a_whole_call_marked_undelivered(tmp_path: Path) -> None:
    async with running(tmp_path, SAY_DONE) as at, at.http() as http:
        at.engine.held, at.engine.reached = anyio.Event(), anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: http.post("/s/tok/v1/chat/completions", json=chat_body()))
            await at.engine.reached.wait()
            group.cancel_scope.cancel()
        session = at.proxy._sessions["tok"]
        (call,) = session.calls.values()
        with anyio.fail_after(5):
            while call.num_waiting:
                await anyio.lowlevel.checkpoint()
            at.engine.held.set()
            await call.done.wait()
        assert len(at.record.drafts) == 1 and not at.record.delivered[1]
        again = await http.post("/s/tok/v1/chat/completions", json=chat_body())
        assert again.json()["choices"][0]["message"]["content"] == "done"
        assert at.record.delivered[1] and len(at.engine.fed) == 1


async def test_what_is_known_of_a_delivery_is_what_was_recorded_also_when_the_record_is_busy(tmp_path: Path) -> None:
    async with running(tmp_path, SAY_DONE) as at, at.http() as http:
        at.engine.held, at.engine.reached = anyio.Event(), anyio.Event()
        writer = at.proxy._writer
        await writer.acquire_on_behalf_of("another call")
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: http.post("/s/tok/v1/chat/completions", json=chat_body()))
            await at.engine.reached.wait()
            group.cancel_scope.cancel()
        (call,) = at.proxy._sessions["tok"].calls.values()
        with anyio.fail_after(5):
            while call.num_waiting:
                await anyio.lowlevel.checkpoint()
            at.engine.held.set()
            while not writer.statistics().tasks_waiting:
                await anyio.lowlevel.checkpoint()
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: http.post("/s/tok/v1/chat/completions", json=chat_body()))
                while not call.num_waiting:
                    await anyio.lowlevel.checkpoint()
                writer.release_on_behalf_of("another call")
        assert at.record.drafts[0].delivered and not at.record.when_marked.is_set()


async def test_closing_a_session_cancels_what_is_in_flight_and_records_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, SAY_DONE) as at, at.http() as http:
        at.engine.held, at.engine.reached = anyio.Event(), anyio.Event()
        replies: list[httpx.Response] = []

        async def post() -> None:
            replies.append(await http.post("/s/tok/v1/chat/completions", json=chat_body()))

        async with anyio.create_task_group() as group:
            group.start_soon(post)
            await at.engine.reached.wait()
            settled = await at.proxy.close("tok")
        assert replies[0].status_code == 503 and at.record.drafts == []
        assert (settled.num_calls, settled.error) == (0, None)
        assert (await http.get("/s/tok/v1/models")).status_code == 401


# ------------------------------------------------------------------ retries


async def test_a_repeated_request_gets_the_recorded_answer_also_on_the_other_form(tmp_path: Path) -> None:
    async with running(tmp_path, SAY_LS) as at, at.client() as client:
        first = await client.chat.completions.create(**chat_body(temperature=1))
        async with client.chat.completions.stream(**chat_body(temperature=1)) as stream:
            second = await stream.get_final_completion()
        assert second.choices[0].message.tool_calls[0].id == first.choices[0].message.tool_calls[0].id
        assert len(at.engine.fed) == len(at.record.drafts) == 1
        assert (await at.proxy.close("tok")).num_replays == 1


async def test_the_same_words_after_another_compaction_are_no_retry(tmp_path: Path) -> None:
    """As codex asks whose policy wrote the same summary twice; it would be told the same for ever."""
    async with running(tmp_path, SAY_LS, "another answer<|im_end|>") as at, at.http() as http:

        async def said(window: str, **headers: str) -> str:
            told = {"x-codex-window-id": window, **headers}
            reply = await http.post("/s/tok/v1/chat/completions", json=chat_body(), headers=told)
            return reply.json()["choices"][0]["message"]["content"] or ""

        assert [await said("a:1"), await said("a:1")] == ["", ""] and len(at.engine.fed) == 1
        assert [await said("a:2"), await said("a:2")] == ["another answer"] * 2 and len(at.engine.fed) == 2
        assert at.engine.fed[1].tolist() == at.engine.fed[0].tolist()
        assert await said("b:7") == "another answer", "another thread is a harness that was started again"


async def test_two_at_once_share_one_sample(tmp_path: Path) -> None:
    async with running(tmp_path, SAY_DONE) as at, at.http() as http:
        at.engine.held, at.engine.reached = anyio.Event(), anyio.Event()
        replies: list[httpx.Response] = []

        async def post() -> None:
            replies.append(await http.post("/s/tok/v1/chat/completions", json=chat_body()))

        async with anyio.create_task_group() as group:
            group.start_soon(post)
            group.start_soon(post)
            await at.engine.reached.wait()
            (call,) = at.proxy._sessions["tok"].calls.values()
            while call.num_waiting < 2:
                await anyio.lowlevel.checkpoint()
            at.engine.held.set()
        assert replies[0].content == replies[1].content and len(at.engine.fed) == 1


async def test_a_failed_call_is_sampled_again_and_a_good_retry_clears_the_failure(tmp_path: Path) -> None:
    async with running(tmp_path, SAY_DONE) as at, at.http() as http:
        at.engine.fault = EngineError("dead", "the engine ended")
        reply = await http.post("/s/tok/v1/chat/completions", json=chat_body())
        assert reply.status_code == 503 and reply.headers["retry-after"] == "2"
        at.engine.fault = None
        assert (await http.post("/s/tok/v1/chat/completions", json=chat_body())).status_code == 200
        assert (await at.proxy.close("tok")).error is None


async def test_an_engine_failure_is_the_settled_error(tmp_path: Path) -> None:
    async with running(tmp_path) as at, at.http() as http:
        at.engine.fault = EngineError("dead", "the engine ended")
        reply = await http.post("/s/tok/v1/responses", json={"model": "m", "input": "hi", "stream": True})
        assert "response.failed" in reply.text
        settled = await at.proxy.close("tok")
        assert settled.error is not None and settled.error.label == "engine:dead"


# ------------------------------------------------------------------ keep-alive, limits, errors


@pytest.mark.parametrize("path", ["chat/completions", "responses"])
async def test_headers_come_at_once_and_keep_alives_are_real_events(tmp_path: Path, path: str) -> None:
    body = chat_body(stream=True) if path.startswith("chat") else {"model": "m", "input": "hi", "stream": True}
    async with running(tmp_path, SAY_DONE, limits=Limits(keep_alive_s=0.01)) as at, at.http() as http:
        at.engine.held = anyio.Event()
        async with http.stream("POST", f"/s/tok/v1/{path}", json=body) as reply:
            data: list[dict] = []  # type: ignore[type-arg]
            async for line in reply.aiter_lines():
                if line.startswith("data: {"):
                    data.append(json.loads(line.removeprefix("data: ")))
                if len(data) == 5:
                    at.engine.held.set()
        if path == "responses":
            assert [d["type"] for d in data[1:5]] == ["response.in_progress"] * 4
            assert [d["sequence_number"] for d in data] == list(range(len(data)))
        else:
            assert [d["choices"][0]["delta"] for d in data[1:5]] == [{}] * 4


async def test_limits_end_a_rollout_with_an_error_no_client_takes_for_compaction(tmp_path: Path) -> None:
    async with running(tmp_path, SAY_DONE, limits=Limits(max_calls=1)) as at, at.http() as http:
        await http.post("/s/tok/v1/chat/completions", json=chat_body())
        reply = await http.post("/s/tok/v1/chat/completions", json=chat_body({"role": "user", "content": "more"}))
        assert reply.status_code == 400 and "context" not in reply.text and "token" not in reply.text
        settled = await at.proxy.close("tok")
        assert settled.limit_reached and settled.error is None and settled.num_calls == 1


async def test_the_token_budget_bounds_the_sample_and_then_refuses(tmp_path: Path) -> None:
    async with running(tmp_path, "abcdefgh", limits=Limits(max_sampled_tokens=4)) as at, at.http() as http:
        first = await http.post("/s/tok/v1/chat/completions", json=chat_body())
        assert first.json()["choices"][0]["message"]["content"] == "abcd" and at.engine.asked == [4]
        second = await http.post("/s/tok/v1/chat/completions", json=chat_body({"role": "user", "content": "more"}))
        assert second.status_code == 400


async def test_a_replayed_request_in_a_loop_is_stopped(tmp_path: Path) -> None:
    async with running(tmp_path, SAY_DONE, limits=Limits(max_replays=2)) as at, at.http() as http:
        codes = [(await http.post("/s/tok/v1/chat/completions", json=chat_body())).status_code for _ in range(4)]
        assert codes == [200, 200, 200, 400]


async def test_a_prompt_over_the_context_length_gets_the_apis_own_error(tmp_path: Path) -> None:
    async with running(tmp_path, context_length=50) as at, at.client() as client:
        with pytest.raises(openai.BadRequestError) as e:
            await client.chat.completions.create(**chat_body({"role": "user", "content": "word " * 50}))
        assert e.value.code == "context_length_exceeded" and "maximum context length is 50" in str(e.value)
        assert (await at.proxy.close("tok")).limit_reached


async def test_bad_requests_get_their_place(tmp_path: Path) -> None:
    async with running(tmp_path, limits=Limits(max_body_bytes=2000)) as at, at.http() as http:
        path = "/s/tok/v1/chat/completions"
        assert "line 1 column 2" in (await http.post(path, content=b"{nope")).text
        broken = await http.post(path, json={"messages": [{"role": "user", "content": 5}]})
        assert broken.status_code == 400 and "messages[0].content" in broken.text
        assert (await http.post(path, content=b" " * 2001)).status_code == 413

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(5):
                yield b" " * 1000

        assert (await http.post(path, content=chunks())).status_code == 413
        assert (await http.post("/s/other/v1/chat/completions", json=chat_body())).status_code == 401


async def test_probes_are_answered_and_never_recorded(tmp_path: Path) -> None:
    async with running(tmp_path, SAY_DONE) as at, at.http() as http:
        assert (await http.get("/s/tok/v1/models")).json()["data"][0]["id"] == "corral"
        assert (await http.head("/s/tok")).status_code == 200
        assert (await http.head("/s/tok/api/hello")).status_code == 200
        assert (await http.post("/s/tok/api/show", json={})).status_code == 404
        upgrade = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
        assert (await http.get("/s/tok/v1/responses", headers=upgrade)).status_code == 426
        assert at.record.drafts == []
        by_key = await http.post("/v1/chat/completions", json=chat_body(), headers={"authorization": "Bearer tok"})
        assert by_key.status_code == 200


# ------------------------------------------------------------------ teachers


async def test_the_scripted_teacher_plays_its_commands_through_the_offered_tool(tmp_path: Path) -> None:
    async with running(tmp_path) as at, at.client("teach") as client:
        at.proxy.open(4, "teach", ScriptedTeacher(["ls", "cat a"]))
        items: list[object] = [{"role": "user", "content": "go"}]
        said = []
        for _ in range(3):
            reply = await client.responses.create(model="m", input=items, tools=[EXEC])
            items += [item.model_dump(exclude_none=True) for item in reply.output]
            item = reply.output[0]
            if item.type == "function_call":
                said.append((item.name, json.loads(item.arguments)))
                items.append({"type": "function_call_output", "call_id": item.call_id, "output": "x"})
        assert said == [("exec_command", {"cmd": "ls"}), ("exec_command", {"cmd": "cat a"})]
        assert reply.output_text == "done" and [d.sample for d in at.record.drafts] == [None] * 3


async def test_an_upstream_teacher_forwards_to_a_compatible_endpoint(tmp_path: Path) -> None:
    async with running(tmp_path, SAY_LS) as at, at.client("teach") as client:
        async with UpstreamTeacher(Upstream("chat", f"{at.url}/s/tok/v1", "big", key="k")) as teacher:
            at.proxy.open(4, "teach", teacher)
            reply = await client.chat.completions.create(**chat_body())
        assert reply.choices[0].message.tool_calls[0].function.arguments == '{"command":"ls -a"}'
        assert [d.sample is None for d in at.record.drafts] == [False, True]


async def test_a_teacher_that_is_not_there_fails_the_call_by_name(tmp_path: Path) -> None:
    async with running(tmp_path) as at, at.client("teach") as client:
        async with UpstreamTeacher(Upstream("messages", "http://127.0.0.1:9", "big")) as teacher:
            at.proxy.open(4, "teach", teacher)
            with pytest.raises(openai.InternalServerError):
                await client.chat.completions.create(**chat_body())
            settled = await at.proxy.close("teach")
        assert settled.error is not None and settled.error.label == "capture:teacher"


# ------------------------------------------------------------------ retries told by hints, restarts, lineage


async def test_a_client_that_says_it_retries_gets_the_recorded_answer_though_its_settings_differ(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, SAY_DONE, "again<|im_end|>") as at, at.http() as http:
        path = "/s/tok/v1/chat/completions"
        first = await http.post(path, json=chat_body(temperature=0.1), headers={"idempotency-key": "k1"})
        for headers in ({"x-stainless-retry-count": "1"}, {"idempotency-key": "k1"}):
            again = await http.post(path, json=chat_body(temperature=0.2), headers=headers)
            assert again.json() == first.json()
        other = await http.post(path, json=chat_body(temperature=0.2), headers={"idempotency-key": "k2"})
        assert other.json()["choices"][0]["message"]["content"] == "again" and len(at.engine.fed) == 2


async def test_a_later_proxy_over_the_same_record_repeats_and_continues(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "record.db")
    store.create_run("r", "r", {}, 0, "test")
    (rollout,) = store.plan([RolloutPlan("r", Purpose.SINGLE, 0, "h", "t", 0)])
    store.begin(rollout.id, 0)
    engine = ScriptedEngine([SAY_LS, SAY_DONE])
    answerer = EngineAnswerer(engine, renderer(), Sampling(max_tokens=256, context_length=4000))
    replies = []
    for life in range(2):
        async with Proxy(store, tmp_path / "p", None, answerer, port=0) as proxy:
            proxy.open(rollout.id, "tok")
            url = f"http://127.0.0.1:{proxy.port}/s/tok/v1"
            async with openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=0) as client:
                reply = await client.chat.completions.create(**chat_body(USER))
                replies.append(reply.model_dump())
                if life:
                    said = reply.choices[0].message.model_dump(exclude_none=True)
                    result = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "a"}
                    await client.chat.completions.create(**chat_body(USER, said, result))
    first, second = store.calls(rollout.id)
    store.close()
    assert replies[0] == replies[1] and len(engine.fed) == 2
    assert first.sample is not None and second.sample is not None
    path = first.sample.prompt_ids.tolist() + first.sample.sampled_ids.tolist()
    assert second.sample.prompt_ids.tolist()[: len(path)] == path and second.sequence == 1


async def test_side_calls_and_strays_are_recorded_as_such(tmp_path: Path) -> None:
    async with running(tmp_path, *[SAY_DONE] * 4) as at, at.http() as http:
        path = "/s/tok/v1/chat/completions"
        title = {"model": "m", "messages": [{"role": "user", "content": "Generate a short title for this."}]}
        await http.post(path, json=title, headers={"user-agent": "pi/1"})
        await http.post(path, json=chat_body(), headers={"user-agent": "pi/1"})
        other = chat_body({"role": "user", "content": "something else entirely"})
        await http.post(path, json=other, headers={"user-agent": "curl/8.1"})
        helper = chat_body({"role": "user", "content": "help me with this"})
        await http.post(path, json=helper, headers={"user-agent": "pi/1", "x-claude-code-agent-id": "a7"})
        kinds = [from_text(d.lineage).kind for d in at.record.drafts]
        assert kinds == [CallKind.AUXILIARY, CallKind.MAIN, CallKind.STRAY, CallKind.SUB_AGENT]
        assert at.record.drafts[1].lineage == "" and from_text(at.record.drafts[3].lineage).agent == "a7"


async def test_template_mode_renders_every_prompt_anew(tmp_path: Path) -> None:
    async with running(tmp_path, SAY_LS, SAY_DONE, rendering="template") as at, at.client() as client:  # type: ignore[arg-type]
        await two_turns(client)
        first, second = at.engine.fed
        n = len(first)
        assert second[:n].tolist() == first.tolist()
        assert second[n:][: len(spelled(SAY_LS))].tolist() != spelled(SAY_LS).tolist()
        assert renderer().decode(second[n:]).startswith('<tool_call>\n{"name": "bash", "arguments": {"command": "ls')


async def test_a_long_conversation_holds_its_ids_once(tmp_path: Path) -> None:
    async with running(tmp_path, *[SAY_LS] * 5) as at, at.http() as http:
        messages: list[dict[str, object]] = [USER]
        for turn in range(5):
            reply = await http.post("/s/tok/v1/chat/completions", json=chat_body(*messages))
            said = reply.json()["choices"][0]["message"]
            result = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": f"result {turn}"}
            messages += [said, result]
        calls = [call.recorded for call in at.proxy._sessions["tok"].calls.values()]
        assert len({id(recorded.line) for recorded in calls}) == 1
        for recorded, fed in zip(calls, at.engine.fed, strict=True):
            said = spelled(SAY_LS)
            assert recorded.line.ids[: recorded.num_ids].tolist() == [*fed, *said]
            assert recorded.num_prompt == len(fed)
