"""`corral sandboxes`, and what is left after a kill -9 at a random moment."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import psutil
import pytest

from appliance.config.runconfig import home, podman_home
from appliance.errors import HostError
from appliance.record.store import Store
from appliance.sandbox import workspace
from appliance.sandbox.admin import sandboxes
from appliance.sandbox.images.build import base_ref, build_images
from appliance.sandbox.podman import Podman, SandboxSpec
from appliance.sandbox.service import runtime_containers
from appliance.sandbox.settings import PodmanPlaces, owner_of
from appliance.sandbox.spec import is_alive, maker
from appliance.system.cgroup import ROOT, ids_under
from appliance.types import RolloutState

ROLLOUTS_A_MOMENT, PARALLEL = 8, 4
MOMENTS = int(os.environ.get("CORRAL_TEST_KILLS", "6"))
DEADLINE_S = 1800.0
REMOVAL_S = 3.0
VICTIMS = ("supervisor", "service", "conmon")


def corral(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "appliance.cli", "sandboxes", *arguments], capture_output=True, text=True, check=False,
        timeout=120,
    )  # fmt: skip


def test_a_process_is_alive_under_its_own_start_time_only() -> None:
    assert is_alive(maker())
    assert not is_alive(f"{os.getpid()}:1")
    assert not is_alive("")
    assert not is_alive("99999999:5")


@pytest.mark.parametrize(
    ("podman", "said"), [("echo boom >&2; exit 125", "boom"), ("echo podman version 9", "other words than JSON")]
)
def test_a_podman_that_does_not_answer_is_told_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, podman: str, said: str
) -> None:
    (tmp_path / "podman").write_text(f"#!/bin/sh\n{podman}\n")
    (tmp_path / "podman").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(HostError, match=said) as caught:
        sandboxes(tmp_path / "home")
    assert "corral doctor" in caught.value.remedy


@pytest.mark.real
def test_sandboxes_are_listed_stopped_and_pruned() -> None:
    build_images(podman_home(home()), [], print)
    name = f"corral-list-{os.getpid()}"
    anyio.run(listed_and_stopped, name)
    assert corral("stop", name).returncode == 1
    missing = json.loads(corral("stop", name, "--json").stdout)
    assert name in missing["error"] and "corral sandboxes list" in missing["remedy"]


async def listed_and_stopped(name: str) -> None:
    async with Podman(podman_home(home())) as podman:
        try:
            await podman.start(SandboxSpec(name, base_ref(), ("sh", "-c", "echo it has begun; exec sleep 600")))
            rows = json.loads((await anyio.to_thread.run_sync(corral, "list", "--json")).stdout)["sandboxes"]
            (row,) = [row for row in rows if row["name"] == name]
            assert (row["state"], row["owner"], row["image"]) == ("running", "alive", base_ref())
            assert name in (await anyio.to_thread.run_sync(corral)).stdout
            log = json.loads((await anyio.to_thread.run_sync(corral, "logs", name, "--json")).stdout)
            assert log == {"sandbox": name, "log": "it has begun\n"}
            pruned = json.loads((await anyio.to_thread.run_sync(corral, "prune", "--json")).stdout)["removed"]
            assert name not in pruned  # its maker, this process, lives
            stopped = await anyio.to_thread.run_sync(corral, "stop", name[:-1], "--grace", "0", "--json")
            assert json.loads(stopped.stdout) == {"stopped": name}, stopped
            assert (await podman._state(name))["Status"] in ("exited", "stopped")
        finally:
            await podman.remove(name)


ORPHAN = """
import sys, anyio
from pathlib import Path
from appliance.sandbox import spec
from appliance.sandbox.images.build import base_ref
from appliance.sandbox.podman import Limits, Podman, SandboxSpec
spec.DEAD_MAN_GRACE_S = 9
async def main(home, name):
    async with Podman(Path(home)) as podman:
        limits = Limits(timeout_s=1.0, grace_s=0.0)
        started = await podman.start(SandboxSpec(name, base_ref(), ("sleep", "600"), limits=limits))
        print(started.pid, podman.service_pid, flush=True)
        await anyio.sleep(600)
