"""The fork doctor: each cause from a record made through the real proxy, by bodies as harnesses send them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import anyio
import httpx
import numpy as np
import pytest

from appliance.capture.proxy import Proxy
from appliance.config.sections import BranchesSection
from appliance.engine.policy_responder import EngineAnswerer, Sampling
from appliance.record.conversation import said
from appliance.record.store import Store
from appliance.trees.forks import Cause, Fork, forks
from appliance.trees.recovery import Recovered, recovered
from appliance.types import Branch, Purpose, RolloutPlan, Said, Sample, StopReason, TokenIds
from tests.support.scripted_engine import spelled
from tests.support.tiny_tokenizer import QWEN_STYLE, renderer

pytestmark = pytest.mark.anyio
END = "<|im_end|>"
CALL_LS = f'<tool_call>\n{{"name": "bash", "arguments": {{"command": "ls -a"}}}}\n</tool_call>{END}'
BASH = {
    "type": "function",
    "function": {"name": "bash", "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}},
}
SYSTEM = {"role": "system", "content": "You are a coding agent in a sandbox."}
USER = {"role": "user", "content": "list the files of this folder, please"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class LinesEngine:
    """Says its lines in order, as the tokenizer encodes them or one id a character; waits while held."""

    lines: list[str]
    encode: Callable[[str], TokenIds]
    held: anyio.Event | None = None

    async def sample(
        self, prompt_ids: TokenIds, max_tokens: int, temperature: float = 1.0, stop_ids: tuple[int, ...] = (),
        seed: int | None = None, policy_version: int | None = None,
    ) -> Sample:  # fmt: skip
        if self.held is not None:
            await self.held.wait()
        ids = self.encode(self.lines.pop(0))
        return Sample(prompt_ids, ids, np.full(len(ids), -0.5, np.float32), StopReason.STOP, 0)


@dataclass
class Place:
    """A rollout being recorded, and what the doctor says of it."""

    client: httpx.AsyncClient
    store: Store
    rollout: int
    decode: Callable[[TokenIds], str]
    engine: LinesEngine
    proxy: Proxy

    async def begin_step(self, number: int) -> None:
        """The task's next step, as `rollout` begins it."""
        await self.proxy.close(f"tok{self.rollout}")
        self.proxy.open(self.rollout, f"tok{self.rollout}", step=number)

    async def ask(
        self, *messages: dict[str, Any], tools: Any = (BASH,), client: str = "agent/1", **more: Any
    ) -> dict[str, Any]:
        """One request; the assistant message that came back."""
        body = {"model": "m", "messages": list(messages)} | ({"tools": list(tools)} if tools else {}) | more
        reply = await self.client.post(
            f"/s/tok{self.rollout}/v1/chat/completions", json=body, headers={"user-agent": client}
        )
        assert reply.status_code == 200, reply.text
        return dict(reply.json()["choices"][0]["message"])

    def found(self) -> tuple[list[Said], Recovered]:
        calls = said(self.store.calls(self.rollout), self.store.conversations(self.rollout))
        return calls, recovered(calls, BranchesSection())

    def forks(self) -> list[Fork]:
        return forks(*self.found(), self.decode)

    def branches(self) -> list[Branch]:
        return [role.branch for role in self.found()[1].roles]


@asynccontextmanager
async def recording(
    folder: Path, *lines: str, rendering: Literal["graft", "template"] = "graft", template: str = "",
    encode: Callable[[str], TokenIds] | None = None, number: int = 0,
) -> AsyncIterator[Place]:  # fmt: skip
    shown = renderer(template)
    store = Store.open(folder / "record.db")
    if not store.runs():
        store.create_run("r", "test", {}, 0, "test")
    (rollout,) = store.plan([RolloutPlan("r", Purpose.TRAIN, 1, "scripted", "t", number)])
    store.begin(rollout.id, 0)
    engine = LinesEngine(list(lines), encode or shown.encode)
    sampling = Sampling(max_tokens=256, context_length=8000, rendering=rendering)
    async with Proxy(store, folder, None, EngineAnswerer(engine, shown, sampling), port=0) as proxy:
        proxy.open(rollout.id, f"tok{rollout.id}")
        url = f"http://127.0.0.1:{proxy.port}"
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30, verify=False) as client:
            yield Place(client, store, rollout.id, shown.decode, engine, proxy)
    store.close()


