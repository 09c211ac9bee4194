"""Waiting sandboxes: how many, how they get their command, where they are placed."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import cast

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import GraderError, SandboxError
from appliance.sandbox.podman import Limits, Podman, SandboxSpec, Started
from appliance.sandbox.pool import Host, Kind, Pool, num_wanted
from appliance.sandbox.settings import HostTraits
from appliance.sandbox.spec import launch_script
from appliance.system.cgroup import Counters, ids_under, remove_empty, remove_parents


def test_as_many_wait_as_are_taken_while_two_are_made_and_one_more() -> None:
    taken = [100.0, 101.0, 102.0, 103.0]  # four in four seconds, one takes 1.5 s to make
    assert num_wanted(taken, 104.0, 1.5, 8) == 4
    assert num_wanted(taken, 104.0, 1.5, 2) == 2
    assert num_wanted(taken, 200.0, 1.5, 8) == 0
    assert num_wanted(taken, 104.0, 1.5, -3) == 0


@given(st.lists(st.floats(0, 1e3), max_size=50).map(sorted), st.floats(0, 60), st.integers(-5, 64))
def test_never_more_than_at_most_and_never_negative(taken: list[float], make_s: float, at_most: int) -> None:
    assert 0 <= num_wanted(taken, 1e3, make_s, at_most) <= max(at_most, 0)


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=4))
def test_every_word_reaches_the_command_as_it_is(words: list[str]) -> None:
    script = launch_script(("printf", "%s\\0", "first", *words), {"A": "it's $HOME"}, "/")
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == ["first", *words]
    assert shlex.quote("it's $HOME") in script


@pytest.mark.parametrize(("argv", "env"), [(("a\0b",), {}), (("a",), {"x;y": "1"}), (("a",), {"1x": "1"})])
def test_what_a_shell_cannot_take_is_refused(argv: tuple[str, ...], env: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"NUL|name"):
        launch_script(argv, env, "/")


def test_counters_are_read_from_cgroup_v1(tmp_path: Path) -> None:
    proc = tmp_path / "proc/7"
    proc.mkdir(parents=True)
    (proc / "cgroup").write_text("4:memory:/box\n3:pids:/box\n2:cpuacct:/box\n1:cpuset:/\n0::/\n")
    for controller, files in {
        "memory": {"memory.oom_control": "oom_kill_disable 0\noom_kill 2\n", "memory.max_usage_in_bytes": "4096\n"},
        "pids": {"pids.events": "max 5\n"},
        "cpuacct": {"cpuacct.usage": "1500000000\n"},
    }.items():
        (tmp_path / controller / "box").mkdir(parents=True)
        for name, text in files.items():
            (tmp_path / controller / "box" / name).write_text(text)
    counters = Counters.of(7, tmp_path, tmp_path / "proc")
    counters.look()
    assert (counters.cpu_s, counters.refused_forks, counters.memory_kills, counters.peak_bytes) == (1.5, 5, 2, 4096)
    (tmp_path / "pids/box/pids.events").unlink()  # it has ended: what was seen stays
    counters.look()
    assert counters.refused_forks == 5


def test_counters_are_read_from_cgroup_v2(tmp_path: Path) -> None:
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/cgroup").write_text("0::/box\n")
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    (tmp_path / "box").mkdir()
    (tmp_path / "box/cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    (tmp_path / "box/memory.events").write_text("low 0\nmax 9\noom 3\noom_kill 1\n")
    (tmp_path / "box/pids.events").write_text("max 4\n")
    (tmp_path / "box/memory.peak").write_text("8192\n")
    counters = Counters.of(7, tmp_path, tmp_path / "proc")
    counters.look()
    assert (counters.cpu_s, counters.refused_forks, counters.memory_kills, counters.peak_bytes) == (2.5, 4, 1, 8192)


def test_only_empty_cgroups_of_unknown_containers_are_removed(tmp_path: Path) -> None:
    for name in ("libpod-aa", "libpod-bb", "libpod-conmon-cc", "libpod-dd", "other"):
        (tmp_path / "memory/corral-x" / name).mkdir(parents=True)
    (tmp_path / "memory/corral-x/libpod-dd/child").mkdir()  # in use: rmdir fails
    assert remove_empty(tmp_path, "corral-x", {"bb"}) == ["aa", "cc"]
    assert sorted(p.name for p in (tmp_path / "memory/corral-x").iterdir()) == ["libpod-bb", "libpod-dd", "other"]


def test_the_cgroups_of_a_storage_go_when_they_are_empty_and_no_others_do(tmp_path: Path) -> None:
    for name in ("corral-x/conmon", "corral-x/libpod-aa", "corral-y/conmon", "other/conmon"):
        (tmp_path / "memory" / name).mkdir(parents=True)
        (tmp_path / "pids" / name).mkdir(parents=True)
    (tmp_path / "pids/corral-x/conmon/process").mkdir()  # in use: rmdir fails
    assert ids_under(tmp_path, "corral-x") == {"aa"}
    assert not remove_parents(tmp_path, "corral-x")
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.glob("*/*")) == [
        "memory/corral-y", "memory/other", "pids/corral-x", "pids/corral-y", "pids/other",
    ]  # fmt: skip
    (tmp_path / "pids/corral-x/conmon/process").rmdir()
    assert remove_parents(tmp_path, "corral-x") and not (tmp_path / "pids/corral-x").exists()


class Deaf:
    """A Podman that starts sandboxes and answers nothing afterwards."""

    traits = replace(HostTraits.read(), is_root=False, can_mount=False)
    far = None

    async def start(self, spec: SandboxSpec) -> Started:
        return Started(spec, 0.0, 0)

    async def remove(self, name: str) -> None:
        raise SandboxError("lost", f"{name} could not be removed")


def test_a_sandbox_that_cannot_be_removed_changes_nothing_about_its_rollout(tmp_path: Path) -> None:
    ends: list[str] = []

    async def use() -> None:
        host = Host(cast(Podman, Deaf()))
        async with Pool([host], tmp_path / "sandboxes", {"corral.owner": "test"}, at_most=0) as pool:
            kind = Kind("image", Limits(memory_bytes=1 << 20), tmp_path)
            async with pool.slot(kind, "1-1"):
                ends.append("graded")
            with pytest.raises(GraderError, match="nonsense"):
                async with pool.slot(kind, "2-1"):
                    raise GraderError("bad_reward", "nonsense")
        assert host.placed_bytes == 0

    anyio.run(use)
    assert ends == ["graded"] and list((tmp_path / "sandboxes").iterdir()) == []


def test_a_waiting_sandbox_whose_monitor_was_killed_is_seen() -> None:
    spec = SandboxSpec("s", "image", ())
    monitor = subprocess.Popen(["sleep", "600"])
    try:
        assert Started(spec, 0.0, 0, monitor.pid).is_monitored() and Started(spec, 0.0, 0).is_monitored()
        monitor.kill()
        assert monitor.pid  # not reaped yet: a zombie is no monitor
        while Path(f"/proc/{monitor.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            pass
        assert not Started(spec, 0.0, 0, monitor.pid).is_monitored()
    finally:
        monitor.kill()
        monitor.wait()
    assert not Started(spec, 0.0, 0, monitor.pid).is_monitored()
