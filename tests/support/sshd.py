"""An OpenSSH server of a test's own: on loopback and an unprivileged port, with its own keys, for its own user."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

PROGRAM = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")


@dataclass(frozen=True)
class Sshd:
    """`key` and `config` are what `rollout.ssh_key` and `rollout.ssh_config` take."""

    process: subprocess.Popen[bytes]
    port: int
    key: Path
    config: Path

    def url(self, podman: Path, user: str = "root") -> str:
        return f"ssh://{user}@127.0.0.1:{self.port}{podman}"

    def connections(self) -> list[int]:
        """The server's processes of living connections."""
        import psutil

        with suppress(psutil.NoSuchProcess):
            return [child.pid for child in psutil.Process(self.process.pid).children()]
        return []


@contextmanager
def sshd(folder: Path) -> Iterator[Sshd]:
    assert PROGRAM is not None, "install openssh-server"
    folder.mkdir()
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "known").write_text(f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}")
    (folder / "config").write_text(f"UserKnownHostsFile {folder}/known\nIdentitiesOnly yes\nIdentityAgent none\n")
    (folder / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {folder}/host\nPidFile none\nAuthorizedKeysFile {folder}/user.pub\n"
        "StrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        "PermitRootLogin prohibit-password\nAllowStreamLocalForwarding yes\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True, mode=0o755)  # it insists on this place for its unprivileged half
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([PROGRAM, "-D", "-e", "-f", folder / "sshd_config"], stdout=log, stderr=log)
    server = Sshd(process, port, folder / "user", folder / "config")
    try:
        _wait(port, process, folder / "log")
        yield server
    finally:
        left = server.connections()
        process.kill()
        process.wait()
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, 9)


def _wait(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()
        with socket.socket() as probe, suppress(OSError):
            probe.connect(("127.0.0.1", port))
            return
        time.sleep(0.05)
