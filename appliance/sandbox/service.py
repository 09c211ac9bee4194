"""The private Podman service: a child process on a Unix socket, and the REST client that talks to it.

The client is podman-py's `APIClient`, for which every call is a thread's: one client a thread, since a
requests session is not to be shared. The service carries the pid of its owner in its socket's name, so
that two Corral commands over one storage never take each other's socket.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import Process

from appliance.errors import HostError, SandboxError
from appliance.sandbox.settings import OLDEST_PODMAN, is_too_old, remedy_of
from appliance.system.cgroup import ROOT, remove_parents

if TYPE_CHECKING:
    from podman.api.client import APIResponse

CALL_TIMEOUT_S = 60.0
READY_S = 30.0
STOP_S = 10.0
START_TRIES = 4
LEAVE_S, LEAVE_LOOKS = 0.1, 15


class Gone(Exception):
    """The service closed the connection, is not there, or did not answer in its own words."""


class Refused(Exception):
    """The service answered with an error status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{message} (HTTP {status})")
        self.status = status
        self.message = message


class PodmanApi:
    """Blocking REST calls, each made in a worker thread of the caller's choice."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._local = threading.local()

    def request(self, method: str, path: str, params: Mapping[str, str] | None = None, body: object = None,
                timeout_s: float | None = CALL_TIMEOUT_S) -> Any:  # fmt: skip
        """One call; returns the decoded JSON answer, None when there is none. Raises Gone or Refused."""
        answer = self._send(method, path, params, body, timeout_s)
        if not answer.ok:
            raise Refused(answer.status_code, _message(answer.content))
        try:
            return json.loads(answer.content) if answer.content.strip() else None
        except ValueError as error:
            raise Gone(f"{method} {path}: half an answer") from error

    def wait(self, name: str) -> int:
        """Block until the container has ended; its exit code. Podman looks every 20 ms."""
        # One string: podman-py would send a list as its Python text.
        path = f"/containers/{name}/wait?condition=exited&condition=stopped&interval=20ms"
        exit_code = self.request("POST", path, timeout_s=None)
        if not isinstance(exit_code, int):
            raise Gone(f"wait for {name}: no exit code in the answer")
        return exit_code

    def logs(self, name: str, last_bytes: int) -> bytes:
        """The end of stdout and stderr, in the order Podman's monitor read their two pipes."""
        streams = {"stdout": "true", "stderr": "true"}
        answer = self._send("GET", f"/containers/{name}/logs", streams, None, CALL_TIMEOUT_S)
        if not answer.ok:
            raise Refused(answer.status_code, _message(answer.content))
        return _frames(answer.content)[-last_bytes:]

    def _send(self, method: str, path: str, params: Mapping[str, str] | None, body: object,
              timeout_s: float | None) -> APIResponse:  # fmt: skip
        from appliance.sandbox.client import FAILURES, new_client, send

        client = getattr(self._local, "client", None)
        if client is None:
            client = self._local.client = new_client(self._path)
        data = None if body is None else json.dumps(body)
        try:
            return send(client, method, path, dict(params or {}), data, timeout_s)
        except FAILURES as error:
            client.close()
            self._local.client = None
            raise Gone(f"{method} {path}: {error.__cause__ or error}") from error


class PodmanService:
    """`podman system service` as a child that ends with its parent; started again by `ensure`."""

    def __init__(self, run: Path, environment: Mapping[str, str]) -> None:
        self._run = run
        self._environment = dict(environment)
        self._process: Process | None = None
        self._lock = anyio.Lock()
        self.starts = 0
        self.socket = run / f"podman-{os.getpid()}.sock"

    @property
    def pid(self) -> int:
        """Process id of the running service, 0 when there is none."""
        return self._process.pid if self._process is not None and self._process.returncode is None else 0

    async def ensure(self) -> bool:
        """Return once the service answers, starting it (again) if it does not run; True if it was."""
        async with self._lock:
            if self.pid:
                return False
            await self._start()
            self.starts += 1
            return True

    async def stop(self) -> None:
        """End the service; containers are not touched."""
        with anyio.CancelScope(shield=True):
            process, self._process = self._process, None
            if process is not None and process.returncode is None:
                process.terminate()
                with anyio.move_on_after(STOP_S):
                    await process.wait()
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            self.socket.unlink(missing_ok=True)
            await self._leave()

    async def _leave(self) -> None:
        """Have this storage's cgroups gone, unless another Corral uses it; monitors end a moment after their box."""
        for _ in range(LEAVE_LOOKS):
            owners = {path.stem.removeprefix("podman-") for path in self._run.glob("podman-*.sock")}
            if any(owner.isdigit() and Path(f"/proc/{owner}").exists() for owner in owners):
                return
            if remove_parents(ROOT, f"corral-{self._run.name}"):
                return
            await anyio.sleep(LEAVE_S)

    async def _start(self) -> None:
        log = self._run / f"podman-{os.getpid()}.log"
        for tries_left in reversed(range(START_TRIES)):
            try:
                process = await self._spawn(log)
            except OSError as error:
                raise HostError(f"the Podman service could not be started: {error}", "run `corral doctor`") from error
            with anyio.move_on_after(READY_S):
                while process.returncode is None:
                    if told := await service_version(self.socket):
                        await self._check_version(told)
                        return
                    await anyio.sleep(0.02)
            code = process.returncode
            tail = log.read_text(errors="replace")[-1500:].strip()
            await self.stop()
            if code is None or code >= 0 or not tries_left:
                break  # only one that a signal ended while it started may do better the next time
        how = f"it was ended by signal {-code}" if code is not None and code < 0 else tail
        raise HostError(f"the Podman service did not come up: {how}", remedy_of(tail))

    async def _check_version(self, told: str) -> None:
        if is_too_old(told):
            await self.stop()
            raise HostError(f"Podman {told} is too old", f"install Podman {OLDEST_PODMAN} or newer")

    async def _spawn(self, log: Path) -> Process:
        self._run.mkdir(parents=True, exist_ok=True, mode=0o700)
        remove_dead_sockets(self._run)
        self.socket.unlink(missing_ok=True)
        # The kernel ends the service when the thread that started it ends: here the event loop's own.
        command = ["setpriv", "--pdeathsig", "TERM", "podman", "system", "service", "--time=0", f"unix://{self.socket}"]
        with log.open("wb") as output:
            process = self._process = await anyio.open_process(
                command, env=self._environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                cwd=self._run,  # a monitor leaves its out-of-memory note in the folder it was started in
                start_new_session=True,  # Ctrl-C is for Corral, which still needs the service to clean up
            )  # fmt: skip
        return process