def result(answer: dict[str, Any], text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": answer["tool_calls"][0]["id"], "content": text}


def the_only(found: list[Fork]) -> Fork:
    assert len(found) == 1, found
    return found[0]


# ------------------------------------------------------------------ causes in `template`, gone in `graft`


def without_reasoning(answer: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in answer.items() if k != "reasoning_content"}


def reserialised(answer: dict[str, Any]) -> dict[str, Any]:
    echo = json.loads(json.dumps(answer))
    function = echo["tool_calls"][0]["function"]
    function["arguments"] = json.dumps(json.loads(function["arguments"]), separators=(",", ":"))
    return dict(echo)


@pytest.mark.parametrize(
    ("line", "echo", "encode", "cause"),
    [
        (f"<think>\nhm, what is here\n</think>\n\n{CALL_LS}", without_reasoning, None, Cause.THINKING),
        (CALL_LS.replace('"ls -a"', '"ls",  "n": 1'), reserialised, None, Cause.ARGUMENTS),
        (CALL_LS, lambda answer: answer, spelled, Cause.DRIFT),
    ],
    ids=["thinking", "arguments", "drift"],
)
async def test_what_rendering_anew_breaks_is_named_and_graft_removes_it(
    tmp_path: Path, line: str, echo: Any, encode: Any, cause: Cause
) -> None:
    for number, rendering in enumerate(("template", "graft")):
        async with recording(
            tmp_path, line, f"done{END}", rendering=rendering, encode=encode, number=number  # type: ignore[arg-type]
        ) as at:  # fmt: skip
            first = await at.ask(SYSTEM, USER)
            await at.ask(SYSTEM, USER, echo(first), result(first, "a b"))
            assert at.branches() == [Branch.CONTINUATION] * 2
            if rendering == "graft":
                assert at.forks() == []
            else:
                fork = the_only(at.forks())
                assert fork.cause is cause and "graft" in fork.remedy
                assert fork.expected != fork.found and fork.tokens > 0


@pytest.mark.slow
async def test_a_template_that_strips_thinking_makes_eight_rollouts_eight_trees_without_forks_in_graft(
    tmp_path: Path,
) -> None:
    """slime#2288: eight rollouts of eight turns became 64 samples, as the template drops earlier thinking."""
    number = 0
    leaves: dict[str, int] = {"graft": 0, "template": 0}
    causes = set()
    for rendering in leaves:
        for _ in range(8):
            lines = [f"<think>\nthought number {turn}\n</think>\n\nanswer {turn}{END}" for turn in range(8)]
            async with recording(
                tmp_path, *lines, rendering=rendering, template=QWEN_STYLE, number=number  # type: ignore[arg-type]
            ) as at:  # fmt: skip
                number += 1
                messages = [SYSTEM]
                for turn in range(8):
                    messages += [{"role": "user", "content": f"question {turn}"}]
                    messages += [await at.ask(*messages)]
                _, found = at.found()
                leaves[rendering] += len(found.tree.ends)
                causes |= {fork.cause for fork in at.forks()}
                if rendering == "graft":
                    assert len(found.rows) == 1 and at.forks() == []
    assert leaves == {"graft": 8, "template": 64}
    assert causes == {Cause.THINKING}


# ------------------------------------------------------------------ what the harness itself does


async def test_a_clock_in_the_system_prompt_is_a_nonce(tmp_path: Path) -> None:
    def at_time(clock: str) -> dict[str, str]:
        return {"role": "system", "content": f"You are a coding agent. It is Monday, {clock}. Work in /work."}

    async with recording(tmp_path, CALL_LS, f"done{END}") as at:
        first = await at.ask(at_time("10:31:07"), USER)
        await at.ask(at_time("10:31:09"), USER, first, result(first, "a b"))
        fork = the_only(at.forks())
        assert fork.cause is Cause.NONCE and "07" in fork.detail and "09" in fork.detail
        assert "7" in fork.expected and fork.expected[:1] == "7" and fork.found[:1] == "9"


async def test_a_tool_that_appears_later_is_a_changed_tool_schema(tmp_path: Path) -> None:
    more = {"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": {}}}}
    async with recording(tmp_path, CALL_LS, f"done{END}") as at:
        first = await at.ask(SYSTEM, USER)
        await at.ask(SYSTEM, USER, first, result(first, "a b"), tools=(BASH, more))
        fork = the_only(at.forks())
        assert (fork.cause, fork.detail) == (Cause.TOOLS, "added: search")


