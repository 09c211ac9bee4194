"""Several engines as one, each a fake server over a real socket: calls are shared, versions are everywhere at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from appliance.engine.engine import EngineSettings
from appliance.engine.replicas import Replicas
from tests.support.fake_vllm import adapter

pytestmark = pytest.mark.anyio


async def test_calls_are_shared_and_a_version_is_loaded_into_every_engine(
    settings: Callable[..., EngineSettings], tmp_path: Path
) -> None:
    one = adapter(tmp_path / "v1", b"one")
    async with Replicas(settings(), 2, 0, lambda _line: None) as engines:
        assert engines.failure is None and engines.current_version == 0
        await engines.load_adapter(1, one)
        assert engines.current_version == 1
        found = []

        async def call() -> None:
            found.append((await engines.sample([3, 4], 2)).policy_version)

        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(call)
        assert found == [1] * 4
    assert len(list(settings().log.parent.glob("engine-*.log"))) == 2


async def test_an_engine_sleeps_while_a_step_is_trained_and_then_answers_as_before(
    settings: Callable[..., EngineSettings],
) -> None:
    async with Replicas(settings(sleeps=True), 2, 0, lambda _line: None) as engines:
        before = await engines.sample([3, 4], 2, seed=0)
        answered = []

        async def call() -> None:
            answered.append(await engines.sample([3, 4], 2, seed=0))

        async with anyio.create_task_group() as group, engines.asleep():
            group.start_soon(call)
            await anyio.sleep(0.3)
            assert not answered
        assert engines.failure is None
        (after,) = answered
        assert after.sampled_ids.tolist() == before.sampled_ids.tolist()
        assert after.logprobs.tolist() == before.logprobs.tolist()


@pytest.mark.parametrize(
    ("mode", "told"),
    [
        ("forgets", "after its sleep it answers otherwise: a logprob moved by 1 nats"),
        ("insomniac", "it could not be put to sleep: the engine answered 404"),
    ],
)
async def test_an_engine_that_sleeps_badly_is_ended_by_name_and_its_keeper_starts_it_again(
    settings: Callable[..., EngineSettings], mode: str, told: str
) -> None:
    async with Replicas(settings(mode, sleeps=True), 1, 0, lambda _line: None) as engines:
        async with engines.asleep():
            pass
        assert engines.failure is not None and told in engines.failure.message
        await engines.restart()
        assert engines.failure is None and (await engines.sample([3, 4], 2)).policy_version == 0


async def test_an_engine_that_was_not_started_to_sleep_stays_awake(settings: Callable[..., EngineSettings]) -> None:
    async with Replicas(settings("insomniac"), 1, 0, lambda _line: None) as engines:
        async with engines.asleep():
            await engines.sample([3, 4], 2)
        assert engines.failure is None
