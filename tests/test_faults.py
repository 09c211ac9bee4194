"""Faults put into real parts: each is detected, named with the culprit's last words, and can be gone on from.

Full disk, read-only home and a clock that jumps are in test_watchdog and test_doctor; kills in test_soak; a hung engine
in test_engine; a second supervisor in test_supervisor; a record cut short in test_record_check.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
import psutil
import pytest

from appliance.capture.server import loopback_socket
from appliance.config.runconfig import home, podman_home, resolve
from appliance.engine.child import EngineSettings
from appliance.engine.engine import weights_sha256
from appliance.engine.replicas import Replicas
from appliance.engine.sampler import Sampler
from appliance.errors import EngineError, HostError, ModelError, StoreError, TrainingError
from appliance.record.file import explained
from appliance.record.store import Store
from appliance.sandbox import workspace
from appliance.sandbox.images.build import build_images
from appliance.train.child import TrainChild
from appliance.types import RolloutState
from tests.soak.chaos import Chaos
from tests.support.fake_vllm import FAKE
from tests.support.tiny_tokenizer import renderer
from tests.support.waiting import until

PROMPT = [3, 1, 4]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A record with a run of two versions, each with its adapter folder and the hash it was written with."""
    monkeypatch.setenv("FAKE_PIDS", str(tmp_path / "pids"))  # where the fake engine says who it is
    store = Store.open(tmp_path / "record.db")
    store.create_run("r", "r", {}, 0, "")
    for version in (0, 1):
        folder = tmp_path / f"v{version}"
        folder.mkdir()
        (folder / "adapter_model.safetensors").write_bytes(bytes([version]) * 64)
        store.add_version("r", version, folder, weights_sha256(folder))
    return store


def sampling(store: Store, folder: Path, act: Callable[[Sampler], object], mode: str = "good") -> None:
    """Runs `act` on a sampler over the fake engine, which is kept alive as in a run and behaves as `mode` says."""
    model = folder / "model"
    model.mkdir()
    shape = {"vocab_size": 64, "hidden_size": 8, "num_attention_heads": 2, "head_dim": 4}
    (model / "config.json").write_text(json.dumps(shape))
    (folder / "fake.py").write_text(FAKE)
    program = (sys.executable, "-S", str(folder / "fake.py"), mode)
    settings = EngineSettings(model=model, log=folder / "engine.log", program=program)

    async def run() -> None:
        async with Replicas(settings, 1, 0, lambda line: None) as engine:
            sampler = Sampler(store, "r", resolve(None, {}), engine, renderer())
            async with anyio.create_task_group() as group:
                group.start_soon(sampler._keep_alive)
                await act(sampler)  # type: ignore[misc]
                group.cancel_scope.cancel()

    anyio.run(run)


@pytest.mark.slow
def test_an_adapter_that_was_changed_is_named_and_the_engine_keeps_the_last(store: Store, tmp_path: Path) -> None:
    told: list[ModelError] = []

    async def act(sampler: Sampler) -> None:
        await sampler.use(0)
        weights = tmp_path / "v1" / "adapter_model.safetensors"
        whole = weights.read_bytes()
        weights.write_bytes(whole[:-1])
        try:
            await sampler.use(1)
        except ModelError as error:
            told.append(error)
        assert sampler.version == 0
        weights.write_bytes(whole)  # put back: the run goes on
        await sampler.use(1)
        assert sampler.version == 1

    sampling(store, tmp_path, act)
    assert f"{tmp_path}/v1" in told[0].message and "version 1" in told[0].message and told[0].remedy


@pytest.mark.slow
def test_a_killed_engine_is_named_with_its_last_words_and_answers_again(store: Store, tmp_path: Path) -> None:
    async def act(sampler: Sampler) -> None:
        await sampler.use(1)
        os.kill(int((tmp_path / "pids").read_text().split()[0]), signal.SIGKILL)
        with anyio.fail_after(60):
            while not (named := [e for e in store.events("r") if e["level"] == "error"]):
                await anyio.sleep(0.05)
        assert "last words" in str(named[0]["message"]) and "restart 1 of 5" in str(named[0]["message"])
        sample = await sampler.sample(PROMPT, 4)  # type: ignore[arg-type]
        assert sample.policy_version == 1

    sampling(store, tmp_path, act)


