"""Sandboxes: one short-lived Podman container a launch, started, watched and always removed.

`Podman` owns a private Podman service (a child that dies with us) and is the only module that talks
to it, through podman-py's REST client in worker threads. A sandbox has no network, a read-only root,
no capabilities, an unprivileged user, and limits; what it can reach is the folders mounted into it and,
through one of them, its own rollout's proxy at 127.0.0.1:8123. Whatever ends a launch (exit, time limit,
cancellation, a dead service), its container is removed; `reconcile` removes what a kill -9 left (I8, I9).
Every method raises SandboxError, which fails one rollout, and HostError only where Podman cannot be started.
"""

from __future__ import annotations

import json
import math
import resource
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeAlias, TypeVar

import anyio
from anyio import to_thread

from appliance.diskuse import MOST_ENTRIES, cancel_when_full
from appliance.errors import HostError, SandboxError
from appliance.oom import watch_oom
from appliance.podmanconf import HostTraits, PodmanPlaces, podman_environment
from appliance.podmanservice import Gone, PodmanApi, PodmanService, Refused, runtime_containers

PROXY_PORT = 8123
PROXY_FOLDER = "/run/corral"
PROXY_SOCKET = "proxy.sock"
AGENT_ID = 1000
T = TypeVar("T")
Names: TypeAlias = list[str]  # inside the class below, `list` is its method
OUTPUT_BYTES = 16 * 1024
LOG_BYTES = 1 << 20
TEARDOWN_S = 30.0
START_S = 60.0
# Podman itself ends a container this long after its time limit, should nobody be left to do it.
DEAD_MAN_GRACE_S = 60
OWNER_LABEL = "corral.sandbox"  # not a label of the images, which their containers inherit
# Starts the forwarder, waits until it listens (the kernel's own table, port in hex), becomes the command.
FORWARD = (
    f"socat TCP4-LISTEN:{PROXY_PORT},bind=127.0.0.1,fork,reuseaddr,backlog=64 "
    f"UNIX-CONNECT:{PROXY_FOLDER}/{PROXY_SOCKET} </dev/null & "
    f"until grep -q ':{PROXY_PORT:04X} ' /proc/net/tcp; do sleep 0.01; done; "
    'exec "$@"'
)


