"""Room on the disk and the clock, as a supervisor watches them; and the tokens of rollouts."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from appliance.config.runconfig import CHECKOUT, resolve
from appliance.config.sections import RecordSection
from appliance.engine.child import Child, EngineSettings
from appliance.errors import HostError
from appliance.record.access import writing
from appliance.record.store import Store
from appliance.runs.lifecycle import supervise
from appliance.runs.watchdog import check_disk, shortage, watch_clock, watch_disk
from appliance.sandbox.settings import PodmanPlaces, podman_environment
from appliance.types import RunState

HUGE = 1 << 40


def test_a_disk_with_less_than_the_limit_is_named(tmp_path: Path) -> None:
    assert shortage([tmp_path / "not" / "yet"], 0) == ""
    assert f"{tmp_path} has only" in shortage([tmp_path / "not" / "yet"], HUGE)
    with pytest.raises(HostError, match="min_free_gib") as caught:
        check_disk(RecordSection(min_free_gib=HUGE), tmp_path)
    assert "corral db prune" in caught.value.remedy


def test_a_run_on_a_short_disk_fails_before_it_takes_rollouts_and_can_be_resumed(tmp_path: Path) -> None:
    config = resolve(CHECKOUT / "data" / "demo.toml", {"record.min_free_gib": str(HUGE)})
    with writing(tmp_path) as store:
        store.create_run("r", "r", config.model_dump(mode="json"), 0, "")
    assert supervise(tmp_path, "r", lambda event: None) == "failed"
    store = Store.open(tmp_path / "record.db", readonly=True)
    assert store.run("r").state is RunState.FAILED and "min_free_gib" in store.run("r").message
    assert store.rollouts("r") == []
    store.close()


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.real
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system as root")
def test_a_disk_that_fills_up_is_told_once_while_there_is_room_left(tmp_path: Path) -> None:
    told: list[str] = []

    async def fill(disk: Path) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(watch_disk, [disk], 4 / 1024, told.append)
            await anyio.sleep(0.1)
            assert told == []
            (disk / "grows").write_bytes(bytes(6 << 20))

    with small_disk(tmp_path / "disk") as disk:
        anyio.run(fill, disk)
    assert len(told) == 1 and "min_free_gib" in told[0] and "free some space" in told[0]


@pytest.mark.real
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system as root")
def test_a_record_on_a_full_disk_says_so_and_keeps_what_it_has(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        store = Store.open(disk / "record.db")
        store.create_run("r", "r", {}, 0, "")
        with (disk / "ballast").open("wb") as ballast, pytest.raises(OSError, match="No space"):
            while True:
                ballast.write(bytes(65536))
                ballast.flush()
        with pytest.raises(Exception, match="no space left for the record") as caught:
            for n in range(10_000):
                store.log("info", "test", f"{n} " + "x" * 4000, "r")
        assert "corral resume" in str(caught.value)
        (disk / "ballast").unlink()
        store.log("info", "test", "goes on", "r")
        assert store.rows("PRAGMA integrity_check")[0][0] == "ok" and store.events("r")[-1]["message"] == "goes on"
        store.close()


def test_a_clock_that_jumps_is_told_once_each_way_and_slewing_is_not() -> None:
    wall = iter([1000.0, 1001.0, 1003.0, 4604.0, 4605.0, 105.0, 106.0])
    steady = iter([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    told: list[str] = []

    async def look() -> None:
        await watch_clock(told.append, lambda: next(wall), lambda: next(steady), every_s=0)

    with pytest.raises(RuntimeError):  # the readings are used up
        anyio.run(look)
    assert [line.partition(";")[0] for line in told] == [
        "the clock jumped 3601 s forwards", "the clock jumped 4501 s backwards",
    ]  # fmt: skip


def test_a_real_clock_does_not_jump() -> None:
    told: list[str] = []

    async def look() -> None:
        with anyio.move_on_after(0.05):
            await watch_clock(told.append, time.time, time.monotonic, every_s=0.01)

    anyio.run(look)
    assert told == []


def test_the_folder_of_sockets_shows_nothing_to_others(tmp_path: Path) -> None:
    podman_environment(tmp_path)
    run = PodmanPlaces.under(tmp_path).run
    assert stat.S_IMODE(run.stat().st_mode) == 0o711
    run.rmdir()


def test_the_engines_socket_lies_in_a_folder_of_its_owner_alone(tmp_path: Path) -> None:
    program = (sys.executable, "-c", "import time; time.sleep(60)")
    settings = EngineSettings(model=tmp_path, log=tmp_path / "engine.log", program=program)
    modes = []

    async def look() -> None:
        child = await Child.start(settings)
        modes.append(stat.S_IMODE(child.socket.parent.stat().st_mode))
        await child.stop()
        assert not child.socket.parent.exists()

    anyio.run(look)
    assert modes == [0o700]


def test_the_record_and_its_journal_are_for_their_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = Store.open(tmp_path / "record.db")
        store.create_run("r", "r", {}, 0, "")
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.glob("record.db*")}
        store.close()
    finally:
        os.umask(before)
    assert set(modes) >= {"record.db", "record.db-wal"} and set(modes.values()) == {0o600}
