"""Two Podman services on one machine: rollouts are placed on both; one that is lost takes only its own with it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest

from appliance.config.runconfig import home, podman_home
from appliance.config.sections import RolloutSection
from appliance.errors import HostError, SandboxError
from appliance.sandbox.hosts import check_images, open_hosts, reconcile
from appliance.sandbox.images.build import base_ref
from appliance.sandbox.podman import Limits, Podman
from appliance.sandbox.pool import Host, Kind, Pool, Slot
from tests.support.beside import second_podman

# So much is promised to each that the next goes to the other host, however the machine's free memory moves.
LIMITS = Limits(memory_bytes=8 << 30, timeout_s=60, disk_bytes=4 << 20)


@pytest.mark.parametrize("url", ["tcp://1.2.3.4:1", "podman.sock", "unix:relative"])
def test_an_address_that_is_none_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(HostError, match=r"rollout\.hosts") as caught:
        Podman(tmp_path, 1, url)
    assert "unix://" in caught.value.remedy


def test_a_host_that_does_not_answer_is_named_at_the_start(tmp_path: Path) -> None:
    async def enter() -> None:
        async with Podman(tmp_path, 1, f"unix://{tmp_path}/none.sock"):
            raise AssertionError("entered")

    with pytest.raises(HostError, match=r"none\.sock does not answer") as caught:
        anyio.run(enter)
    assert "rollout.hosts" in caught.value.remedy


@pytest.fixture
def second(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    with second_podman(tmp_path) as (service, socket):
        yield service, f"unix://{socket}"


@pytest.mark.real
def test_a_lost_host_fails_only_what_was_placed_on_it(
    second: tuple[subprocess.Popen[bytes], str], tmp_path: Path
) -> None:
    service, url = second
    ends = anyio.run(lose_the_second, service, url, tmp_path)
    assert ends == {"local": ["0", "0", "0"], url: ["lost", "lost"]}  # the last was placed on what was left


async def lose_the_second(service: subprocess.Popen[bytes], url: str, folder: Path) -> dict[str, list[str]]:
    """How each sandbox ended, by host: four at once while the second host dies, and one more."""
    owner = f"hosts{os.getpid()}"
    (folder / "proxy").mkdir()
    async with AsyncExitStack() as stack:
        hosts = await open_hosts(stack, podman_home(home()), RolloutSection(hosts=(url,), parallel=4))
        await check_images(hosts, {"base": base_ref()})
        with pytest.raises(HostError, match="lacks the image of other"):
            await check_images(hosts[1:], {"other": "localhost/corral-none:0"})
        pool = await stack.enter_async_context(Pool(hosts, folder / "sandboxes", {"corral.owner": owner}, at_most=0))
        kind = Kind(base_ref(), LIMITS, folder / "proxy")
        placed: list[Slot] = []
        ends: dict[str, list[str]] = {host.name: [] for host in hosts}

        async def one(argv: tuple[str, ...]) -> None:
            name = ""
            try:
                async with pool.slot(kind, "x") as slot:
                    name = slot.host.name
                    placed.append(slot)
                    outcome = await slot.watch(await slot.go(argv, {}, LIMITS), lambda: False)
                ends[name].append(str(outcome.exit_code))
            except SandboxError as error:
                ends[name].append(error.cause)

        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(one, ("sh", "-c", "until [ -e go ]; do sleep 0.1; done"))
            with anyio.fail_after(60):
                while len(placed) < 4:
                    await anyio.sleep(0.05)
            os.kill(service.pid, signal.SIGKILL)
            for slot in placed:
                if slot.host.name == "local":
                    (slot.workshop.workspace / "go").touch()
        await one(("true",))
        told: list[str] = []
        await reconcile(hosts, owner, "", lambda level, part, message: told.append(message))
        assert told == [f"Podman host {url}: the Podman host {url} does not answer"]
        assert isinstance(hosts[1], Host) and await hosts[1].free_bytes() == -1
    return ends
