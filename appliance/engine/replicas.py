"""Several engines that look like one: calls go to the one with least under way, versions are loaded into all of them.

Invariant (I6): a call is answered by the version it was stamped with, whichever engine takes it; a version is current
only once every engine has it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from anyio import move_on_after

from appliance.engine.engine import Engine, EngineSettings, Swap
from appliance.engine.load import read_load
from appliance.engine.sleep import asleep
from appliance.errors import EngineError
from appliance.types import Sample, TokenIds

LOAD_DEADLINE_S = 3.0


class Replicas:
    """`count` engines with the same settings, each with a log of its own; on GPUs each has one, from the last down."""

    def __init__(self, settings: EngineSettings, count: int, gpus: int, say: Callable[[str], None]) -> None:
        self._engines = [Engine(_of(settings, number, count, gpus), say) for number in range(count)]
        self._under_way = [0] * count
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Replicas:
        async with AsyncExitStack() as opening:  # one that fails to start ends those before it
            for engine in self._engines:
                await opening.enter_async_context(engine)
            self._open = opening.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.aclose()

    @property
    def current_version(self) -> int:
        """The version that new calls are stamped with."""
        return self._engines[-1].current_version  # the last to be loaded

    @property
    def failure(self) -> EngineError | None:
        """Why one of them cannot answer, None while all can."""
        return next((e.failure for e in self._engines if e.failure is not None), None)

    async def restart(self) -> None:
        """Starts again those that failed; the others go on."""
        for engine in self._engines:
            if engine.failure is not None:
                await engine.restart()

    async def loads(self) -> list[dict[str, float]]:
        """Queue and cache of each engine, as it tells them; nothing of one that does not answer just now."""
        found: list[dict[str, float]] = []
        for engine in self._engines:
            told: dict[str, float] = {}
            if engine.failure is None:
                with move_on_after(LOAD_DEADLINE_S):
                    told = read_load((await engine.ask("/metrics")).body)
            found.append(told)
        return found

    @asynccontextmanager
    async def asleep(self) -> AsyncIterator[None]:
        """All of them sleep until the body has ended, if they were started to be able to."""
        async with AsyncExitStack() as stack:
            for engine in self._engines:
                if engine.settings.sleeps:
                    await stack.enter_async_context(asleep(engine))
            yield

    async def load_adapter(self, version: int, folder: Path) -> Swap:
        """Loads a version into every engine; the swap with the largest shift speaks for all."""
        swaps = [await engine.load_adapter(version, folder) for engine in self._engines]
        return max(swaps, key=lambda swap: swap.shift)

    async def sample(
        self,
        prompt_ids: TokenIds | Sequence[int],
        max_tokens: int,
        temperature: float = 1.0,
        stop_ids: Sequence[int] = (),
        seed: int | None = None,
        policy_version: int | None = None,
    ) -> Sample:
        """One sample from the engine with least under way, as `Engine.sample`."""
        number = min(range(len(self._engines)), key=self._under_way.__getitem__)
        self._under_way[number] += 1
        try:
            engine = self._engines[number]
            return await engine.sample(prompt_ids, max_tokens, temperature, stop_ids, seed, policy_version)
        finally:
            self._under_way[number] -= 1


def _of(settings: EngineSettings, number: int, count: int, gpus: int) -> EngineSettings:
    """The settings of one of them. The trainer's ranks count GPUs from the first, so engines take the last."""
    log = settings.log if count == 1 else settings.log.with_name(f"engine-{number}.log")
    gpu = (gpus - 1 - number) % gpus if settings.device == "cuda" and gpus else None
    return replace(settings, log=log, gpu=gpu)