async def test_a_rewritten_user_turn_is_an_edited_history(tmp_path: Path) -> None:
    queued = USER | {"content": f"[queued from an earlier turn] {USER['content']}"}
    async with recording(tmp_path, CALL_LS, f"done{END}") as at:
        first = await at.ask(SYSTEM, USER)
        await at.ask(SYSTEM, queued, first, result(first, "a b"))
        fork = the_only(at.forks())
        assert fork.cause is Cause.HISTORY and fork.detail.startswith("message 1 (user)")


async def test_an_ephemeral_message_that_is_taken_back_is_an_edited_history(tmp_path: Path) -> None:
    ephemeral = {"role": "user", "content": "<<<internal context of this turn only>>>"}
    async with recording(tmp_path, CALL_LS, f"done{END}") as at:
        first = await at.ask(SYSTEM, USER, ephemeral)
        await at.ask(SYSTEM, USER, first, result(first, "a b"))
        assert the_only(at.forks()).cause is Cause.HISTORY
        assert at.branches() == [Branch.CONTINUATION] * 2


async def test_an_answer_that_the_harness_drops_is_an_edited_history_and_a_dead_leaf(tmp_path: Path) -> None:
    async with recording(tmp_path, f"no tool call{END}", f"done{END}") as at:
        await at.ask(SYSTEM, USER)
        await at.ask(SYSTEM, USER, {"role": "user", "content": "answer with exactly one tool call"})
        fork = the_only(at.forks())
        assert (fork.cause, fork.detail) == (Cause.HISTORY, "the answer of call 0 is gone")
        assert list(at.found()[1].left_out) == [0]


async def test_a_compaction_says_what_it_kept(tmp_path: Path) -> None:
    summary = "The user wants a listing; the folder holds a and b."
    ask = {"role": "user", "content": "CONTEXT CHECKPOINT COMPACTION: summarise the work so far for another agent"}
    async with recording(tmp_path, CALL_LS, f"{summary}{END}", f"done{END}") as at:
        first = await at.ask(SYSTEM, USER)
        history = (SYSTEM, USER, first, result(first, "a b"))
        await at.ask(*history, ask)
        await at.ask(SYSTEM, {"role": "user", "content": f"Earlier work in short: {summary} Go on."})
        fork = the_only(at.forks())
        assert fork.cause is Cause.COMPACTION and fork.detail.startswith("1 messages")
        roles = at.found()[1].roles
        assert [r.branch for r in roles] == [Branch.CONTINUATION, Branch.COMPACTION, Branch.COMPACTION]
        assert (roles[1].reentered, roles[2].parent, roles[2].kept) == (2, 1, 1)


async def test_a_second_compaction_is_one_too(tmp_path: Path) -> None:
    one, two = "The folder holds a and b, nothing else.", "The folder holds a, b and a listing of them."
    ask = {"role": "user", "content": "CONTEXT CHECKPOINT COMPACTION: summarise the work so far for another agent"}
    async with recording(tmp_path, CALL_LS, f"{one}{END}", CALL_LS, f"{two}{END}", f"done{END}") as at:
        first = await at.ask(SYSTEM, USER)
        await at.ask(SYSTEM, USER, first, result(first, "a b"), ask, tools=())
        begun = (SYSTEM, {"role": "user", "content": f"Earlier work in short: {one} Go on."})
        second = await at.ask(*begun)
        await at.ask(*begun, second, result(second, "a b"), ask, tools=())
        assert [f.detail for f in at.forks()][-1] == "wrote a summary that no call starts from"
        await at.ask(SYSTEM, {"role": "user", "content": f"Earlier work in short: {two} Go on."})
        assert at.branches() == [Branch.CONTINUATION, *[Branch.COMPACTION] * 4]
        assert [r.reentered for r in at.found()[1].roles] == [None, 2, None, 4, None]
        assert [f.cause for f in at.forks()] == [Cause.COMPACTION] * 4


