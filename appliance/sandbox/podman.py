"""Sandboxes: one short-lived Podman container a launch, started, watched and always removed.

`Podman` owns a private Podman service (a child that dies with us) and is the only module that talks
to it, through podman-py's REST client in worker threads. A sandbox has no network, a read-only root,
no capabilities, an unprivileged user in a user namespace, and limits; what it can reach is the folders mounted
into it and, through one of them, its own rollout's proxy at 127.0.0.1:8123. Whatever ends a launch (exit, time limit,
cancellation, a dead service), its container is removed; `reconcile` removes what a kill -9 left (I8, I9).
Every method raises SandboxError, which fails one rollout, and HostError only where Podman cannot be started.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeAlias, TypeVar

import anyio
from anyio import to_thread

from appliance.errors import HostError, SandboxError
from appliance.sandbox.launch import IsBusy, Outcome, Started, idles, not_started, overflowed
from appliance.sandbox.local_host import Machine
from appliance.sandbox.service import ForeignService, Gone, PodmanApi, PodmanService, Refused, half_made
from appliance.sandbox.settings import HostTraits, PodmanPlaces, podman_environment
from appliance.sandbox.spec import (
    LAUNCH_PIPE,
    OWNER_LABEL,
    PROXY_PORT,
    PROXY_SOCKET,
    Limits,
    Mount,
    SandboxSpec,
    create_request,
    launch_script,
)
from appliance.sandbox.ssh import Ssh
from appliance.sandbox.ssh_host import FarMachine
from appliance.system.cgroup import Counters
from appliance.system.oom import OomWatch

__all__ = ["PROXY_PORT", "PROXY_SOCKET", "Limits", "Mount", "Outcome", "Podman", "SandboxSpec", "Started"]

T = TypeVar("T")
Names: TypeAlias = list[str]  # inside the class below, `list` is its method
Labelled: TypeAlias = list[tuple[str, dict[str, str]]]
OUTPUT_BYTES = 16 * 1024
TEARDOWN_S = 30.0
FOREIGN_TEARDOWN_S = 5.0
START_S = 60.0
PATIENCE_S = (0.1, 0.5, 2.0, 5.0)
"""Pauses between tries of what needs a service and may be tried again: it was killed, and its end is noticed late."""
MOST_WAITING = 1024  # threads that wait for the end of a sandbox


class Podman:
    """The private Podman: `async with Podman(home) as podman`, then `run`, `list`, `reconcile`.

    Inside the block a service that dies is started again; calls in flight then raise SandboxError.
    """

    def __init__(self, home: Path, at_once: int = 8, url: str = "", key: str = "", config: str = "") -> None:
        """`url`: another service than our own, unix:///… or ssh://…, over its own storage and images.

        `key`, `config`: files for ssh, '' for the user's own settings.
        """
        self._places = PodmanPlaces.under(home)
        self.far: FarMachine | None = None
        self._service: PodmanService | ForeignService | Ssh
        if url:
            self._places = self._places.beside(url)
        if url.startswith("ssh:"):
            self._service = Ssh(url, self._places.run, key, config)
            self.far = FarMachine(self._service)
        else:
            self._service = ForeignService(url) if url else PodmanService(self._places.run, podman_environment(home))
        self._machine = self.far or Machine()
        self._api = PodmanApi(self._service.socket)
        # A wait holds its thread for a whole rollout, so waits must not use up the threads of the rest.
        self._waits = anyio.CapacityLimiter(MOST_WAITING)
        self._calls = anyio.CapacityLimiter(at_once)
        self._ours: set[str] = set()

    async def __aenter__(self) -> Self:
        if isinstance(self._service, PodmanService):
            await self._service.ensure()
            return self
        try:
            await self._service.ensure()
            info = await self.request("GET", "/info")
            self._places = replace(self._places, storage=Path(info["store"]["graphRoot"]))
            if self.far is not None:
                self._places = await self.far.settle(self._places, self._api, info)
        except SandboxError as error:
            await self._service.stop()
            raise HostError(error.message, self._service.remedy(error.message)) from error
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            with anyio.move_on_after(TEARDOWN_S, shield=True):
                if self._service.starts > 1:
                    with suppress(SandboxError, HostError):  # what is left now, the next start's reconcile finds
                        await self._ready()
                        await self.sweep()
                if self.far is not None:
                    with suppress(SandboxError):
                        await self.far.leave()
        finally:
            await self._service.stop()

    @property
    def service_pid(self) -> int:
        """Process id of the private service; 0 while there is none."""
        return self._service.pid

    @property
    def traits(self) -> HostTraits:
        """What this host can do for a sandbox."""
        return self._machine.traits

    async def run(self, spec: SandboxSpec, on_started: Callable[[], Awaitable[None]] | None = None) -> Outcome:
        """Create, start, wait, read the output, remove. Its time limit counts from its start.

        Raises SandboxError (no_image, no_start, lost, disk_full); a bad exit code or a time-out is an Outcome.
        """
        try:
            started = await self.start(spec)
            if on_started is not None:
                await on_started()
            return await self.watch(started)
        finally:
            await self.remove(spec.name)

    async def start(self, spec: SandboxSpec) -> Started:
        """Create and start; whoever calls this calls `remove` too, also when it raises."""
        await self._ready()
        self._ours.add(spec.name)
        at = await self._launch(spec)
        state = await self._state(spec.name)
        return Started(spec, at, *self._machine.pids(state))

    async def go(self, waiting: Started, argv: tuple[str, ...], env: Mapping[str, str], limits: Limits) -> Started:
        """Give a waiting sandbox its command; its time counts from now, its times are those of `limits`."""
        spec = replace(waiting.spec, limits=limits)
        assert spec.launch_dir is not None
        try:
            script = launch_script(argv, env, spec.workdir)
        except ValueError as error:
            raise SandboxError("no_start", f"sandbox {spec.name}: {error}") from error
        give_up = time.monotonic() + START_S
        while not await self._machine.say(spec.launch_dir / LAUNCH_PIPE, script.encode()):
            # It is at its very start, or it has ended: a shell that is missing ends at once.
            state = await self._state(spec.name)
            if state.get("Status") != "running" or time.monotonic() > give_up:
                said = await self._output(spec.name)
                message = f"sandbox {spec.name}: it does not take a command: {said.strip()[-300:]}"
                raise SandboxError("no_start", f"{message}; does its image have /bin/sh, grep and socat?")
            await anyio.sleep(0.01)
        return Started(spec, time.monotonic(), waiting.pid)

    async def remove(self, name: str) -> None:
        """Have it gone with all its processes, also under cancellation; SandboxError `lost` if in vain."""
        try:
            if not await self._remove_surely(name):  # it may still write to the folders that are graded next
                raise SandboxError("lost", f"sandbox {name} could not be removed in {TEARDOWN_S:.0f} s")
        finally:
            self._ours.discard(name)  # from now on a reconciliation may remove it, should this have failed

    async def list(self, labels: Mapping[str, str]) -> Names:
        """Names of the sandboxes that carry all these labels, running or not."""
        wanted = labels.items()
        return sorted(name for name, found in await self.labels_of_all() if wanted <= found.items())

    async def labels_of_all(self) -> Labelled:
        """Name and labels of every sandbox in this storage, whoever made it."""
        await self._ready()
        wanted = json.dumps({"label": [f"{OWNER_LABEL}=1"]})
        body = await self.request("GET", "/containers/json", params={"all": "true", "filters": wanted})
        return [(entry["Names"][0], entry["Labels"] or {}) for entry in body]

    async def reconcile(self, labels: Mapping[str, str]) -> Names:
        """Remove every sandbox with these labels that this object did not start, and what Podman no longer knows."""

        async def act() -> Names:
            ours = set(self._ours)  # also what is just being removed, and gone once the list is there
            names = [name for name in await self.list(labels) if name not in ours | self._ours]
            for name in names:
                await self._remove(name)
            return names + await self.sweep()

        return await self._patiently(act)

    async def free_bytes(self) -> int:
        """Memory that nothing uses on its machine."""
        await self._ready()
        return int((await self.request("GET", "/info"))["host"]["memFree"])

    async def image_exists(self, ref: str) -> bool:
        """Whether the private image store holds `ref`."""

        async def act() -> bool:
            await self._ready()
            try:
                await self._ask("GET", f"/images/{ref}/exists")
            except Refused as error:
                if error.status == 404:
                    return False
                raise _lost(error) from error
            return True

        return await self._patiently(act)

    async def _patiently(self, act: Callable[[], Awaitable[T]]) -> T:
        """Does it again when the service died under it: `act` begins by having a service."""
        for pause_s in PATIENCE_S:
            with suppress(SandboxError):
                return await act()
            if isinstance(self._service, ForeignService):
                break  # we cannot start it again
            await anyio.sleep(pause_s)
        return await act()

    async def _ready(self) -> None:
        """Have a service; one that died may have left containers that its successor does not know."""
        if await self._service.ensure() and self._service.starts > 1:
            await self.sweep()

    async def sweep(self) -> Names:
        """Remove what the OCI runtime has of our storage and Podman does not know; the ids."""
        # The runtime is asked first: what it starts in between is then known to Podman, or not in its answer.
        listed = await self._machine.runtime_containers(self._places.storage)
        known = {entry["Id"] for entry in await self.request("GET", "/containers/json", params={"all": "true"})}
        forgotten = await self._machine.remove_forgotten(self._places.storage, listed, known)
        entries = await self.request("GET", "/containers/json", params={"all": "true", "external": "true"})
        halves = half_made(entries, time.time() - START_S)
        for container_id in halves:
            await self._remove(container_id)
        await self._machine.clean(self._places, known)
        return forgotten + halves

    async def _launch(self, spec: SandboxSpec) -> float:
        """Create and start; the moment from which its time counts."""
        try:
            with anyio.fail_after(START_S, shield=True):
                # Shielded: a create that is cut off could make its container after our removal.
                request = create_request(spec, self._places, self.traits)
                await self._ask("POST", "/containers/create", body=request)
            with anyio.fail_after(START_S):
                await self._ask("POST", f"/containers/{spec.name}/start")
        except TimeoutError as error:
            message = f"sandbox {spec.name}: Podman did not start it in {START_S:.0f} s"
            raise SandboxError("no_start", message) from error
        except Refused as error:
            raise not_started(spec, error.message) from error
        return time.monotonic()

    async def watch(self, started: Started, is_busy: IsBusy = lambda: False) -> Outcome:
        """Wait for its end, its time limit or its idling, then read what it printed.

        `is_busy`: whether somebody else owes it an answer, so that doing nothing is no idling.
        """
        spec, counters = started.spec, self._machine.counters(started)
        exit_code: int | None = None
        is_idle = False
        async with self._machine.watch_oom(started) as oom:
            with anyio.move_on_after(spec.limits.timeout_s - (time.monotonic() - started.at)):
                exit_code, is_idle = await self._end(spec, counters, is_busy)
            is_oom = await self._was_killed(spec.name, oom, counters, bool(exit_code))
        if exit_code is None:
            await self._stop(spec)
        seconds = time.monotonic() - started.at
        limits_hit = ("memory",) * is_oom + ("pids",) * (counters.refused_forks > 0)
        return Outcome(
            exit_code=exit_code,
            timed_out=exit_code is None and not is_idle,
            out_of_memory=is_oom,
            output=await self._output(spec.name),
            seconds=seconds,
            is_idle=is_idle,
            limits_hit=limits_hit,
        )

    async def _was_killed(self, name: str, oom: OomWatch, counters: Counters, is_likely: bool) -> bool:
        """By the kernel's notices on cgroup v1, its counter, and Podman's own word, which is right on v2."""
        if await oom.was_killed(is_likely) or counters.memory_kills:
            return True
        return self.traits.has_cgroup_v2 and bool((await self._state(name)).get("OOMKilled"))

    async def _stop(self, spec: SandboxSpec) -> None:
        """SIGTERM to what runs in it, a grace, SIGKILL; it may write its last words in between."""
        grace = max(0, round(spec.limits.grace_s))
        with suppress(SandboxError, Refused), anyio.move_on_after(grace + TEARDOWN_S):
            await self._ask("POST", f"/containers/{spec.name}/stop", {"timeout": str(grace)})

    async def _output(self, name: str) -> str:
        await self._ready()
        try:
            return (await self._thread(partial(self._api.logs, name, OUTPUT_BYTES))).decode(errors="replace")
        except Refused as error:
            raise _lost(error) from error

    async def _state(self, name: str) -> dict[str, Any]:
        body = await self.request("GET", f"/containers/{name}/json")
        return dict(body["State"])

    async def _end(self, spec: SandboxSpec, counters: Counters, is_busy: IsBusy) -> tuple[int | None, bool]:
        """(exit code, False), or (None, True) once it idles; SandboxError when it is lost or its folders overflow."""
        limits, is_idle = spec.limits, False
        found: int | SandboxError = overflowed(spec)
        folders = [mount.source for mount in spec.mounts if not mount.read_only]

        async def idle() -> None:
            nonlocal is_idle
            is_idle = await idles(counters, limits.idle_s, is_busy)
            tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._machine.cancel_when_full, folders, limits, tasks.cancel_scope)
            tasks.start_soon(idle)
            try:
                found = await self._wait(spec.name)
            except SandboxError as lost:
                found = lost  # raised below: out of here it would come in an exception group
            tasks.cancel_scope.cancel()
        if is_idle:
            return None, True
        if isinstance(found, SandboxError):
            with suppress(SandboxError, HostError):  # its log outlives a service that was killed
                found.output = await self._patiently(partial(self._output, spec.name))
            raise found
        return found, False

    async def _wait(self, name: str) -> int:
        """The exit code, once the container has ended."""
        # On cancellation the thread is let go: it ends when the container is removed a moment later.
        wait = partial(self._api.wait, name)
        try:
            exit_code = await to_thread.run_sync(wait, abandon_on_cancel=True, limiter=self._waits)
        except (Gone, Refused) as error:
            raise SandboxError("lost", f"sandbox {name} was lost while it ran: {error}") from error
        if exit_code < 0:  # Podman's word for an exit code that nobody saw
            raise SandboxError("lost", f"sandbox {name} was lost while it ran: its exit code is unknown")
        return exit_code

    async def _remove_surely(self, name: str) -> bool:
        """Remove even under cancellation and after a service death, within a bound; False if in vain."""
        is_foreign = not isinstance(self._service, PodmanService)  # we cannot start it again
        starts_left = 4  # a Podman that cannot be started at all is not waited for
        with anyio.move_on_after(FOREIGN_TEARDOWN_S if is_foreign else TEARDOWN_S, shield=True):
            while starts_left:
                try:
                    await self._ready()
                    await self._remove(name)
                    return True
                except (SandboxError, HostError) as error:
                    starts_left -= isinstance(error, HostError)
                    await anyio.sleep(0.1)  # it died under the removal; the next look starts it again
        return False

    async def _remove(self, name: str) -> None:
        """Kill and delete; Podman answers 409 or 500 while it is busy with the container."""
        params = {"force": "true", "timeout": "0", "v": "true"}
        give_up = time.monotonic() + TEARDOWN_S
        while True:
            try:
                await self._ask("DELETE", f"/containers/{name}", params=params)
                return
            except Refused as error:
                if error.status == 404:
                    return
                if error.status not in (409, 500) or time.monotonic() > give_up:
                    raise SandboxError("lost", f"sandbox {name} could not be removed: {error.message}") from error
                await anyio.sleep(0.1)

    async def request(self, method: str, path: str, params: Mapping[str, str] | None = None, body: Any = None) -> Any:
        """One REST call; SandboxError `lost` when it is refused or not answered."""
        try:
            return await self._ask(method, path, params, body)
        except Refused as error:
            raise _lost(error) from error

    async def _ask(self, method: str, path: str, params: Mapping[str, str] | None = None, body: object = None) -> Any:
        """A call whose caller reads something in a refusal."""
        return await self._thread(partial(self._api.request, method, path, params, body))

    async def _thread(self, call: Callable[[], T]) -> T:
        try:
            return await to_thread.run_sync(call, abandon_on_cancel=True, limiter=self._calls)
        except Gone as error:
            raise _lost(error) from error


def _lost(error: Gone | Refused) -> SandboxError:
    what = "refused" if isinstance(error, Refused) else "went away"
    return SandboxError("lost", f"the Podman service {what}: {error}")
