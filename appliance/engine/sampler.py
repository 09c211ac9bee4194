"""The engine kept alive for one run, and the policy version that answers.

A dead or hung engine fails the calls under way (their rollouts are tried again), is started again with its adapters,
and calls that come meanwhile wait for it. After `MAX_RESTARTS` without an hour of peace in between the run fails with
the engine's last words.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import anyio
from anyio import to_thread

from appliance.capture.rendering.families import renderer_of
from appliance.capture.rendering.renderer import Renderer
from appliance.config.runconfig import RunConfig, num_gpus
from appliance.engine.engine import EngineSettings, Swap, weights_sha256
from appliance.engine.policy_responder import EngineAnswerer, Sampling
from appliance.engine.replicas import Replicas
from appliance.errors import EngineError, HostError, ModelError
from appliance.record.store import Store
from appliance.types import Sample, TokenIds

MAX_RESTARTS = 5
WATCH_S = 0.25
PEACE_S = 3600.0
LOAD_EVERY_S = 5.0


class Sampler:
    """Samples from the version last given to `use`. Made by `Sampler.for_run`."""

    def __init__(self, store: Store, run_id: str, config: RunConfig, engine: Replicas, renderer: Renderer) -> None:
        self._store = store
        self._run_id = run_id
        self._config = config
        self._engine = engine
        self._up = anyio.Event()
        self._up.set()
        self._loaded: int | None = None
        self._changing = anyio.Lock()
        sampling = Sampling(
            temperature=config.rollout.temperature,
            max_tokens=config.rollout.max_tokens,
            context_length=config.engine.max_model_len,
            seed=config.seed,
            first_rollout=store.first_rollout(run_id),
            rendering=config.rollout.rendering,
        )
        self.answerer = EngineAnswerer(self, renderer, sampling)

    @classmethod
    @asynccontextmanager
    async def for_run(cls, home: Path, store: Store, run_id: str, config: RunConfig) -> AsyncIterator[Sampler]:
        """Starts the engine on the weights that `engine.weights` names and watches it until the end."""
        folder = home / "runs" / run_id
        served = "served" if config.engine.weights == "dequantised" else "base"
        settings = engine_settings(config, folder / "model" / served, folder / "engine.log")
        renderer = renderer_of(settings.model, config.model.renderer)

        def say(line: str) -> None:
            store.log("info", "engine", line, run_id)

        async with Replicas(settings, config.engine.replicas, num_gpus(), say) as engine:
            sampler = cls(store, run_id, config, engine, renderer)
            async with anyio.create_task_group() as group:
                group.start_soon(sampler._keep_alive)
                group.start_soon(sampler._note_load)
                yield sampler
                group.cancel_scope.cancel()

    @property
    def version(self) -> int:
        """The policy version that answers now."""
        return self._engine.current_version

    async def use(self, version: int) -> None:
        """Loads a version of the run, unless it is the current one, and sees that its weights answer."""
        if version == self._loaded:
            return
        folder = self._store.adapter_folder(self._run_id, version)
        recorded = {number: sha256 for number, _, sha256 in self._store.versions(self._run_id)}[version]
        if await to_thread.run_sync(weights_sha256, folder) != recorded:
            raise ModelError(
                f"{folder}: cut short or changed since it was recorded as version {version}",
                "put the folder back from a copy, or start a new run; the record itself is whole (`corral db check`)",
            )
        swap = await self._swap(version, folder)
        self._loaded = version
        self._store.log(
            "info", "engine", f"version {version} answers (logprobs moved by up to {swap.shift:.4f})", self._run_id
        )

    async def _swap(self, version: int, folder: Path) -> Swap:
        """Loads an adapter; an engine that dies meanwhile is waited for, once."""
        for tries_left in (1, 0):
            await self._wait_until_up()
            try:
                async with self._changing:
                    return await self._engine.load_adapter(version, folder)
            except EngineError as error:
                if not tries_left:
                    raise HostError(
                        f"{folder}: the engine does not take it: {error.message}", "see engine.log"
                    ) from error
                await anyio.sleep(2 * WATCH_S)  # by then the watcher has seen a failure
        raise AssertionError("unreachable")

    async def sample(
        self,
        prompt_ids: TokenIds,
        max_tokens: int,
        temperature: float = 1.0,
        stop_ids: tuple[int, ...] = (),
        seed: int | None = None,
        policy_version: int | None = None,
    ) -> Sample:
        """One sample, as `Engine.sample`; waits while the engine is being restarted."""
        await self._wait_until_up()
        version = self._loaded if policy_version is None else policy_version
        return await self._engine.sample(prompt_ids, max_tokens, temperature, stop_ids, seed, version)

    @asynccontextmanager
    async def asleep(self) -> AsyncIterator[None]:
        """The GPU is the trainer's until the body has ended, where `engine.sleep` says so; no call may be under way."""
        async with AsyncExitStack() as stack:
            if self._config.engine.sleep:
                with suppress(EngineError):  # an engine that does not come back holds no room
                    await self._wait_until_up()
                await stack.enter_async_context(self._engine.asleep())
            yield

    async def _wait_until_up(self) -> None:
        with anyio.move_on_after(self._config.engine.startup_deadline_s) as scope:
            await self._up.wait()
        if scope.cancelled_caught:
            raise EngineError("dead", "the engine did not come back in time")

    async def _note_load(self) -> None:
        """Keeps the newest numbers of every engine in the record, for who looks."""
        while True:
            for number, load in enumerate(await self._engine.loads()):
                if load:
                    self._store.note_engine(self._run_id, number, load)
            await anyio.sleep(LOAD_EVERY_S)

    async def _keep_alive(self) -> None:
        restarts, up_since = 0, time.monotonic()
        while True:
            await anyio.sleep(WATCH_S)
            failure = self._engine.failure
            if failure is None:
                continue
            if time.monotonic() - up_since > PEACE_S:
                restarts = 0
            self._up = anyio.Event()
            message: str | None = failure.message
            while message is not None:
                restarts += 1
                self._store.log("error", "engine", f"{message} (restart {restarts} of {MAX_RESTARTS})", self._run_id)
                if restarts > MAX_RESTARTS:
                    raise HostError(
                        f"the engine failed {restarts} times: {message}", "see engine.log in the run's folder"
                    )
                message = await self._restarted()
                await anyio.sleep(restarts if message is not None else 0)
            self._up.set()
            up_since = time.monotonic()

    async def _restarted(self) -> str | None:
        """Starts the engine again; why that failed (it may be killed while it starts), None when it answers."""
        async with self._changing:  # a swap must not be undone by a restart that began before it
            try:
                await self._engine.restart()
            except (EngineError, HostError) as error:
                return error.message
        return None


def engine_settings(config: RunConfig, model: Path, log: Path) -> EngineSettings:
    """What the engine is started with for this run."""
    engine = config.engine
    is_nf4 = engine.weights == "nf4"
    return EngineSettings(
        model=model,
        log=log,
        max_model_len=engine.max_model_len,
        is_nf4=is_nf4,
        max_num_seqs=max(16, config.rollout.parallel),
        kv_cache_gib=engine.kv_cache_gib,
        threads=engine.threads,
        max_lora_rank=config.model.lora_rank,
        startup_deadline_s=engine.startup_deadline_s,
        call_deadline_s=engine.call_deadline_s,
        device=engine.resolved_device,
        sleeps=engine.sleep,
        dtype="float32" if engine.resolved_device == "cpu" and not is_nf4 else "bfloat16",
        seed=config.seed,
    )
