"""The sampler: a vLLM server started, probed, watched and stopped, called with token ids.

Invariants: a sample's ids and logprobs are the engine's own, at the sampling temperature (I1); the
prompt ids it carries are the ids the engine says it was fed (I2); the policy version is stamped at
dispatch and names the adapter that answered (I6). An answer that lacks any of it is an
`EngineError`, never repaired. A dead or hung server fails every call at once with its last log lines.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import msgspec
import numpy as np

from appliance.engine.answers import Adapter, Asked, EngineAnswer, Swap, read_answer, read_sample, read_scores, read_top
from appliance.engine.child import NUM_LIVE_ADAPTERS, Child, EngineSettings
from appliance.engine.http import BrokenLine, HttpLine, Reply
from appliance.engine.idtext import IdText
from appliance.engine.probe import (
    TEMPERATURE,
    check_temperature,
    model_config,
    probe_prompt,
    weights_sha256,
    write_probe_adapter,
)
from appliance.engine.pulse import LOOK_S, Vitals
from appliance.errors import EngineError, HostError
from appliance.types import Logprobs, Sample, TokenIds

__all__ = ["Adapter", "Engine", "EngineSettings", "Swap", "weights_sha256"]

POLL_S = 0.2
START_TRIES = 3
KILLED = 137
DYING_S = 8.0
"""vLLM's API server notices within five seconds that its EngineCore died, and then ends."""
BASE = "base"
BASE_VERSION = 0
"""The version that the bare model answers for, unless an adapter is loaded under this number."""
BARE = -1
"""Asked for as a version: the model without any adapter, whatever is loaded. No policy of a run; a judge is."""


