"""Several engines as one, each a fake server over a real socket: calls are shared, versions are everywhere at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from test_engine import adapter, anyio_backend, model, settings  # noqa: F401

from appliance.engine import EngineSettings
from appliance.replicas import Replicas

pytestmark = pytest.mark.anyio


async def test_calls_are_shared_and_a_version_is_loaded_into_every_engine(
    settings: Callable[..., EngineSettings],  # noqa: F811
    tmp_path: Path,
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
