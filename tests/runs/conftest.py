"""What several test modules of this folder ask for: asyncio alone, and a bench for rollouts on real Podman."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from appliance.capture.proxy import Limits as ProxyLimits
from appliance.capture.proxy import Proxy
from appliance.config.runconfig import home, podman_home, resolve
from appliance.record.store import Store
from appliance.runs.rollout import Place
from appliance.sandbox.images.build import base_ref, build_images
from appliance.sandbox.podman import Podman
from appliance.sandbox.pool import Host, Pool
from appliance.sandbox.settings import PodmanPlaces, leave_proxy_directory, proxy_directory
from tests.support.rollout_bench import Bench


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(parent.stat().st_mode | 0o055)
    build_images(podman_home(home()), [], print)
    settings = {"rollout.timeout_s": "8", "rollout.grade_timeout_s": "8", "rollout.retries": "0"}
    store = Store.open(tmp_path / "record.db")
    store.create_run("r", "test", {}, 0, "test")
    owner = f"test{os.getpid()}"
    async with Podman(podman_home(home())) as podman:
        pool = Pool([Host(podman)], tmp_path / "sandboxes", {"corral.owner": owner}, at_most=2)
        async with pool, Proxy(store, proxy_directory(tmp_path), ProxyLimits(max_calls=3)) as proxy:
            place = Place(
                run_id="r", config=resolve(None, settings), store=store, pool=pool, proxy=proxy,
                harnesses={}, images={"tiny": base_ref()}, grader_image=base_ref(),
            )  # fmt: skip
            yield Bench(place, tmp_path / "tasks")
        assert await podman.list({"corral.owner": owner}) == []
    assert list((tmp_path / "sandboxes").iterdir()) == []
    leave_proxy_directory(tmp_path)
    assert not PodmanPlaces.under(tmp_path).run.exists()
    store.close()
