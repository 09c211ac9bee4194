"""A whole small run on real parts, killed in every phase: nothing lost, nothing repeated, nothing left behind (I8)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from appliance.commands.run import EXIT_STOPPED
from appliance.config.runconfig import CHECKOUT, home, resolve
from appliance.errors import HostError
from appliance.record.lock import lock, supervisor_of
from appliance.record.store import Store
from appliance.sandbox.podman import Podman
from appliance.sandbox.settings import owner_of
from appliance.tasks.generated import tasks_folder

SMALL = {
    "coldstart.rollouts": "6",
    "coldstart.steps": "30",
    "train.steps": "3",
    "train.groups": "2",
    "train.group_size": "3",
    "evaluation.max_tasks": "3",
    "rollout.timeout_s": "240",
    "rollout.grade_timeout_s": "120",
}
ROLLOUTS = 2 * 6 + 2 * 3 + 3 * (2 * 3) + 2 * 3
DEADLINE_S = 420.0


def corral(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """One command against the record in `folder`, with the installed images."""
    return subprocess.run(
        [sys.executable, "-m", "appliance.cli", *arguments], env=environment(folder), capture_output=True, text=True,
        check=False, timeout=DEADLINE_S,
    )  # fmt: skip


def environment(folder: Path) -> dict[str, str]:
    return os.environ | {"CORRAL_HOME": str(folder), "CORRAL_PODMAN_HOME": str(home())}


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Supervisors that a test started; none outlives it, whatever fails."""
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def start(folder: Path, *arguments: str, is_heard: bool = False) -> subprocess.Popen[bytes]:
    """`is_heard`: Ctrl-C reaches it, even if what started the tests ignores the signal and so would its children."""
    heard = ["env", "--default-signal=INT"] if is_heard else []
    log = (folder / "console.log").open("ab")
    with log:
        return subprocess.Popen(
            [*heard, sys.executable, "-m", "appliance.cli", *arguments], env=environment(folder),
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip


def status(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(corral(folder, "status", "--json").stdout)
    return found


def wait_until(
    folder: Path, is_true: Callable[[dict[str, Any]], bool], process: subprocess.Popen[bytes]
) -> dict[str, Any]:
    """Polls `corral status --json`, which must answer at any time, until it shows what is waited for."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        found = status(folder)
        if is_true(found):
            return found
        assert process.poll() is None, (folder / "console.log").read_text()[-3000:]
        time.sleep(0.3)
    raise AssertionError(f"never happened; last status {found}")


def descendants(pid: int) -> list[tuple[int, str]]:
    """(pid, command line) of every process below `pid`, whole: `ps` would cut lines at $COLUMNS."""
    found = []
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                found.append((child.pid, " ".join(child.cmdline())))
    return found


def kill_below(pid: int, word: str) -> None:
    """kill -9 of the first process below `pid` whose command line holds `word`, guards apart."""
    deadline = time.monotonic() + 60.0  # it may be between two lives
    while True:
        victims = [child for child, command in descendants(pid) if word in command and "system/guard.py" not in command]
        if victims:
            os.kill(victims[0], signal.SIGKILL)
            return
        assert time.monotonic() < deadline, descendants(pid)
        time.sleep(0.2)


async def left_behind(folder: Path) -> list[str]:
    async with Podman(home()) as podman:
        return await podman.list({"corral.owner": owner_of(folder)})


@pytest.mark.real
@pytest.mark.slow
def test_I8_kill_9_of_supervisor_engine_and_trainer_then_resume(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    folder = tmp_path.resolve()
    for parent in (folder, *folder.parents[:2]):
        parent.chmod(parent.stat().st_mode | 0o055)
    settings = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    process = start(folder, "train", str(CHECKOUT / "data" / "demo.toml"), *settings)
    started.append(process)

    # the supervisor, while the teacher's rollouts run
    wait_until(folder, lambda s: s["run"] is not None and s["graded"] >= 2 and len(s["live"]) >= 1, process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    graded = status(folder)["graded"]

    # the engine, while the policy is evaluated
    process = start(folder, "resume")
    started.append(process)
    wait_until(folder, lambda s: s["phase"] == "eval_before" and len(s["live"]) >= 1, process)
    assert status(folder)["graded"] >= graded
    kill_below(process.pid, "vllm")

    # the trainer and then the supervisor, in training
    wait_until(folder, lambda s: s["phase"] == "train" and s["steps_done"] >= 1, process)
    kill_below(process.pid, "appliance.train.trainer")
    wait_until(folder, lambda s: s["steps_done"] >= 2, process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()

    done = corral(folder, "resume")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    final = status(folder)
    assert final["state"] == "done" and final["graded"] == ROLLOUTS and final["failures"] == {}
    assert anyio.run(left_behind, folder) == []
    assert Path(done.stdout.strip().splitlines()[-1]).name == "demo.json"
    store = Store.open(folder / "record.db", readonly=True)
    assert store.rows("SELECT count(*) n FROM rollouts")[0]["n"] == ROLLOUTS
    assert [number for number, _, _ in store.versions(final["run"])] == [0, 1, 2, 3]
    gaps = [m["logprob_gap"] for _, _, m in store.steps(final["run"]) if "logprob_gap" in m]
    assert all(gap < 0.02 for gap in gaps)
    store.close()


def a_pack_that_waits(folder: Path) -> Path:
    """The demo's tasks, with a teacher whose one command takes far longer than any test waits."""
    pack = folder / "pack"
    shutil.copytree(tasks_folder(CHECKOUT / "data" / "pocket"), pack)
    for file in pack.rglob("teacher.json"):
        file.write_text('["sleep 3000"]')
    for file in pack.rglob("task.toml"):
        file.write_text(file.read_text().replace("timeout_sec = 60.0", "timeout_sec = 3000.0"))
    return pack


@pytest.mark.real
@pytest.mark.slow
def test_ctrl_c_once_waits_for_what_is_under_way_and_twice_ends_at_once_and_leaves_nothing(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    folder = tmp_path.resolve()
    for parent in (folder, *folder.parents[:2]):
        parent.chmod(parent.stat().st_mode | 0o055)
    own = SMALL | {
        "harnesses": "pi", "tasks.pack": str(a_pack_that_waits(folder)), "rollout.timeout_s": "3000",
    }  # fmt: skip
    settings = [word for key, value in own.items() for word in ("--set", f"{key}={value}")]
    process = start(folder, "train", str(CHECKOUT / "data" / "demo.toml"), *settings, is_heard=True)
    started.append(process)
    wait_until(folder, lambda s: "running" in s.get("rollouts", {}), process)

    process.send_signal(signal.SIGINT)
    drains = wait_until(folder, lambda s: s["state"] == "draining", process)
    before = {name: count for name, count in drains["rollouts"].items() if name != "planned"}
    time.sleep(2.0)  # nothing new begins and nothing under way is ended
    later = status(folder)
    assert process.poll() is None and later["state"] == "draining"
    assert sum(count for name, count in later["rollouts"].items() if name != "planned") == sum(before.values())
    assert "running" in later["rollouts"] and later["failures"] == {} and anyio.run(left_behind, folder) != []
    below = descendants(process.pid)

    process.send_signal(signal.SIGINT)
    assert process.wait(DEADLINE_S) == EXIT_STOPPED, (folder / "console.log").read_text()[-3000:]
    ended = status(folder)
    assert ended["state"] == "stopped" and "corral resume" in corral(folder, "status").stdout
    assert supervisor_of(folder) is None and anyio.run(left_behind, folder) == []
    assert list((folder / "sandboxes").glob("*")) == [] and not any(psutil.pid_exists(pid) for pid, _ in below)


def test_a_second_supervisor_on_one_record_is_told_who_holds_it(tmp_path: Path) -> None:
    with lock(tmp_path, "first"):
        holder = supervisor_of(tmp_path) or {}
        assert (holder["pid"], holder["run"]) == (os.getpid(), "first")
        with pytest.raises(HostError, match=f"process {os.getpid()}.* works on run first"), lock(tmp_path, "second"):
            raise AssertionError("two supervisors held one record")
    assert supervisor_of(tmp_path) is None


def test_a_pack_that_is_missing_is_named_before_a_run_exists(tmp_path: Path) -> None:
    toml = tmp_path / "run.toml"
    toml.write_text(f"[tasks]\npack = '{tmp_path}/none'\n")
    done = corral(tmp_path, "train", str(toml))
    assert done.returncode == 1 and f"{tmp_path}/none: does not exist" in done.stderr and "remedy" in done.stderr
    assert not (tmp_path / "record.db").exists()
    assert resolve(toml).pack_path == tmp_path / "none"


def test_status_without_a_record_says_how_to_begin(tmp_path: Path) -> None:
    assert status(tmp_path)["run"] is None
    assert "corral demo" in corral(tmp_path, "status").stdout


@pytest.mark.real
@pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace is made as root")
def test_I10_a_rollout_needs_no_network(tmp_path: Path) -> None:
    folder = tmp_path.resolve()
    for parent in (folder, *folder.parents[:2]):
        parent.chmod(parent.stat().st_mode | 0o055)
    demo = str(CHECKOUT / "data" / "demo.toml")
    command = [sys.executable, "-m", "appliance.cli", "rollout", demo, "--task", "count-train-00", "--harness", "pi"]
    alone = ["unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$@"', "sh", *command, "--teacher", "--json"]
    done = subprocess.run(
        alone, env=environment(folder), capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["reward"] == 1.0


def test_a_second_train_on_a_held_record_is_one_message(tmp_path: Path) -> None:
    with lock(tmp_path, "first"):
        done = corral(tmp_path, "train", str(CHECKOUT / "data" / "demo.toml"))
    assert done.returncode == 1 and "works on run first" in done.stderr and "Traceback" not in done.stderr