@dataclass(frozen=True, slots=True)
class Mount:
    """A host folder shown inside at `target`."""

    source: Path
    target: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """What one sandbox may use. `cpus` in cores; `timeout_s` from its start to its end.

    `file_bytes` bounds each file it writes, `disk_bytes` what its writable mounts hold together. The second
    is looked at every two seconds, from outside: it stops a runaway, and is no quota.
    """

    memory_bytes: int = 1_000_000_000
    pids: int = 128
    cpus: float = 2.0
    timeout_s: float = 300.0
    tmpfs_bytes: int = 256_000_000
    file_bytes: int = 256_000_000
    disk_bytes: int = 512_000_000


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """One launch. `proxy_dir` is the host folder that holds the rollout's proxy.sock; None: no proxy."""

    name: str
    image: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/workspace"
    mounts: tuple[Mount, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = Limits()
    proxy_dir: Path | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a launch ended. `out_of_memory`: the kernel killed at least one of its processes for memory.

    `exit_code` is None exactly when `timed_out`. `output` is the end of stdout and stderr together.
    """

    exit_code: int | None
    timed_out: bool
    out_of_memory: bool
    output: str
    seconds: float


class Podman:
    """The private Podman: `async with Podman(home) as podman`, then `run`, `list`, `reconcile`.

    Inside the block a service that dies is started again; calls in flight then raise SandboxError.
    """

    def __init__(self, home: Path, at_once: int = 8) -> None:
        self._places = PodmanPlaces.under(home)
        self._traits = HostTraits.read()
        self._service = PodmanService(self._places.run, podman_environment(home))
        self._api = PodmanApi(self._service.socket)
        # A wait holds its thread for a whole rollout, so waits must not use up the threads of the rest.
        self._waits = anyio.CapacityLimiter(4 * at_once)
        self._calls = anyio.CapacityLimiter(at_once)
        self._running = anyio.CapacityLimiter(at_once)

    async def __aenter__(self) -> Self:
        await self._service.ensure()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            with anyio.move_on_after(TEARDOWN_S, shield=True):
                if self._service.starts > 1:
                    with suppress(SandboxError, HostError):  # what is left now, the next start's reconcile finds
                        await self._ready()
                        await self._sweep()
        finally:
            await self._service.stop()

    @property
    def service_pid(self) -> int:
        """Process id of the private service; 0 while there is none."""
        return self._service.pid

    async def run(self, spec: SandboxSpec, on_started: Callable[[], Awaitable[None]] | None = None) -> Outcome:
        """Create, start, wait, read the output, remove. Its time limit counts from its start.

        Raises SandboxError (no_image, no_start, lost, disk_full); a bad exit code or a time-out is an Outcome.
        """
        async with self._running:
            await self._ready()
            try:
                started = await self._launch(spec)
                if on_started is not None:
                    await on_started()
                outcome = await self._watch(spec, started)
            finally:
                is_removed = await self._remove_surely(spec.name)
            if not is_removed:  # it may still write to the folders that are graded next
                raise SandboxError("lost", f"sandbox {spec.name} could not be removed in {TEARDOWN_S:.0f} s")
            return outcome

    async def list(self, labels: Mapping[str, str]) -> Names:
        """Names of the sandboxes that carry all these labels, running or not."""
        await self._ready()
        wanted = json.dumps({"label": [f"{key}={value}" for key, value in {OWNER_LABEL: "1", **labels}.items()]})
        body = await self._request("GET", "/containers/json", params={"all": "true", "filters": wanted})
        return sorted(entry["Names"][0] for entry in body)

    async def reconcile(self, labels: Mapping[str, str]) -> Names:
        """Remove every sandbox with these labels, and whatever Podman itself no longer knows."""
        names = await self.list(labels)
        for name in names:
            await self._remove(name)
        return names + await self._sweep()

    async def image_exists(self, ref: str) -> bool:
        """Whether the private image store holds `ref`."""
        await self._ready()
        try:
            await self._ask("GET", f"/images/{ref}/exists")
        except Refused as error:
            if error.status == 404:
                return False
            raise _lost(error) from error
        return True

    async def _ready(self) -> None:
        """Have a service; one that died may have left containers that its successor does not know."""
        if await self._service.ensure() and self._service.starts > 1:
            await self._sweep()

    async def _sweep(self) -> Names:
        """Remove what the OCI runtime has of our storage and Podman does not know; the ids."""
        # The runtime is asked first: what it starts in between is then known to Podman, or not in its answer.
        listed = await to_thread.run_sync(runtime_containers, self._places.storage)
        known = {entry["Id"] for entry in await self._request("GET", "/containers/json", params={"all": "true"})}
        forgotten = [container for container in listed if container.id not in known]
        for container in forgotten:
            await to_thread.run_sync(container.delete)
        halves = await self._half_made()
        for container_id in halves:
            await self._remove(container_id)
        return [container.id for container in forgotten] + halves

    async def _half_made(self) -> Names:
        """Ids of containers of which only the storage was made; the young ones may be in the making."""
        listed = await self._request("GET", "/containers/json", params={"all": "true", "external": "true"})
        old = time.time() - START_S
        return [
            entry["Id"]
            for entry in listed
            if entry.get("State") == "storage"
            and entry.get("Command") == ["storage"]  # an image build's are called otherwise
            and datetime.fromisoformat(entry["Created"]).timestamp() < old
        ]

    async def _launch(self, spec: SandboxSpec) -> float:
        """Create and start; the moment from which its time counts."""
        try:
            with anyio.fail_after(START_S, shield=True):
                # Shielded: a create that is cut off could make its container after our removal.
                await self._ask("POST", "/containers/create", body=self._container(spec))
            started = time.monotonic()
            with anyio.fail_after(START_S):
                await self._ask("POST", f"/containers/{spec.name}/start")
        except TimeoutError as error:
            message = f"sandbox {spec.name}: Podman did not start it in {START_S:.0f} s"
            raise SandboxError("no_start", message) from error
        except Refused as error:
            cause = "no_image" if "image not known" in error.message or "no such image" in error.message else "no_start"
            raise SandboxError(cause, f"sandbox {spec.name}: {error.message}") from error
        return started

    def _container(self, spec: SandboxSpec) -> dict[str, object]:
        """Podman's create request: everything a sandbox must not have is said here."""
        limits, labels = spec.limits, {OWNER_LABEL: "1", **spec.labels}
        mounts = [_bind(mount) for mount in spec.mounts]
        argv = list(spec.argv)
        if spec.proxy_dir is not None:
            mounts.append(_bind(Mount(spec.proxy_dir, PROXY_FOLDER, read_only=True)))
            argv = ["/bin/sh", "-c", FORWARD, "forward", *argv]
        mounts.append(_tmpfs("/tmp", limits.tmpfs_bytes))
        request: dict[str, object] = {
            "name": spec.name, "image": spec.image, "entrypoint": argv[:1], "command": argv[1:],
            "env": dict(spec.env), "httpproxy": False, "work_dir": spec.workdir, "hostname": "sandbox",
            "user": f"{AGENT_ID}:{AGENT_ID}", "init": True, "labels": labels,
            "netns": {"nsmode": "none"}, "use_image_hosts": True, "use_image_resolve_conf": True,
            "read_only_filesystem": True, "mounts": mounts, "shm_size": 16 << 20, "image_volume_mode": "ignore",
            "cap_drop": ["all"], "no_new_privileges": True,
            "r_limits": _process_limits(limits, self._traits),
            "timeout": math.ceil(limits.timeout_s) + DEAD_MAN_GRACE_S, "stop_timeout": 0,
            "log_configuration": {"driver": "k8s-file", "size": LOG_BYTES},
        }  # fmt: skip
        if self._places.seccomp.stat().st_size:
            request["seccomp_profile_path"] = str(self._places.seccomp)
        if not self._traits.is_root:
            # Rootless: the user who runs Corral is the agent inside, so that mounted folders fit.
            request["userns"] = {"nsmode": "keep-id", "value": f"uid={AGENT_ID},gid={AGENT_ID}"}
        # A limit that this user may not set would keep the container from starting.
        resources = _resources(limits).items()
        request["resource_limits"] = {key: limit for key, limit in resources if key in self._traits.controllers}
        return request

    async def _watch(self, spec: SandboxSpec, started: float) -> Outcome:
        """Wait for the end or the time limit, then read what it printed."""
        exit_code: int | None = None
        is_oom = False
        state = await self._state(spec.name)
        async with watch_oom(state.get("Pid", 0)) as oom:
            with anyio.move_on_after(spec.limits.timeout_s - (time.monotonic() - started)):
                exit_code = await self._end(spec)
            is_oom = await oom.was_killed()
        seconds = time.monotonic() - started
        state = await self._state(spec.name)
        try:
            output = await self._thread(partial(self._api.logs, spec.name, OUTPUT_BYTES))
        except Refused as error:
            raise _lost(error) from error
        return Outcome(
            exit_code=exit_code,
            timed_out=exit_code is None,
            out_of_memory=is_oom or bool(state.get("OOMKilled")),
            output=output.decode(errors="replace"),
            seconds=seconds,
        )

    async def _state(self, name: str) -> dict[str, Any]:
        body = await self._request("GET", f"/containers/{name}/json")
        return dict(body["State"])

    async def _end(self, spec: SandboxSpec) -> int:
        """The exit code; SandboxError when it is lost or its folders grow too large first."""
        limit_bytes = spec.limits.disk_bytes
        message = f"sandbox {spec.name}: its folders hold more than {limit_bytes} bytes or {MOST_ENTRIES} files"
        end: int | SandboxError = SandboxError("disk_full", message)
        folders = [mount.source for mount in spec.mounts if not mount.read_only]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cancel_when_full, folders, limit_bytes, tasks.cancel_scope)
            try:
                end = await self._wait(spec.name)
            except SandboxError as lost:
                end = lost  # raised below: out of here it would come in an exception group
            tasks.cancel_scope.cancel()
        if isinstance(end, SandboxError):
            raise end
        return end

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
        with anyio.move_on_after(TEARDOWN_S, shield=True):
            while True:
                try:
                    await self._ready()
                    await self._remove(name)
                    return True
                except (SandboxError, HostError):
                    await anyio.sleep(0.1)  # it died under the removal; the next look starts it again
        return False

    async def _remove(self, name: str) -> None:
        """Kill and delete; Podman answers 409 or 500 while it is busy with the container."""
        params = {"force": "true", "timeout": "0", "v": "true"}
        give_up = time.monotonic() + TEARDOWN_S
        while True:
            try:
                await self._ask("DELETE", f"/containers/{name}", params=params)
            except Refused as error:
                if error.status == 404:
                    return
                if error.status not in (409, 500) or time.monotonic() > give_up:
                    raise SandboxError("lost", f"sandbox {name} could not be removed: {error.message}") from error
                await anyio.sleep(0.1)
            else:
                return

    async def _request(self, method: str, path: str, params: Mapping[str, str] | None = None) -> Any:
        """A call whose refusal means nothing of its own."""
        try:
            return await self._ask(method, path, params)
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


