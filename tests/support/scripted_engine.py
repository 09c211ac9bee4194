"""A proxy on a real socket, before an engine that says its lines in order and a record in lists."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import httpx
import numpy as np

from appliance.capture.proxy import Limits, Proxy
from appliance.engine.policy_responder import EngineAnswerer, Sampling
from appliance.errors import EngineError, StoreError
from appliance.record.calls import CallDraft
from appliance.types import Call, Sample, StopReason, TokenIds
from tests.support.tiny_tokenizer import renderer

END = "<|im_end|>"
CALL_LS = f'<tool_call>\n{{"name": "bash",  "arguments": {{"command":"ls -a"}} }}\n</tool_call>{END}'
THINK_AND_CALL = f"<think>\nhm\n</think>\n\nSo:\n{CALL_LS}"
DONE = f"done{END}"


def spelled(text: str) -> TokenIds:
    """One id a character, as no tokenizer would have chosen them: encoding the text anew gives other ids."""
    r = renderer()
    parts = [r.encode(c) for c in text.removesuffix(END)]
    end = [r.encode(END)] if text.endswith(END) else []
    return np.concatenate([*parts, *end]).astype(np.int32)


@dataclass
class ScriptedEngine:
    """Says its lines, then `DONE` for ever. `held` keeps it from answering until set; `fault` is raised instead."""

    lines: list[str]
    fed: list[TokenIds] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    fault: EngineError | None = None
    held: anyio.Event | None = None
    reached: anyio.Event = field(default_factory=anyio.Event)

    async def sample(
        self,
        prompt_ids: TokenIds,
        max_tokens: int,
        temperature: float = 1.0,
        stop_ids: tuple[int, ...] = (),
        seed: int | None = None,
        policy_version: int | None = None,
    ) -> Sample:
        self.fed.append(prompt_ids)
        self.asked.append(max_tokens)
        self.reached.set()
        if self.held is not None:
            await self.held.wait()
        if self.fault is not None:
            raise self.fault
        ids = spelled(self.lines.pop(0) if self.lines else DONE)[:max_tokens]
        stop = StopReason.STOP if ids[-1] in stop_ids else StopReason.LENGTH
        return Sample(prompt_ids, ids, np.full(len(ids), -0.5, np.float32), stop, policy_version or 7)


@dataclass
class ListRecord:
    """What the proxy needs of the store, over lists; can refuse as a full disk does."""

    drafts: list[CallDraft] = field(default_factory=list)
    delivered: dict[int, bool] = field(default_factory=dict)
    fault: StoreError | None = None
    when_marked: anyio.Event = field(default_factory=anyio.Event)

    def add_call(self, rollout_id: int, draft: CallDraft) -> int:
        if self.fault is not None:
            raise self.fault
        self.drafts.append(draft)
        self.delivered[len(self.drafts)] = draft.delivered
        return len(self.drafts)

    def calls(self, rollout_id: int) -> list[Call]:
        return []

    def conversations(self, rollout_id: int) -> list[bytes]:
        return []

    def mark_delivered(self, call_id: int, delivered: bool) -> None:
        self.delivered[call_id] = delivered
        self.when_marked.set()


@dataclass
class Place:
    """A running proxy with one open rollout, whose token is `tok`."""

    proxy: Proxy
    record: ListRecord
    engine: ScriptedEngine
    url: str

    @property
    def base(self) -> str:
        return f"{self.url}/s/tok"

    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.base, trust_env=False, timeout=60, verify=False)

    def said(self, call: int) -> str:
        """The prompt of call number `call`, as text."""
        return renderer().decode(self.engine.fed[call])


@asynccontextmanager
async def running(folder: Path, *lines: str, limits: Limits | None = None, **sampling: int) -> AsyncIterator[Place]:
    """A proxy over a scripted engine, open for rollout 3 under the token `tok`."""
    engine, record = ScriptedEngine(list(lines)), ListRecord()
    answerer = EngineAnswerer(engine, renderer(), Sampling(**{"max_tokens": 256, "context_length": 4000, **sampling}))
    async with Proxy(record, folder, limits, answerer, port=0) as proxy:
        proxy.open(3, "tok")
        yield Place(proxy, record, engine, f"http://127.0.0.1:{proxy.port}")