async def test_a_sub_agent_knows_its_caller_and_where_its_answer_came_back(tmp_path: Path) -> None:
    task = {"type": "function", "function": {"name": "task", "parameters": {"type": "object", "properties": {}}}}
    prompt = "look through all the files and count the words"
    call = json.dumps({"name": "task", "arguments": {"prompt": prompt}})
    lines = (f"<tool_call>\n{call}\n</tool_call>{END}", f"there are fourteen words{END}", f"done{END}")
    async with recording(tmp_path, *lines) as at:
        first = await at.ask(SYSTEM, USER, tools=(BASH, task))
        told = await at.ask({"role": "user", "content": prompt}, tools=(BASH,))
        await at.ask(SYSTEM, USER, first, result(first, told["content"]), tools=(BASH, task))
        assert the_only(at.forks()).cause is Cause.SUB_AGENT
        role = at.found()[1].roles[1]
        assert (role.branch, role.parent, role.reentered) == (Branch.SUB_AGENT, 0, 2)
        assert at.branches()[2] is Branch.CONTINUATION


async def test_the_same_words_again_are_a_retry_and_its_first_leaf_is_dead(tmp_path: Path) -> None:
    async with recording(tmp_path, CALL_LS, CALL_LS, f"done{END}") as at:
        await at.ask(SYSTEM, USER)
        again = await at.ask(SYSTEM, USER, max_tokens=100)
        await at.ask(SYSTEM, USER, again, result(again, "a b"), max_tokens=100)
        fork = the_only(at.forks())
        assert fork.cause is Cause.RETRY and fork.tokens == 0
        calls, found = at.found()
        (reason,) = found.left_out.values()
        assert len(calls) == 3 and len(found.rows) == 1 and reason.startswith("a dead leaf: the harness")


async def test_two_requests_at_once_are_parallel_and_both_train(tmp_path: Path) -> None:
    async with recording(tmp_path, f"one way{END}", f"another way{END}") as at:
        at.engine.held = anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: at.ask(SYSTEM, USER))
            group.start_soon(lambda: at.ask(SYSTEM, USER, max_tokens=100))
            while len(at.engine.lines) == 2 and at.engine.held is not None and not at.engine.held.is_set():
                await anyio.sleep(0.05)
                at.engine.held.set()
        assert the_only(at.forks()).cause is Cause.PARALLEL
        assert sorted(at.branches()) == [Branch.CONTINUATION, Branch.PARALLEL]
        assert at.found()[1].left_out == {} and len(at.found()[1].rows) == 2


async def test_a_title_call_is_auxiliary_and_left_out(tmp_path: Path) -> None:
    title = {"role": "system", "content": "You are a title generator. Write a short title of the conversation."}
    async with recording(tmp_path, f"A listing{END}", CALL_LS, f"done{END}") as at:
        first = await at.ask(SYSTEM, USER)
        del first
        await at.ask(title, USER, tools=())
        fork = the_only(at.forks())
        assert fork.cause is Cause.AUXILIARY
        assert at.found()[1].left_out == {1: "an auxiliary call (branches.auxiliary = leave_out)"}


async def test_a_title_that_is_asked_for_first_does_not_make_the_agent_a_side_call(tmp_path: Path) -> None:
    title = {"role": "system", "content": "You are a title generator. Write a short title of the conversation."}
    async with recording(tmp_path, f"A listing{END}", CALL_LS, f"done{END}") as at:
        await at.ask(title, USER, tools=())
        first = await at.ask(SYSTEM, USER)
        await at.ask(SYSTEM, USER, first, result(first, "a b"))
        assert at.branches() == [Branch.AUXILIARY, Branch.CONTINUATION, Branch.CONTINUATION]
        assert at.found()[1].left_out == {0: "an auxiliary call (branches.auxiliary = leave_out)"}
        assert [f.cause for f in at.forks()] == [Cause.AUXILIARY]


