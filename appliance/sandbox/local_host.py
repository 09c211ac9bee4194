"""The machine that a Podman service is on, beside what Podman's own API does: here, this one.

`Podman` asks it for all that touches files, processes and control groups. `ssh_host` is the same for another machine.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread

from appliance.sandbox.diskuse import cancel_when_full
from appliance.sandbox.launch import Started, say
from appliance.sandbox.service import RuntimeContainer, remove_dead_sockets, runtime_containers
from appliance.sandbox.settings import HostTraits, PodmanPlaces
from appliance.sandbox.spec import Limits
from appliance.system.cgroup import ROOT, Counters, remove_empty
from appliance.system.oom import OomWatch, watch_oom

REMOVAL_S, REMOVAL_LOOKS = 1.0, 3  # on a busy machine a removal takes seconds


class Machine:
    """This machine."""

    def __init__(self) -> None:
        self.traits = HostTraits.read()

    async def runtime_containers(self, storage: Path) -> list[RuntimeContainer]:
        """What the OCI runtime itself has under `storage`."""
        return await to_thread.run_sync(runtime_containers, storage)

    async def remove_forgotten(
        self, storage: Path, listed: Sequence[RuntimeContainer], known: Collection[str]
    ) -> list[str]:
        """Remove those listed that Podman does not know; their ids. One that it was just removing is no such one."""
        forgotten = [container for container in listed if container.id not in known]
        for _ in range(REMOVAL_LOOKS if forgotten else 0):
            await anyio.sleep(REMOVAL_S)
            still = {container.id for container in await self.runtime_containers(storage)}
            forgotten = [container for container in forgotten if container.id in still]
        for container in forgotten:
            await self.delete(container)
        return [container.id for container in forgotten]

    async def delete(self, container: RuntimeContainer) -> None:
        """Have one that Podman forgot gone."""
        await to_thread.run_sync(container.delete)

    async def clean(self, places: PodmanPlaces, known: Collection[str]) -> None:
        """Remove control groups of containers that are not `known`, and sockets of processes that are gone."""
        if not self.traits.has_systemd_cgroups:  # systemd removes its own
            await to_thread.run_sync(remove_empty, ROOT, places.cgroup, set(known))
        await to_thread.run_sync(remove_dead_sockets, places.run)

    async def say(self, pipe: Path, text: bytes) -> bool:
        """Write into a pipe that a sandbox reads; False while it does not."""
        return await to_thread.run_sync(say, pipe, text)

    def pids(self, state: Mapping[str, Any]) -> tuple[int, int]:
        """A container's first process and its monitor, as this machine numbers them; 0: not one of ours."""
        return state.get("Pid", 0), state.get("ConmonPid", 0)

    def counters(self, started: Started) -> Counters:
        """What the kernel counts for it."""
        return Counters.of(started.pid)

    def watch_oom(self, started: Started) -> AbstractAsyncContextManager[OomWatch]:
        """The kernel's notices that it ran out of memory."""
        return watch_oom(started.pid)

    async def cancel_when_full(self, folders: Sequence[Path], limits: Limits, scope: anyio.CancelScope) -> None:
        """Cancel `scope` once the folders hold more than they may."""
        await cancel_when_full(folders, limits, scope)
