"""A machine that goes down in the middle of rollouts and comes up again: every process, mount and /run is gone at once.

The kernel's boot id cannot be changed from here; nothing of ours reads it, and Podman tells a boot by its /run folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from appliance.config.runconfig import home, podman_home
from appliance.operate.record_check import check
from appliance.record.store import Store
from appliance.sandbox.images.build import base_ref, build_images
from appliance.sandbox.settings import PodmanPlaces, podman_environment
from appliance.types import RolloutState
from tests.soak.chaos import monitors
from tests.support.waiting import until

ROLLOUTS = 8


@pytest.fixture
def own_podman(tmp_path: Path) -> Iterator[Path]:
    """A Podman home of its own with the base image: the shared one's /run must not be emptied."""
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(parent.stat().st_mode | 0o055)
    build_images(podman_home(home()), [], lambda line: None)
    own = tmp_path / "podman-home"
    own.mkdir(mode=0o711)
    archive = tmp_path / "base.tar"
    for environment, words in (
        (podman_environment(podman_home(home())), ["save", "--quiet", "--output", str(archive), base_ref()]),
        (podman_environment(own), ["load", "--quiet", "--input", str(archive)]),
    ):
        subprocess.run(["podman", *words], env=environment, check=True, capture_output=True, timeout=600)
    archive.unlink()
    yield own
    environment = podman_environment(own)
    subprocess.run(["podman", "rm", "--all", "--force", "--time=0"], env=environment, capture_output=True, check=False)
    go_down(tmp_path, own)


def start(folder: Path, own: Path) -> subprocess.Popen[bytes]:
    """Rollouts of the scripted harness, or what is left of them."""
    environment = os.environ | {"CORRAL_HOME": str(folder), "CORRAL_PODMAN_HOME": str(own)}
    words = [sys.executable, "-m", "appliance.bench.scripted_run", str(folder), str(ROLLOUTS), "3"]
    with (folder / "console.log").open("ab") as log:
        return subprocess.Popen(words, env=environment, stdout=log, stderr=log, start_new_session=True)


def go_down(folder: Path, own: Path, supervisor: subprocess.Popen[bytes] | None = None) -> None:
    """What a power cut does to processes, mounts and /run, for this run alone."""
    run = PodmanPlaces.under(own).run
    if supervisor is not None:
        kill_all([supervisor.pid])
        supervisor.wait()
    while roots := monitors(folder / "soak"):  # one may have been starting while the others were ended
        kill_all(roots)
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for place in reversed([m for m in mounts if m.startswith((f"{folder}/", f"{run}/"))]):
        subprocess.run(["umount", "-l", place], capture_output=True, check=False)
    shutil.rmtree(run, ignore_errors=True)


def kill_all(pids: list[int]) -> None:
    """kill -9 of these processes of ours and of all that they started."""
    doomed: list[psutil.Process] = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(pid)
            doomed += [root, *root.children(recursive=True)]
    for process in doomed:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(doomed, timeout=60)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts are taken away as root")
def test_I8_a_reboot_in_the_middle_loses_and_repeats_nothing(own_podman: Path, tmp_path: Path) -> None:
    folder = tmp_path / "soak"
    folder.mkdir(mode=0o711)
    process = start(folder, own_podman)
    try:
        until(lambda: graded(folder) > 0 and len(monitors(folder)) > 1, 600)
        go_down(tmp_path, own_podman, process)
        before = outcomes(folder)
        assert before and monitors(folder) == []
        process = start(folder, own_podman)
        assert process.wait(600) == 0, (folder / "console.log").read_text()[-3000:]
    finally:
        process.kill()
        process.wait()
    after = outcomes(folder)
    assert len(after) == ROLLOUTS and before.items() <= after.items()
    assert not any((folder / "sandboxes").glob("*"))
    until(lambda: monitors(folder) == [])  # Podman's monitors stay for some seconds after their sandbox
    store = Store.open(folder / "record.db", readonly=True)
    assert check(store).is_sound
    store.close()
    left = ["podman", "ps", "--all", "--quiet"]
    environment = podman_environment(own_podman)
    assert subprocess.run(left, env=environment, capture_output=True, check=True, timeout=600).stdout == b""


def outcomes(folder: Path) -> dict[int, tuple[int, float]]:
    """Rollout → attempt and reward, of the graded."""
    store = Store.open(folder / "record.db", readonly=True)
    try:
        rows = store.rows("SELECT id, attempt, reward FROM rollouts WHERE state=?", RolloutState.GRADED)
        return {row["id"]: (row["attempt"], row["reward"]) for row in rows}
    finally:
        store.close()


def graded(folder: Path) -> int:
    """How many are; 0 before there is a record."""
    return len(outcomes(folder)) if (folder / "task").exists() else 0
