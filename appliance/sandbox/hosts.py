"""The Podman hosts of a run: our own, and those that `rollout.hosts` names; opened, checked, kept clean.

Each has its own storage and images. They are told apart from then on only by the pool, which places slots by free
memory; one that stops answering fails what was placed on it (`sandbox:lost`, tried again elsewhere) and no more.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio

from appliance.config.sections import RolloutSection
from appliance.errors import HostError, SandboxError
from appliance.sandbox.podman import Podman
from appliance.sandbox.pool import Host
from appliance.sandbox.ssh import Address

RECONCILE_EVERY_S = 60.0
Log = Callable[[str, str, str], None]


async def open_hosts(stack: AsyncExitStack, home: Path, settings: RolloutSection) -> list[Host]:
    """Our own Podman, then those of `rollout.hosts`; HostError names one that does not answer."""
    hosts = [Host(await stack.enter_async_context(Podman(home, settings.parallel)))]
    for url in settings.hosts:
        podman = Podman(home, settings.parallel, url, settings.ssh_key, settings.ssh_config)
        hosts.append(Host(await stack.enter_async_context(podman), url))
    return hosts


async def check_images(hosts: Sequence[Host], images: Mapping[str, str]) -> None:
    """HostError unless every host has every image (name → reference)."""
    for host in hosts:
        for name, ref in images.items():
            if await host.podman.image_exists(ref):
                continue
            if host.name == "local":
                raise HostError(f"the image of {name} is missing ({ref})", "build it: corral images build")
            raise HostError(f"the Podman host {host.name} lacks the image of {name} ({ref})", _bring(host, ref))


def _bring(host: Host, ref: str) -> str:
    """How the image comes there."""
    if host.name.startswith("ssh:"):
        address = Address.parse(host.name)
        port = f" -p {address.port}" if address.port else ""
        load = f"ssh{port} {address.login} podman load < image.tar"
    else:
        load = f"podman --url {host.name} load < image.tar"
    return f"corral images save NAME --output image.tar (a task's own: podman save {ref}), then: {load}"


async def reconcile(hosts: Sequence[Host], owner: str, why: str, log: Log) -> None:
    """Remove what `owner` has on any host and did not start in this process; a host that is lost has its turn later."""
    for host in hosts:
        try:
            removed = await host.podman.reconcile({"corral.owner": owner})
            if host.podman.far is not None:
                removed += await host.podman.far.clean_shops()
            for name in removed:
                log("warning", "sandbox", f"removed {name}, {why}")
        except SandboxError as error:
            if host.name == "local":
                raise
            log("warning", "sandbox", f"Podman host {host.name}: {error.message}")


@asynccontextmanager
async def reconciling(hosts: Sequence[Host], owner: str, log: Log) -> AsyncIterator[None]:
    """Every minute look for what a fault left behind, as at the start."""
    async with anyio.create_task_group() as group:

        async def keep() -> None:
            while True:
                await anyio.sleep(RECONCILE_EVERY_S)
                try:
                    await reconcile(hosts, owner, "that nobody started or Podman forgot", log)
                except SandboxError as error:  # the next rollout meets it too
                    log("warning", "sandbox", f"reconciliation: {error.message}")

        group.start_soon(keep)
        yield
        group.cancel_scope.cancel()
