"""The unit under a real systemd: a user manager of our own, in a mount namespace and cgroups of its own.

It need not be the machine's init: what systemd asks of a user's manager is that /run/systemd/system is there.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from appliance.config.runconfig import CHECKOUT, home, podman_home
from appliance.errors import CorralError
from appliance.harness.catalog import Shelf
from appliance.operate import service
from appliance.record.store import Store
from appliance.sandbox.images.build import build_images
from appliance.types import RunState
from tests.soak.chaos import monitors

DEADLINE_S = 600.0
SYSTEMD = Path("/lib/systemd/systemd")
HIERARCHIES = [Path("/sys/fs/cgroup") / name for name in ("", "systemd", "unified")]
BEGIN = """
# A manager takes all processes that stand where it stands into a scope of its own, so it must stand alone.
alone=0
while IFS=: read -r number names path; do
    case "$names" in
        ""|name=systemd) [ "$path" = "/$1" ] || exit 97; alone=1 ;;
    esac
done < /proc/self/cgroup
[ "$alone" = 1 ] || exit 97
mount -t tmpfs tmpfs /run/systemd
mkdir /run/systemd/system
exec /lib/systemd/systemd --user
"""
RUN = {
    "harnesses": "pi", "coldstart.rollouts": "60", "rollout.parallel": "1", "train.steps": "0", "rollout.retries": "9",
}  # fmt: skip


@dataclass
class Manager:
    """A systemd user manager and what talks to it."""

    process: subprocess.Popen[bytes]
    environment: dict[str, str]
    folder: Path

    def do(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs a command where this manager is the user's."""
        inside = ["nsenter", "--mount", "--target", str(self.process.pid), "--", *words]
        return subprocess.run(
            inside, env=self.environment, capture_output=True, text=True, check=False, timeout=DEADLINE_S
        )

    def show(self, name: str) -> str:
        """A property of our unit."""
        return self.do("systemctl", "--user", "show", "--value", "-p", name, service.NAME).stdout.strip()

    def until(self, is_true: Callable[[], bool]) -> None:
        """Waits for it; what systemd says of the unit when it does not come."""
        deadline = time.monotonic() + DEADLINE_S
        while not is_true():
            assert time.monotonic() < deadline, self.do("systemctl", "--user", "status", service.NAME).stdout
            time.sleep(0.2)


@pytest.fixture
def manager() -> Iterator[Manager]:
    folder = Path(tempfile.mkdtemp(prefix="corral-systemd-"))  # short: its sockets' paths end at 107 bytes
    folder.chmod(0o711)
    cgroups = [path / folder.name for path in HIERARCHIES if (path / "cgroup.procs").exists()]
    for cgroup in cgroups:
        cgroup.mkdir()
    begin = "".join(f"echo $$ > {cgroup}/cgroup.procs\n" for cgroup in cgroups) + BEGIN
    own = {"HOME": str(folder), "XDG_RUNTIME_DIR": str(folder / "run"), "XDG_CONFIG_HOME": str(folder / "config")}
    own |= {"CORRAL_HOME": str(folder / "home"), "CORRAL_PODMAN_HOME": str(podman_home(home()))}
    (folder / "run").mkdir(mode=0o700)
    (folder / "home").mkdir(mode=0o711)
    environment = os.environ | own
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["unshare", "--mount", "sh", "-euc", begin, "sh", folder.name],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield Manager(process, environment, folder)
    finally:
        process.send_signal(signal.SIGRTMIN + 24)  # systemd's word for: exit
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)
        empty([path / folder.name for path in Path("/sys/fs/cgroup").glob("*")] + cgroups)
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def empty(cgroups: list[Path]) -> None:
    """Ends all that is left in them, and removes them."""
    deadline = time.monotonic() + 60
    for cgroup in cgroups:
        while cgroup.exists() and time.monotonic() < deadline:
            for file in cgroup.rglob("cgroup.procs"):
                for pid in file.read_text().split():
                    with suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
            with suppress(OSError):
                for folder, _, _ in os.walk(cgroup, topdown=False):
                    os.rmdir(folder)
            time.sleep(0.05)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or not SYSTEMD.exists(), reason="needs root, and systemd's program")
def test_systemd_starts_restarts_and_drains_the_run(manager: Manager) -> None:
    build_images(podman_home(home()), [Shelf.of(home()).get("pi")], lambda line: None)
    corral = [sys.executable, "-m", "appliance.cli"]
    settings = [word for key, value in RUN.items() for word in ("--set", f"{key}={value}")]
    demo = str(CHECKOUT / "data" / "demo.toml")
    first = subprocess.Popen([*corral, "train", demo, *settings], env=manager.environment, stdout=subprocess.DEVNULL)
    try:
        manager.until(lambda: state(manager.folder) == "running")
    finally:
        first.kill()  # as if the machine had gone down
        first.wait()
    manager.until(lambda: manager.do("systemctl", "--user", "is-system-running").stdout.strip() != "offline")

    done = manager.do(*corral, "service", "install")
    assert done.returncode == 0 and "systemctl --user enable --now" in done.stdout, done.stderr
    # A test has no two minutes for a hang; everything else is as it was written.
    shorter = manager.folder / "config" / "systemd" / "user" / f"{service.NAME}.d" / "test.conf"
    shorter.parent.mkdir()
    shorter.write_text("[Service]\nWatchdogSec=15\nRestartSec=1\n")
    manager.do("systemctl", "--user", "daemon-reload")
    done = manager.do("systemctl", "--user", "start", service.NAME)  # returns when the supervisor said that it is ready
    assert done.returncode == 0, done.stderr
    assert (manager.show("ActiveState"), manager.show("Type")) == ("active", "notify")

    killed = int(manager.show("MainPID"))
    os.kill(killed, signal.SIGKILL)
    manager.until(lambda: manager.show("NRestarts") == "1" and manager.show("ActiveState") == "active")
    hung = int(manager.show("MainPID"))
    assert hung != killed
    os.kill(hung, signal.SIGSTOP)
    manager.until(lambda: manager.show("NRestarts") == "2" and manager.show("ActiveState") == "active")
    assert int(manager.show("MainPID")) != hung

    done = manager.do("systemctl", "--user", "stop", service.NAME)
    assert done.returncode == 0, done.stderr
    assert (manager.show("ActiveState"), manager.show("Result")) == ("inactive", "success")
    store = Store.open(manager.folder / "home" / "record.db", readonly=True)
    (run,) = store.runs()
    store.close()
    assert run.state is RunState.STOPPED and "interrupted" in run.message
    assert monitors(manager.folder / "home") == []

    assert manager.do(*corral, "service", "remove").returncode == 0
    assert manager.show("LoadState") == "not-found"


def state(folder: Path) -> str:
    """Of the run; '' before there is one."""
    with suppress(CorralError):
        store = Store.open(folder / "home" / "record.db", readonly=True)
        try:
            return next((str(run.state) for run in store.runs()), "")
        finally:
            store.close()
    return ""