anyio.run(main, *sys.argv[1:])
"""


@pytest.mark.real
def test_a_sandbox_ends_by_its_monitor_when_supervisor_and_service_are_gone() -> None:
    build_images(podman_home(home()), [], print)
    name = f"corral-orphan-{os.getpid()}"
    command = [sys.executable, "-c", ORPHAN, str(podman_home(home())), name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as maker_of_it:
        try:
            assert maker_of_it.stdout is not None
            sandbox, service = map(psutil.Process, map(int, maker_of_it.stdout.readline().split()))
        finally:
            maker_of_it.kill()
    try:
        psutil.wait_procs([service], timeout=60)
        assert not service.is_running() and sandbox.is_running()  # nobody of ours is left to end it
        assert psutil.wait_procs([sandbox], timeout=120)[0] == [sandbox]
    finally:
        anyio.run(removed, name)


async def removed(name: str) -> None:
    async with Podman(podman_home(home())) as podman:
        await podman.remove(name)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(parent.stat().st_mode | 0o055)
    build_images(podman_home(home()), [], print)
    yield tmp_path.resolve()
    for left in (tmp_path / "sandboxes").glob("*"):  # of a test that failed: pytest cannot delete what is mounted
        workspace.remove(left)


@pytest.mark.real
@pytest.mark.slow
def test_I8_kill_9_at_random_moments_leaves_nothing_and_repeats_nothing(folder: Path) -> None:
    """Supervisor, Podman service and monitors by turns; each start finds what the last left. Seeded and printed."""
    seed = int(os.environ.get("CORRAL_TEST_SEED", "0"))
    chance = random.Random(seed)
    print("seed", seed)
    graded: dict[int, int] = {}
    for moment in range(MOMENTS):
        victim = VICTIMS[moment % len(VICTIMS)]
        process = start(folder, (moment + 1) * ROLLOUTS_A_MOMENT)
        try:
            graded |= killed(folder, process, victim, chance.uniform(0.0, 4.0))
        finally:
            end(process)
        assert_kept(folder, graded)
    done = start(folder, MOMENTS * ROLLOUTS_A_MOMENT)
    try:
        assert done.wait(DEADLINE_S) == 0
    finally:
        end(done)
    assert_kept(folder, graded)
    assert len(graded_of(folder)) == MOMENTS * ROLLOUTS_A_MOMENT
    assert anyio.run(left_behind, folder) == []


def start(folder: Path, count: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "appliance.bench.scripted_run", str(folder), str(count), str(PARALLEL)]
    with (folder / "console.log").open("ab") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=log, start_new_session=True,
            env=os.environ | {"CORRAL_PODMAN_HOME": str(podman_home(home()))},
        )  # fmt: skip


def killed(folder: Path, process: subprocess.Popen[bytes], victim: str, after_s: float) -> dict[int, int]:
    """kill -9 of the victim, so long after its first sandbox; rollout → attempt of those that were graded then."""
    deadline = time.monotonic() + DEADLINE_S
    while process.poll() is None and not list((folder / "sandboxes").glob("*")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(after_s)
    before = graded_of(folder)
    victims = {"supervisor": [process.pid], "service": services(process.pid), "conmon": monitors(folder)}[victim]
    for pid in victims:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if victim != "supervisor":
        process.wait(DEADLINE_S)  # it goes on to its end without it
        assert process.returncode == 0, (folder / "console.log").read_text()[-3000:]
    return before


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def services(pid: int) -> list[int]:
    with suppress(psutil.NoSuchProcess):
        return [p.pid for p in psutil.Process(pid).children(recursive=True) if "service" in p.cmdline()]
    return []


def monitors(folder: Path) -> list[int]:
    """The monitors of this record's sandboxes, told by their container's name."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            line = process.cmdline()
            if line and line[0].endswith("conmon") and any(owner_of(folder) in word for word in line):
                found.append(process.pid)
    return found


def graded_of(folder: Path) -> dict[int, int]:
    store = Store.open(folder / "record.db", readonly=True)
    try:
        return {r.id: r.attempt for r in store.rollouts("small") if r.state is RolloutState.GRADED}
    finally:
        store.close()


def assert_kept(folder: Path, graded: dict[int, int]) -> None:
    """Every rollout that had a grade has it still, from the same attempt: none was made again."""
    now = graded_of(folder)
    assert {number: now.get(number) for number in graded} == graded


async def left_behind(folder: Path) -> list[str]:
    """Sandboxes, folders, file systems, processes, cgroups and the folder of sockets that outlived the run."""
    places = PodmanPlaces.under(podman_home(home()))
    async with Podman(podman_home(home())) as podman:
        left = await podman.list({"corral.owner": owner_of(folder)})
        with_cgroups = ids_under(ROOT, places.cgroup)
        known = {entry["Id"] for entry in await podman.request("GET", "/containers/json", {"all": "true"})}
        await anyio.sleep(REMOVAL_S)  # others may share this storage, and be removing one
        left += [f"cgroup of {name}" for name in (with_cgroups - known) & ids_under(ROOT, places.cgroup)]
    left += [str(path) for path in [PodmanPlaces.under(folder).run] if path.exists()]
    left += [c.id for c in runtime_containers(places.storage) if c.id not in known]
    left += [str(path) for path in (folder / "sandboxes").glob("*")]
    left += [line for line in Path("/proc/mounts").read_text().splitlines() if str(folder) in line]
    left += [str(pid) for pid in monitors(folder)]
    return left