def _bind(mount: Mount) -> dict[str, object]:
    mode = "ro" if mount.read_only else "rw"
    options = ["rbind", mode, "nosuid", "nodev"]
    return {"type": "bind", "source": str(mount.source.absolute()), "destination": mount.target, "options": options}


def _tmpfs(target: str, size_bytes: int) -> dict[str, object]:
    options = [f"size={size_bytes}", "mode=1777", "nosuid", "nodev"]
    return {"type": "tmpfs", "source": "tmpfs", "destination": target, "options": options}


def _resources(limits: Limits) -> dict[str, object]:
    period_us = 100_000
    return {
        "memory": {"limit": limits.memory_bytes, "swap": limits.memory_bytes},
        "pids": {"limit": limits.pids},
        "cpu": {"period": period_us, "quota": int(limits.cpus * period_us)},
    }


def _process_limits(limits: Limits, traits: HostTraits) -> list[dict[str, object]]:
    """Beyond the file limit a write is answered with SIGXFSZ. None is above our own, which could not be set."""
    own = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    file_bytes = limits.file_bytes if own == resource.RLIM_INFINITY else min(own, limits.file_bytes)
    most = {"fsize": file_bytes, "core": 0}
    if not traits.can_raise_limits:  # a request with limits does not get those of containers.conf
        most |= {"nofile": min(traits.max_files, 16384), "nproc": min(traits.max_processes, 32768)}
    return [{"type": name, "soft": limit, "hard": limit} for name, limit in most.items()]
