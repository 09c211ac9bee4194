"""Another machine, reached by the system's own ssh: one connection that carries sockets both ways and runs commands.

The connection is a child that ends with us (`ssh -N` with a control socket in the record's private run folder). All
else goes through it: the Podman service's socket comes here, a proxy's socket goes there, and each command is a
session of it, which costs no further log-in. It is opened when it is first needed, and again when it broke, after a
pause that doubles up to a minute. User's keys, known hosts, aliases and jump hosts are those of their ssh settings;
nothing is ever asked for (BatchMode).
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

import anyio
from anyio.abc import ByteReceiveStream, Process

from appliance.errors import HostError, SandboxError
from appliance.sandbox.service import remove_dead_sockets, service_version

OPTIONS = (
    "BatchMode=yes", "ConnectTimeout=15", "ServerAliveInterval=15", "ServerAliveCountMax=3", "ForwardAgent=no",
    "ForwardX11=no", "PermitLocalCommand=no", "RequestTTY=no", "ClearAllForwardings=yes", "ControlMaster=yes",
    "ControlPersist=no", "LogLevel=ERROR",
)  # fmt: skip
CONNECT_S = 30.0
COMMAND_S = 60.0
SESSIONS = 6  # a stock sshd grants ten a connection
LONGEST_PAUSE_S = 60.0
EXAMPLE = "ssh://user@host/run/user/1000/podman/podman.sock"
REMEDIES = {
    r"host key verification failed": "log in there once by hand, so that its key is known: ssh {login}",
    r"permission denied": "its key must be accepted without a question: ssh-copy-id {login}, or rollout.ssh_key",
    r"could not resolve|no route|refused|timed out": "check its name and port: ssh {login} true",
    r"execute ssh|no such file.*(ssh|setpriv)": "install the ssh client (package openssh-client)",
    r"identity file|config file|bad configuration": "check rollout.ssh_key and rollout.ssh_config",
}


@dataclass(frozen=True, slots=True)
class Address:
    """ssh://[user@]host[:port]/path/of/the/podman.sock"""

    url: str
    user: str
    host: str
    port: int | None
    socket: str

    @classmethod
    def parse(cls, url: str) -> Address:
        """HostError for one that ssh or its forwarding would read otherwise."""
        try:
            parts = urlsplit(url)
            user, host, port = parts.username or "", parts.hostname or "", parts.port
        except ValueError:
            user = host = ""
            parts, port = urlsplit(""), None
        is_good = (
            parts.scheme == "ssh"
            and re.fullmatch(r"[A-Za-z0-9][\w.:-]*", host, re.A)
            and re.fullmatch(r"([A-Za-z_][\w.-]*)?", user, re.A)
            and re.fullmatch(r"/[\w./@+-]+", parts.path, re.A)
            and not (parts.password or parts.query or parts.fragment)
        )
        if not is_good:
            raise HostError(f"rollout.hosts: {url!r} is no address of a Podman service", f"write for example {EXAMPLE}")
        return cls(url, user, host, port, parts.path)

    @property
    def login(self) -> str:
        """What ssh calls it, and people."""
        return f"{self.user}@{self.host}" if self.user else self.host