class ForeignService:
    """A Podman service that somebody else keeps, at a Unix socket; it comes and goes as it likes."""

    def __init__(self, url: str) -> None:
        scheme, _, path = url.partition("://")
        if scheme != "unix" or not path.startswith("/"):
            remedy = (
                "write for example unix:///run/podman/podman.sock, or ssh://user@host/run/user/1000/podman/podman.sock"
            )
            raise HostError(f"rollout.hosts: {url!r} is no address of a Podman service", remedy)
        self.url = url
        self.socket = Path(path)
        self.starts = 1
        self.pid = 0

    async def ensure(self) -> bool:
        """Return while it answers; SandboxError `lost`, which fails what is placed on it, when it does not."""
        if not await service_version(self.socket):
            raise SandboxError("lost", f"the Podman host {self.url} does not answer")
        return False

    async def stop(self) -> None:
        """It is not ours to stop."""

    def remedy(self, said: str) -> str:
        """What to do about one that does not answer."""
        return f"start it (podman system service --time=0 {self.url}) or take it out of rollout.hosts"


@dataclass(frozen=True, slots=True)
class RuntimeContainer:
    """A container as the OCI runtime below Podman knows it."""

    runtime: str
    id: str

    def delete(self) -> None:
        """Kill what runs in it and remove it with its cgroups; no error when it is gone already."""
        subprocess.run([self.runtime, "delete", "--force", self.id], capture_output=True, check=False)


def runtime_containers(storage: Path) -> list[RuntimeContainer]:
    """What the OCI runtime itself has under `storage`: also what a service killed in mid-start left."""
    found: list[RuntimeContainer] = []
    for runtime in ("runc", "crun"):
        command = [runtime, "list", "--format", "json"]
        try:
            shown = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            continue
        if shown.returncode == 0:
            found += listed_containers(runtime, shown.stdout, storage)
    return found


def listed_containers(runtime: str, told: str, storage: Path) -> list[RuntimeContainer]:
    """Those under `storage` in a runtime's own list, which is JSON or nothing."""
    try:
        entries = json.loads(told or "null")
    except ValueError:
        return []
    return [RuntimeContainer(runtime, e["id"]) for e in entries or () if Path(e["bundle"]).is_relative_to(storage)]


def half_made(entries: Sequence[Mapping[str, Any]], before: float) -> list[str]:
    """Ids of containers of which only the storage was made, before then: young ones may be in the making."""
    return [
        entry["Id"]
        for entry in entries
        if entry.get("State") == "storage"
        and entry.get("Command") == ["storage"]  # an image build's are called otherwise
        and datetime.fromisoformat(entry["Created"]).timestamp() < before
    ]


async def service_version(path: Path) -> str:
    """The version of the Podman that listens on `path`; '?' where it does not say, '' where nothing answers."""
    try:
        async with await anyio.connect_unix(path) as stream:
            await stream.send(b"GET /_ping HTTP/1.0\r\n\r\n")
            head = await stream.receive(4096)
    except (OSError, anyio.EndOfStream, anyio.BrokenResourceError):
        return ""
    if not head.startswith(b"HTTP/1."):
        return ""
    found = re.search(rb"^Libpod-API-Version: ([\d.]+)", head, re.M | re.I)
    return found[1].decode() if found else "?"


def remove_dead_sockets(run: Path) -> None:
    """Remove the sockets and logs of owners that are gone."""
    for path in run.glob("podman-*.*"):
        owner = path.stem.removeprefix("podman-")
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            path.unlink(missing_ok=True)


def _frames(data: bytes) -> bytes:
    """Payloads of a multiplexed stream: a byte of which stream, three of nothing, four of length."""
    out = []
    at = 0
    while at + 8 <= len(data):
        length = int.from_bytes(data[at + 4 : at + 8], "big")
        out.append(data[at + 8 : at + 8 + length])
        at += 8 + length
    return b"".join(out)


def _message(content: bytes) -> str:
    try:
        body = json.loads(content)
        return str(body.get("message") or body.get("cause") or body)
    except ValueError:
        return content.decode(errors="replace")[:300]
