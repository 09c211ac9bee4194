"""Rootless Podman as a user that the test makes: whole rollouts, what is weaker, and this user as a host by ssh."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from appliance.bench.scripted_run import place_for, small_run
from appliance.config.runconfig import CHECKOUT, home, podman_home
from appliance.config.sections import RolloutSection
from appliance.sandbox.hosts import check_images, open_hosts, reconcile
from appliance.sandbox.images.build import base_ref, build_images
from appliance.sandbox.pool import Pool
from appliance.sandbox.settings import podman_environment
from tests.support.sshd import sshd

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="for this user every other test is a rootless one already"),
]
READ_ALL = ("--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search")


@dataclass(frozen=True)
class User:
    name: str
    uid: int
    home: Path

    def command(self, *words: str) -> list[str]:
        number = str(self.uid)
        return ["setpriv", "--reuid", number, "--regid", number, "--init-groups", *READ_ALL, *words]

    def environment(self) -> dict[str, str]:
        kept = {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin", "PYTHONPATH": str(CHECKOUT)}
        return kept | {"HOME": str(self.home), "USER": self.name, "LOGNAME": self.name}

    def worker(self, mode: str, folder: Path, archive: Path) -> list[str]:
        return self.command(
            sys.executable, str(Path(__file__).with_name("rootless_worker.py")), mode, str(folder), str(archive)
        )


def made(has_ids: bool) -> Iterator[User]:
    name = f"corral{os.getpid() % 100_000}{'i' if has_ids else 'n'}"
    subprocess.run(["useradd", "--create-home", "--user-group", "--password", "*", name], check=True)
    for file in ("/etc/subuid", "/etc/subgid"):  # useradd gives some of its own accord
        subprocess.run(["sed", "-i", f"/^{name}:/d", file], check=True)
    if has_ids:
        ids = "700000-765535"
        subprocess.run(["usermod", "--add-subuids", ids, "--add-subgids", ids, name], check=True)
    entry = subprocess.run(["getent", "passwd", name], capture_output=True, text=True, check=True).stdout.split(":")
    user = User(name, int(entry[2]), Path(entry[5]))
    try:
        yield user
    finally:
        # Its storage belongs to ids of a user namespace, which Podman itself enters; the second ends its keeper.
        for words in (["podman", "system", "reset", "--force"], ["podman", "system", "migrate"]):
            subprocess.run(user.command(*words), env=user.environment(), cwd="/", capture_output=True, check=False)
        for place in (f"/tmp/corral-{user.uid}", f"/tmp/podman-run-{user.uid}", f"/tmp/containers-user-{user.uid}"):
            shutil.rmtree(place, ignore_errors=True)
        Path(f"/dev/shm/libpod_rootless_lock_{user.uid}").unlink(missing_ok=True)  # the number is used again
        subprocess.run(["userdel", "--remove", "--force", name], capture_output=True, check=False)


@pytest.fixture
def user() -> Iterator[User]:
    yield from made(has_ids=True)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """The base image, where everybody can read it."""
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(parent.stat().st_mode | 0o055)
    build_images(podman_home(home()), [], print)
    file = tmp_path / "base.tar"
    command = ["podman", "save", "--quiet", "--output", str(file), base_ref()]
    subprocess.run(command, env=podman_environment(podman_home(home())), check=True, capture_output=True)
    file.chmod(0o644)
    return file


def run(user: User, mode: str, archive: Path) -> dict[str, Any]:
    done = subprocess.run(
        user.worker(mode, user.home / "corral", archive), env=user.environment(), cwd="/", capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_a_user_who_is_not_root_makes_rollouts_and_is_told_what_is_weaker(user: User, archive: Path) -> None:
    told = run(user, "rollouts", archive)
    assert told["rollouts"] == [["graded", 1.0, ""]] * 2
    who, *rest = told["probe"]
    maps = [line.split() for line in rest if len(line.split()) == 3]
    assert who == "1000" and ["1000", "0", "1"] in maps and maps[0][1] != "0"  # ids of a namespace inside another
    assert any("unshare" in line and "not permitted" in line for line in rest)
    assert "lo" in rest and not any("eth" in line for line in rest)
    assert any("touch" in line and "Read-only" in line for line in rest)
    assert told["full"] == "sandbox:disk_full"  # no quota, but looked at
    assert told["left"] == []
    podman, sandbox = told["doctor"]
    assert podman["ok"] and sandbox["found"].startswith("rootless") and "no quota" in sandbox["found"]


def test_a_user_without_ids_is_told_the_remedy(archive: Path) -> None:
    for user in made(has_ids=False):
        told = run(user, "refused", archive)
        assert told["error"] and "usermod --add-subuids" in told["remedy"], told
        assert "usermod --add-subuids" in told["doctor"][0]["remedy"] and not told["doctor"][0]["ok"]


def test_that_user_is_a_host_by_ssh(user: User, archive: Path, tmp_path: Path) -> None:
    folder = user.home / "corral"
    with subprocess.Popen(user.worker("serve", folder, archive), env=user.environment(), cwd="/") as service:
        try:
            deadline = time.monotonic() + 120
            while not (folder / "podman.sock").exists():
                assert service.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
            with sshd(tmp_path / "sshd") as server:
                settings = RolloutSection(
                    hosts=(server.url(folder / "podman.sock", user.name),), parallel=2,
                    ssh_key=str(server.key), ssh_config=str(server.config),
                )  # fmt: skip
                anyio.run(over_there, settings, tmp_path / "record")
        finally:
            service.terminate()
            service.wait(60)


async def over_there(settings: RolloutSection, folder: Path) -> None:
    async with AsyncExitStack() as stack:
        place = await stack.enter_async_context(place_for(folder, 2))
        _, far = hosts = await open_hosts(stack, podman_home(home()), settings)
        await check_images(hosts, {"base": base_ref()})
        assert not far.podman.traits.is_root and not far.podman.traits.can_mount
        labels = {"corral.owner": f"rootless{os.getpid()}"}
        async with Pool([far], folder / "sandboxes", labels, at_most=0) as pool:
            ended = await small_run(replace(place, pool=pool), 2, 2, lambda done: None)
        assert [(str(r.state), r.reward, r.failure) for r in ended] == [("graded", 1.0, "")] * 2
        told: list[str] = []
        await reconcile(hosts, labels["corral.owner"], "", lambda level, part, message: told.append(message))
        assert told == [] and far.podman.far is not None
        assert await far.podman.far.run(f"ls {far.podman.far._base}/sandboxes") == b""