class Engine:
    """One vLLM server: entering it starts and probes it; `on_progress` gets a line now and then meanwhile."""

    def __init__(self, settings: EngineSettings, on_progress: Callable[[str], None] | None = None) -> None:
        self.settings = settings
        self._say = on_progress or (lambda _line: None)
        self._vocab_size: int = model_config(settings.model)["vocab_size"]
        self._child: Child | None = None
        self._line: HttpLine | None = None
        self._text = IdText()
        self._failure: EngineError | None = None
        self._scopes: dict[anyio.CancelScope, float] = {}
        self._adapters: dict[int, Adapter] = {}
        self._under_way: Counter[int] = Counter()
        self._current = BASE_VERSION
        self._watchers: anyio.abc.TaskGroup | None = None
        self._watch_scope = anyio.CancelScope()

    # ------------------------------------------------------------------ life

    async def __aenter__(self) -> Engine:
        self._watchers = anyio.create_task_group()
        await self._watchers.__aenter__()
        try:
            for tries_left in reversed(range(START_TRIES)):
                try:
                    await self._start()
                    break
                except HostError:  # what says why it ends would say so again; what is killed may come up the next time
                    if not tries_left or self._child is None or self._child.exit_code != KILLED:
                        raise
                    await self._stop()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    async def _end(self) -> None:
        assert self._watchers is not None
        await self._stop()
        self._watchers.cancel_scope.cancel()
        # Not told of the body's exception, which would come out wrapped in a group.
        await self._watchers.__aexit__(None, None, None)

    @property
    def current_version(self) -> int:
        """The policy version that new calls are stamped with."""
        return self._current

    @property
    def failure(self) -> EngineError | None:
        """Why the engine cannot answer, None while it can."""
        return self._failure

    async def restart(self) -> None:
        """Stop what is left of the server, start a new one and load the live adapters again."""
        adapters, current = dict(self._adapters), self._current
        await self._stop()
        try:
            await self._start()
            for version in sorted(adapters):
                await self.load_adapter(version, adapters[version].folder)
        except (EngineError, HostError) as error:  # it may be tried once more, with all it had
            self._adapters = adapters
            self._fail(EngineError("dead", error.message))
            raise
        finally:
            self._current = current

    async def _start(self) -> None:
        """A ready and probed server, or `HostError` with its last log lines."""
        assert self._watchers is not None
        started_at = time.monotonic()
        self._child = child = await Child.start(self.settings)
        self._line = HttpLine("http://engine", uds=child.socket)
        self._failure, self._adapters, self._current = None, {}, BASE_VERSION
        with anyio.move_on_after(self.settings.startup_deadline_s) as scope:
            await self._ready(child, started_at)
        if scope.cancelled_caught:
            raise self._no_start(f"not ready after {self.settings.startup_deadline_s:.0f} s", child)
        self._watch_scope = anyio.CancelScope()
        self._watchers.start_soon(self._watch, child, self._watch_scope)
        try:
            await self.probe()
        except EngineError as e:
            raise HostError(f"the engine came up but failed its probe: {e}", f"see {self.settings.log}") from e
        self._say(f"engine ready after {time.monotonic() - started_at:.1f} s")

    async def _ready(self, child: Child, started_at: float) -> None:
        """Return once the server answers; raise when it ends first."""
        told_at = started_at
        while not (await self.ask("/health")).is_success:
            if child.exit_code is not None:
                raise self._no_start(child.ending(child.exit_code), child)
            if time.monotonic() - told_at >= 5.0:
                told_at = time.monotonic()
                self._say(f"engine starting, {told_at - started_at:.0f} s")
            await anyio.sleep(POLL_S)

    def _no_start(self, what: str, child: Child) -> HostError:
        return HostError(f"the engine did not come up: {what}\n{child.tail()}", f"see {self.settings.log}")

    async def _stop(self) -> None:
        self._watch_scope.cancel()
        self._fail(EngineError("stopped", "the engine was stopped"))
        with anyio.CancelScope(shield=True):
            if self._child is not None:
                await self._child.stop()
            if self._line is not None:
                await self._line.close()

    # ------------------------------------------------------------------ watch

    async def _watch(self, child: Child, scope: anyio.CancelScope) -> None:
        """Fail all calls when the server ends or stops answering health checks."""
        with scope:
            async with anyio.create_task_group() as group:
                vitals = Vitals(child.pid() or 0)
                group.start_soon(self._watch_health, child, vitals)
                group.start_soon(self._watch_pulse, child, vitals)
                code = await child.wait()
                self._fail(EngineError("dead", f"the engine {child.ending(code)}; its last lines:\n{child.tail()}"))
                group.cancel_scope.cancel()

    async def _watch_health(self, child: Child, vitals: Vitals) -> None:
        while True:
            await anyio.sleep(self.settings.health_every_s)
            with anyio.move_on_after(self.settings.health_deadline_s) as scope:
                vitals.asked()
                await self.ask("/health")
                vitals.answered()
            if scope.cancelled_caught:
                self._hung(child, f"no health answer in {self.settings.health_deadline_s:.0f} s")
                return

    async def _watch_pulse(self, child: Child, vitals: Vitals) -> None:
        still_looks = round(self.settings.still_s / LOOK_S)
        while not (wrong := vitals.look(min(self._scopes.values(), default=None), still_looks)):
            await anyio.sleep(LOOK_S)
        self._hung(child, wrong)

    def _hung(self, child: Child, what: str) -> None:
        """A hung server is as good as dead, and holds the cores: end it."""
        self._fail(EngineError("hung", f"the engine hangs: {what}; its last lines:\n{child.tail()}"))
        child.kill()

    def give_up(self, what: str) -> None:
        """End a server that can no longer be trusted, unless it has failed already."""
        if self._child is not None and self._failure is None:
            self._hung(self._child, what)

    def _fail(self, failure: EngineError) -> None:
        """The first failure stays; every call under way ends with it."""
        if self._failure is None:
            self._failure = failure
        for scope in self._scopes:
            scope.cancel()

    async def ask(self, path: str) -> Reply:
        """What the server answers to a GET; status 503 when it does not."""
        assert self._line is not None
        try:
            return await self._line.get(path)
        except BrokenLine:
            return Reply(503, b"")

    # ------------------------------------------------------------------ calls

    async def sample(
        self,
        prompt_ids: TokenIds | Sequence[int],
        max_tokens: int,
        temperature: float = 1.0,
        stop_ids: Sequence[int] = (),
        seed: int | None = None,
        policy_version: int | None = None,
    ) -> Sample:
        """Sample up to `max_tokens` ids after `prompt_ids`, less when the context is full.

        A sampled stop id is part of the sample. `policy_version` None means the current one; it is
        stamped here, and the call stays with that version whatever is loaded meanwhile (I6).
        Raises `EngineError`: dead, hung, stopped, bad_prompt, context_full, unknown_version, bad_answer.
        """
        if temperature < 0.01:
            raise ValueError(f"temperature {temperature}: below 0.01 the engine is greedy and has no logprobs of it")
        prompt = self._checked(prompt_ids)
        parameters: dict[str, Any] = {
            "max_tokens": min(max_tokens, self.settings.max_model_len - len(prompt)),
            "temperature": temperature,
            "logprobs": 0,
            "stop_token_ids": [int(i) for i in stop_ids],
        }
        if seed is not None:
            parameters["seed"] = seed
        async with self._stamped(policy_version) as (version, name):
            answer, asked = await self._generate(prompt, name, parameters)
        return read_sample(answer, asked, version)

    async def score(self, ids: TokenIds | Sequence[int], policy_version: int | None = None) -> Logprobs:
        """Logprobs of `ids[1:]`, each given all before it, at temperature 1: (len(ids) - 1,) float32."""
        prompt = self._checked(ids)
        async with self._stamped(policy_version) as (_, name):
            return await self._score(prompt, name)

    async def _score(self, prompt: TokenIds, name: str) -> Logprobs:
        return read_scores(*await self._generate(prompt, name, {"max_tokens": 1, "prompt_logprobs": 0}))

    def _checked(self, ids: TokenIds | Sequence[int]) -> TokenIds:
        """`ids` as an array. An id outside the vocabulary would end the whole server, so it stops here."""
        wide = np.asarray(ids)
        if not len(wide) or int(wide.min()) < 0 or int(wide.max()) >= self._vocab_size:
            raise EngineError("bad_prompt", f"prompt ids must be 0 to {self._vocab_size - 1} and at least one")
        prompt = wide.astype(np.int32, copy=False)
        if len(prompt) >= self.settings.max_model_len:
            raise EngineError(
                "context_full", f"{len(prompt)} prompt tokens fill the context of {self.settings.max_model_len}"
            )
        return prompt

    @contextlib.asynccontextmanager
    async def _stamped(self, policy_version: int | None) -> AsyncIterator[tuple[int, str]]:
        """The version of one call and its name in the server; the adapter stays loaded meanwhile."""
        version = self._current if policy_version is None else policy_version
        if version in self._adapters:
            name = self._adapters[version].name
        elif version in (BASE_VERSION, BARE):
            name = BASE
        else:
            raise EngineError("unknown_version", f"policy version {version} is not loaded")
        self._under_way[version] += 1
        try:
            yield version, name
        finally:
            self._under_way[version] -= 1

    async def _generate(self, prompt: TokenIds, name: str, parameters: dict[str, Any]) -> tuple[EngineAnswer, Asked]:
        # No end-of-text id of the engine's own choosing, and no text: stop ids are the caller's.
        parameters = {"top_p": 1.0, "top_k": 0, "ignore_eos": True, "detokenize": False, **parameters}
        asked = Asked(prompt, self._text.written(prompt), name)
        body = {"model": name, "token_ids": msgspec.Raw(asked.written), "return_token_ids": True}
        reply = await self.post("/inference/v1/generate", body | {"sampling_params": parameters})
        return read_answer(reply.body), asked

    async def post(self, path: str, body: dict[str, Any]) -> Reply:
        """One request with a deadline; every way it can fail is an `EngineError`."""
        if self._failure is not None:
            raise self._failed()
        assert self._line is not None and self._child is not None
        reply: Reply | None = None
        with anyio.move_on_after(self.settings.call_deadline_s) as scope:
            self._scopes[scope] = anyio.current_time()
            try:
                reply = await self._line.post(path, msgspec.json.encode(body))
            except BrokenLine:
                # The connection broke: the watcher soon knows why, and then cancels this scope.
                await self._wait_for_failure()
            finally:
                del self._scopes[scope]
        if self._failure is not None and (reply is None or reply.is_server_error):
            raise self._failed()
        if reply is None and scope.cancelled_caught:
            self._hung(self._child, f"a call was not answered in {self.settings.call_deadline_s:.0f} s")
            raise self._failed()
        if reply is None:
            raise EngineError("bad_answer", "the engine closed the connection without an answer")
        if not reply.is_success:
            await self._refused(reply)
        return reply

    async def _refused(self, reply: Reply) -> None:
        """Raise for an error status; a server error mostly means that the engine is just ending."""
        if reply.is_server_error:
            await self._wait_for_failure(DYING_S)
            if self._failure is not None:
                raise self._failed()
        raise EngineError("refused", f"the engine answered {reply.status}: {reply.body[:500].decode(errors='replace')}")

    async def _wait_for_failure(self, seconds: float = 3.0) -> None:
        with anyio.move_on_after(seconds):
            while self._failure is None:
                await anyio.sleep(POLL_S)

    def _failed(self) -> EngineError:
        """A fresh error for each call: one exception object must not be raised in many tasks."""
        assert self._failure is not None
        return EngineError(self._failure.cause, self._failure.message)

    # ------------------------------------------------------------------ adapters and probes

    async def load_adapter(self, version: int, folder: Path) -> Swap:
        """Load `folder` (a PEFT adapter) as `version` and make it current, once it has been seen to answer.

        Raises `ModelError` when the folder has no weights, `EngineError` when the server refuses it
        or still answers with the weights of the version before.
        """
        started_at = time.monotonic()
        adapter = Adapter(version, f"v{version}-{time.time_ns():x}", folder.resolve(), weights_sha256(folder))
        before = self._adapters.get(self._current)
        shift = await self._loaded(adapter, before)
        replaced = self._adapters.get(version)
        self._adapters[version] = adapter
        self._current = version
        if replaced is not None:
            await self._unload(replaced)
        await self._retire()
        return Swap(version, time.monotonic() - started_at, shift)

    async def _loaded(self, adapter: Adapter, before: Adapter | None) -> float:
        """Load `adapter` and prove that it answers: the largest change against what answered before."""
        prompt = np.asarray(probe_prompt(self._vocab_size), np.int32)
        old = await self._score(prompt, before.name if before else BASE)
        await self.post("/v1/load_lora_adapter", {"lora_name": adapter.name, "lora_path": str(adapter.folder)})
        new = await self._score(prompt, adapter.name)
        shift = float(np.abs(new - old).max())
        if shift == 0.0 and before is not None and before.sha256 != adapter.sha256:
            await self._unload(adapter)
            raise EngineError("stale_weights", f"version {adapter.version} answers like version {before.version}")
        return shift

    async def _retire(self) -> None:
        """Unload all but the newest adapters, except those that still answer a call."""
        newest = sorted(self._adapters)[-NUM_LIVE_ADAPTERS:]
        for version in [v for v in self._adapters if v not in newest and v != self._current]:
            if not self._under_way[version]:
                await self._unload(self._adapters.pop(version))

    async def _unload(self, adapter: Adapter) -> None:
        await self.post("/v1/unload_lora_adapter", {"lora_name": adapter.name})

    async def probe(self) -> None:
        """Check what training relies on: ids, logprobs, temperature, adapters. `EngineError` if not."""
        prompt = np.asarray(probe_prompt(self._vocab_size), np.int32)
        await self.sample(prompt, max_tokens=2, seed=0, policy_version=self._current)
        top = {"max_tokens": 1, "logprobs": 8, "seed": 0}
        plain = await self._generate(prompt, BASE, {**top, "temperature": 1.0})
        processed = await self._generate(prompt, BASE, {**top, "temperature": TEMPERATURE})
        check_temperature(read_top(*plain), read_top(*processed))
        with tempfile.TemporaryDirectory(prefix="corral-probe-") as folder:
            write_probe_adapter(self.settings.model, Path(folder))
            adapter = Adapter(-1, f"probe-{time.time_ns():x}", Path(folder), "")
            if await self._loaded(adapter, None) == 0.0:
                raise EngineError("bad_probe", "a loaded adapter does not change what the engine answers")
            await self._unload(adapter)