async def test_a_program_that_inherits_the_endpoint_is_a_stray_root(tmp_path: Path) -> None:
    async with recording(tmp_path, CALL_LS, f"hello{END}", f"done{END}") as at:
        first = await at.ask(SYSTEM, USER)
        await at.ask({"role": "user", "content": "hello, are you a model?"}, client="python-requests/2")
        await at.ask(SYSTEM, USER, first, result(first, "a b"))
        assert the_only(at.forks()).cause is Cause.STRAY
        (reason,) = at.found()[1].left_out.items()
        assert reason[0] == 1 and reason[1].startswith("a stray root")


async def test_each_step_of_a_task_is_a_conversation_of_its_own(tmp_path: Path) -> None:
    """Whatever client or session it comes from, and also where it is told in the very words of the step before."""
    lines = (CALL_LS, f"done{END}", CALL_LS.replace("ls -a", "ls"), f"well done{END}", f"third{END}")
    async with recording(tmp_path, *lines) as at:
        first = await at.ask(SYSTEM, USER)
        await at.ask(SYSTEM, USER, first, result(first, "a b"))
        await at.begin_step(1)
        second = await at.ask(SYSTEM, USER, client="other/2")
        assert second["tool_calls"][0]["function"]["arguments"] == '{"command": "ls"}', "not what was recorded before"
        await at.ask(SYSTEM, USER, second, result(second, "a b"), client="other/2")
        await at.begin_step(2)
        await at.ask(SYSTEM, {"role": "user", "content": "and now count them"}, client="third/3")
        calls, found = at.found()
        assert [(c.call.sequence, c.call.step) for c in calls] == [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2)]
        assert at.branches() == [Branch.CONTINUATION] * 5 and found.left_out == {}
        assert [(f.cause, f.call, f.detail) for f in at.forks()] == [
            (Cause.STEP, 2, "step 2 of the task begins"), (Cause.STEP, 4, "step 3 of the task begins"),
        ]  # fmt: skip


async def test_a_step_that_goes_as_an_earlier_one_did_edits_no_history(tmp_path: Path) -> None:
    async with recording(tmp_path, CALL_LS, f"done{END}", CALL_LS, f"done{END}") as at:
        for step in (0, 1):
            if step:
                await at.begin_step(step)
            first = await at.ask(SYSTEM, USER)
            await at.ask(SYSTEM, USER, first, result(first, "a b"))
        assert [(f.cause, f.call, f.reference) for f in at.forks()] == [(Cause.STEP, 2, 1), (Cause.STEP, 3, 1)]


async def test_what_earlier_steps_did_counts_for_the_rollouts_limits(tmp_path: Path) -> None:
    async with recording(tmp_path, CALL_LS, f"done{END}", f"more{END}") as at:
        await at.ask(SYSTEM, USER)
        sampled = at.store.calls(at.rollout)[0].sample
        assert sampled is not None
        await at.begin_step(1)
        (session,) = at.proxy._sessions.values()
        assert (session.num_taken, session.num_sampled_tokens) == (1, len(sampled.sampled_ids))
        assert session.settled.num_calls == 0, "a step whose harness never calls the model is told"


async def test_a_difference_that_nothing_explains_is_shown_whole(tmp_path: Path) -> None:
    """A template that is no function of its messages: made by changing the words that the record keeps."""
    async with recording(tmp_path, CALL_LS, f"done{END}", rendering="template", encode=spelled) as at:
        first = await at.ask(SYSTEM, USER)
        await at.ask(SYSTEM, USER | {"content": "something else altogether"}, first, result(first, "a b"))
        calls, found = at.found()
        same = [Said(calls[1].call, (*calls[0].messages, *calls[1].messages[2:]), calls[1].tools, calls[1].answer)]
        fork = the_only(forks([calls[0], *same], found, at.decode))
        assert fork.cause is Cause.UNKNOWN and "+something else altogether" in fork.detail