class Ssh:
    """The connection to one machine: `ensure`, then `run`; `socket` is the Podman service there, brought here."""

    def __init__(self, url: str, run: Path, key: str = "", config: str = "") -> None:
        """`run`: a private folder for its sockets. `key`, `config`: files for ssh -i and -F, '' for the user's own."""
        self.url = url
        self.address = Address.parse(url)
        self.starts = 0
        self.pid = 0
        self._run = run
        self._files = [("-i", key), ("-F", config)]
        self._forwards: dict[str, tuple[Path, int | None]] = {}
        self._lock = anyio.Lock()
        self._carrying = anyio.Lock()
        self._sessions = anyio.CapacityLimiter(SESSIONS)
        self._process: Process | None = None
        self._pause_s = 1.0
        self._not_before = 0.0
        self._said = ""
        self.socket = run / f"podman-{os.getpid()}.sock"
        self._control = run / f"podman-{os.getpid()}.ctl"
        self._log = run / f"podman-{os.getpid()}.log"

    async def ensure(self) -> bool:
        """Return once it is connected; True if it had to be. SandboxError `lost` while it cannot be."""
        async with self._lock:
            if self._process is not None and self._process.returncode is None:
                return False
            if time.monotonic() < self._not_before:
                raise self._lost(f"is not connected: {self._said or 'the connection broke'}")
            try:
                with anyio.CancelScope(shield=True):  # half a connection would be nobody's
                    await self._connect()
            except (OSError, SandboxError) as error:
                self._not_before = time.monotonic() + self._pause_s
                self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
                await self._end()
                said = error.message if isinstance(error, SandboxError) else str(error)
                self._said = said.removeprefix(f"the Podman host {self.url} ")
                raise self._lost(f"cannot be reached: {self._said}") from error
            self._pause_s, self._not_before = 1.0, 0.0
            self.starts += 1
            return True

    async def stop(self) -> None:
        """End the connection; what runs there is not touched."""
        with anyio.CancelScope(shield=True):
            await self._end()

    async def run(
        self, script: str, feed: bytes | IO[bytes] = b"", into: IO[bytes] | None = None, limit: int = 1 << 20
    ) -> bytes:
        """Run shell text there with `feed` as its input; its output, written into `into` where that is given.

        SandboxError `lost` when it fails or the connection does, `disk_full` for an output over `limit` bytes.
        """
        command = [*self._client(), "-o", "ProxyCommand=false", self.address.login, f"sh -c {shlex.quote(script)}"]
        try:
            async with self._sessions:
                with anyio.fail_after(COMMAND_S + limit / 4e6):
                    code, out, said = await _run(command, feed, into, limit)
        except TimeoutError as error:
            raise self._lost("did not answer a command in time") from error
        if code:
            told = said.decode(errors="replace").strip()[-400:]
            raise self._lost(f"could not do what it was told (exit code {code}): {told}")
        return out

    async def carry(self, local: Path, there: str, owner: int | None) -> None:
        """Have connections to the socket `there`, which only `owner` (a uid; None: the user) may use, come to `local`.

        Kept over reconnections.
        """
        async with self._carrying:  # the second would remove the first's socket
            if there not in self._forwards:
                await self._carry(local, there, owner)
                self._forwards[there] = (local, owner)

    def remedy(self, said: str) -> str:
        """What to do about a connection that fails so."""
        for words, remedy in REMEDIES.items():
            if re.search(words, said, re.I):
                port = f"-p {self.address.port} " if self.address.port else ""
                return remedy.format(login=port + self.address.login)
        return f"have a Podman service listen there at {self.address.socket}: systemctl --user start podman.socket"

    # ------------------------------------------------------------------ the connection

    async def _connect(self) -> None:
        self._run.mkdir(parents=True, exist_ok=True, mode=0o700)
        remove_dead_sockets(self._run)
        await self._end()
        port = [] if self.address.port is None else ["-p", str(self.address.port)]
        files = [word for option, name in self._files if name for word in (option, str(Path(name).expanduser()))]
        options = [word for option in OPTIONS for word in ("-o", option)]
        command = ["setpriv", "--pdeathsig", "TERM", "ssh", "-N", "-S", str(self._control), *options, *files, *port]
        with self._log.open("wb") as log:
            self._process = await anyio.open_process(
                [*command, self.address.login], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,  # Ctrl-C is for Corral, which still needs it to clean up
            )  # fmt: skip
        with anyio.move_on_after(CONNECT_S):
            while self._process.returncode is None and not self._control.exists():
                await anyio.sleep(0.02)
        if self._process.returncode is not None or not self._control.exists():
            raise self._lost(self._log.read_text(errors="replace").strip()[-400:] or "ssh ended without a word")
        self.pid = self._process.pid
        await self._ask("forward", "-L", f"{self.socket}:{self.address.socket}")
        if not await service_version(self.socket):
            raise self._lost(f"nothing answers at {self.address.socket} there")
        for there, (local, owner) in self._forwards.items():
            await self._carry(local, there, owner)

    async def _carry(self, local: Path, there: str, owner: int | None) -> None:
        folder, name = shlex.quote(os.path.dirname(there)), shlex.quote(there)
        await self.run(f"mkdir -p {folder} && chmod 711 {folder} && rm -f {name}")
        await self._ask("forward", "-R", f"{there}:{local}")
        if owner is not None:
            await self.run(f"chown {owner}:{owner} {name}")

    async def _ask(self, act: str, *words: str) -> None:
        """Tell the connection something; SandboxError `lost` when it refuses."""
        command = [*self._client(), "-O", act, *words, self.address.login]
        with anyio.move_on_after(CONNECT_S):
            code, _, said = await _run(command, b"", None, 1 << 16)
            if not code:
                return
            raise self._lost(f"refuses to {act} {' '.join(words)}: {said.decode(errors='replace').strip()[-300:]}")
        raise self._lost(f"does not {act}")

    def _client(self) -> Sequence[str]:
        """A client of the connection, which has read all settings already."""
        return ["ssh", "-F", "none", "-T", "-o", "StreamLocalBindUnlink=yes", "-S", str(self._control)]

    async def _end(self) -> None:
        process, self._process, self.pid = self._process, None, 0
        if process is not None:
            if process.returncode is None:
                process.terminate()
                with anyio.move_on_after(5):
                    await process.wait()
            if process.returncode is None:
                process.kill()
                await process.wait()
        for path in (self.socket, self._control):
            path.unlink(missing_ok=True)

    def _lost(self, what: str) -> SandboxError:
        return SandboxError("lost", f"the Podman host {self.url} {what}")


async def _run(
    command: Sequence[str], feed: bytes | IO[bytes], into: IO[bytes] | None, limit: int
) -> tuple[int, bytes, bytes]:
    """(exit code, output, error output) of one command; SandboxError `disk_full` for an output over the limit."""
    out = into or io.BytesIO()
    said: list[bytes] = []
    size = 0
    with tempfile.TemporaryFile() as own:
        if isinstance(feed, bytes):
            own.write(feed)
            own.seek(0)
        process = await anyio.open_process(
            command, stdin=own if isinstance(feed, bytes) else feed, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        async with process, anyio.create_task_group() as tasks:
            assert process.stdout is not None and process.stderr is not None
            tasks.start_soon(_keep_last, process.stderr, said)
            async for chunk in process.stdout:
                size += len(chunk)
                if size > limit:
                    process.kill()
                    break
                out.write(chunk)
            await process.wait()
            if size > limit:
                tasks.cancel_scope.cancel()
    if size > limit:
        raise SandboxError("disk_full", f"more than {limit} bytes came out of it")
    assert process.returncode is not None
    return process.returncode, out.getvalue() if isinstance(out, io.BytesIO) else b"", b"".join(said)


async def _keep_last(stream: ByteReceiveStream, said: list[bytes]) -> None:
    """What a command says of itself; a little is enough."""
    async for chunk in stream:
        said.append(chunk)
        del said[:-4]