@contextmanager
def little_memory(mebibytes: int) -> Iterator[Path]:
    """A cgroup with so little memory; what is put into its cgroup.procs is ended by the kernel when it takes more."""
    root = Path("/sys/fs/cgroup")
    is_v2 = (root / "cgroup.controllers").exists()
    if is_v2:
        with suppress(OSError):  # it may be on already
            (root / "cgroup.subtree_control").write_text("+memory")
    folder = (root if is_v2 else root / "memory") / f"corral-test-{os.getpid()}"
    folder.mkdir()
    try:
        (folder / ("memory.max" if is_v2 else "memory.limit_in_bytes")).write_text(str(mebibytes << 20))
        with suppress(OSError):  # where there is swap, it does not help
            (folder / "memory.swap.max").write_text("0")
        yield folder / "cgroup.procs"
    finally:
        until(lambda: not (folder / "cgroup.procs").read_text())
        folder.rmdir()


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="a memory cgroup is made as root")
def test_an_engine_that_the_kernel_ends_for_want_of_memory_is_named_and_comes_back(
    store: Store, tmp_path: Path
) -> None:
    async def act(sampler: Sampler) -> None:
        await sampler.use(1)
        procs.write_text((tmp_path / "pids").read_text().split()[0])
        with pytest.raises(EngineError, match=r"was killed \(since it started, the kernel has ended .* want of memory"):
            await sampler.sample([63], 4)  # type: ignore[arg-type]
        with anyio.fail_after(60):  # the next call waits for it once the restart has begun
            while not any(e["level"] == "error" for e in store.events("r")):
                await anyio.sleep(0.05)
        sample = await sampler.sample(PROMPT, 4)  # type: ignore[arg-type]
        assert sample.policy_version == 1

    with little_memory(64) as procs:
        sampling(store, tmp_path, act, "eats")
    (named,) = [str(e["message"]) for e in store.events("r") if e["level"] == "error"]
    assert "want of memory" in named and "fake engine: eating" in named and "restart 1 of 5" in named


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="a memory cgroup is made as root")
def test_a_trainer_that_the_kernel_ends_for_want_of_memory_is_named_and_started_again(
    store: Store, tmp_path: Path
) -> None:
    """The real trainer, which has not room enough to import torch; the second one has, and says what it lacks."""

    async def run() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(starve)
            with pytest.raises(TrainingError) as caught:
                await TrainChild(tmp_path, "r", "coldstart").complete(store)
            told.append(caught.value.message)

    async def starve() -> None:
        while True:
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    if "appliance.train.trainer" in process.cmdline() and "-I" not in process.cmdline():
                        procs.write_text(str(process.pid))
                        return
            await anyio.sleep(0.01)

    told: list[str] = []
    with little_memory(48) as procs:
        anyio.run(run)
    (named,) = [str(e["message"]) for e in store.events("r") if e["level"] == "error"]
    assert "coldstart was killed (since it started, the kernel has ended" in named and "started again" in named
    assert "the trainer stopped" in told[0] and "killed" not in told[0]


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(HostError, match=f"127.0.0.1:{port}: cannot listen") as caught:
            loopback_socket(port)
    assert caught.value.remedy == "choose another port"


@pytest.mark.real
@pytest.mark.slow
def test_podman_that_is_gone_ends_the_run_with_its_name_and_the_next_start_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program itself disappears, then its service is killed: nothing can be started any more."""
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(parent.stat().st_mode | 0o055)
    build_images(podman_home(home()), [], print)
    folder, bin_folder = tmp_path / "soak", tmp_path / "bin"
    bin_folder.mkdir()
    folder.mkdir()
    podman = shutil.which("podman")
    assert podman is not None
    (bin_folder / "podman").symlink_to(podman)
    paths = [p for p in os.environ["PATH"].split(":") if Path(p).resolve() != Path(podman).parent.resolve()]
    for name in os.listdir(Path(podman).parent):  # all its neighbours, but not podman itself
        if name != "podman":
            (bin_folder / name).symlink_to(Path(podman).parent / name)
    chaos = Chaos(folder, "scripted", 0, batches=1, batch=8)
    try:
        with monkeypatch.context() as patch:
            patch.setenv("PATH", ":".join([str(bin_folder), *paths]))
            chaos.start()
        until(lambda: bool(chaos.victims().get("service")) and any((folder / "sandboxes").glob("*")))
        (bin_folder / "podman").unlink()
        os.kill(chaos.victims()["service"][0], signal.SIGKILL)
        assert chaos.process is not None and chaos.process.wait(300) != 0
        said = (folder / "console.log").read_text()
        assert "podman" in said.lower() and "HostError" in said
        chaos.start()  # with Podman back
        chaos.finish()
    finally:
        chaos.end()
        for left in (folder / "sandboxes").glob("*"):
            workspace.remove(left)
    record = Store.open(folder / "record.db", readonly=True)
    assert {r.state for r in record.rollouts("small")} == {RolloutState.GRADED}
    record.close()


def test_a_record_that_another_program_holds_is_named(tmp_path: Path) -> None:
    """With a shorter patience than a store's own, through the same words."""
    path = tmp_path / "record.db"
    Store.open(path).close()
    hold = "import sqlite3, sys; d = sqlite3.connect(sys.argv[1]); d.execute('BEGIN IMMEDIATE'); print(1, flush=True)"
    other = subprocess.Popen(
        [sys.executable, "-c", f"{hold}; input()", str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    db = sqlite3.connect(path, timeout=0.2)
    try:
        assert other.stdout is not None and other.stdout.readline() == b"1\n"
        with pytest.raises(StoreError, match="another process has held the record") as caught, explained(path):
            db.execute("BEGIN IMMEDIATE")
        assert "corral status" in caught.value.remedy
    finally:
        other.communicate(b"\n", timeout=60)
    db.execute("BEGIN IMMEDIATE")
    db.close()
