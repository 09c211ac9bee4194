"""A Podman host by ssh://: what an address may be, what comes back of a folder there, and whole rollouts through a real
OpenSSH server on loopback with a Podman service and a storage of its own behind it.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from appliance.bench.scripted_run import place_for, small_run
from appliance.config.runconfig import home, podman_home
from appliance.config.sections import RolloutSection
from appliance.errors import HostError, SandboxError
from appliance.runs.rollout import Place, make_rollout
from appliance.runs.teachers import ScriptedTeacher, StepTeacher
from appliance.sandbox.archive import pack, unpack
from appliance.sandbox.freeze import freeze
from appliance.sandbox.hosts import check_images, open_hosts, reconcile
from appliance.sandbox.images.build import base_ref
from appliance.sandbox.podman import Limits
from appliance.sandbox.pool import Kind, Pool, Slot
from appliance.sandbox.settings import HostTraits
from appliance.sandbox.ssh import Address, Ssh
from appliance.sandbox.ssh_host import removal
from appliance.types import Purpose, RolloutPlan
from tests.support.beside import second_podman
from tests.support.sshd import Sshd, sshd
from tests.support.step_tasks import Step, write_task

LIMITS = Limits(timeout_s=60, disk_bytes=8 << 20, num_files=2000)
FACTS = {"uid": "0", "release": "6.1.0-13-amd64", "caps": "000001ffffffffff", "v2": "1", "systemd": "1",
         "files": "1048576", "processes": "unlimited", "home": "/root"}  # fmt: skip


def test_an_address_is_read_as_podman_writes_it() -> None:
    address = Address.parse("ssh://core@box.lan:2222/run/user/1000/podman/podman.sock")
    assert (address.login, address.port, address.socket) == ("core@box.lan", 2222, "/run/user/1000/podman/podman.sock")
    plain = Address.parse("ssh://box/run/podman/podman.sock")
    assert (plain.login, plain.port) == ("box", None)


@pytest.mark.parametrize(
    "url",
    ["ssh://box", "ssh:///run/p.sock", "ssh://-oProxyCommand=x/run/p.sock", "ssh://a b/run/p.sock",
     "ssh://box/run/a:b.sock", "ssh://box/run/%h.sock", "ssh://u:secret@box/run/p.sock", "ssh://box:port/run/p.sock",
     "ssh://-u@box/run/p.sock", "ssh://box/run/$(x)"],
)  # fmt: skip
def test_an_address_that_ssh_would_read_otherwise_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(HostError, match=r"rollout\.hosts") as caught:
        Ssh(url, tmp_path)
    assert "ssh://user@host" in caught.value.remedy


def test_a_refusal_of_ssh_is_told_with_its_remedy(tmp_path: Path) -> None:
    ssh = Ssh("ssh://me@box:22/run/podman.sock", tmp_path)
    assert "ssh -p 22 me@box" in ssh.remedy("Host key verification failed.").replace("  ", " ")
    assert "rollout.ssh_key" in ssh.remedy("me@box: Permission denied (publickey).")
    assert "/run/podman.sock" in ssh.remedy("nothing answers")


def test_another_machine_is_judged_by_its_own_facts() -> None:
    best = HostTraits.told(FACTS)
    assert best.is_root and best.can_mount and best.can_map_ids and best.has_systemd_cgroups
    assert (best.max_files, best.max_processes) == (1 << 20, 1 << 20)
    user = HostTraits.told({**FACTS, "uid": "1000", "caps": "0", "controllers": "memory pids"})
    assert not user.is_root and not user.can_mount and user.controllers == {"memory", "pids"}
    assert not HostTraits.told({**FACTS, "release": "5.15.0"}).can_map_ids


# ---------------------------------------------------------------- what comes back


def stream(*entries: tuple[tarfile.TarInfo, bytes]) -> io.BytesIO:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for entry, data in entries:
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    file.seek(0)
    return file


def entry(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.mode, made.mtime = kind, target, 0o644, 1_700_000_000
    return made


def test_a_folder_goes_there_and_back_as_it_was(tmp_path: Path) -> None:
    source, into = tmp_path / "a", tmp_path / "b"
    (source / "x").mkdir(parents=True)
    (source / "x" / "run.sh").write_text("echo")
    (source / "x" / "run.sh").chmod(0o750)
    (source / "two").hardlink_to(source / "x" / "run.sh")
    (source / "link").symlink_to("x/run.sh")
    (source / "ö\n\udcff").write_text("odd")
    into.mkdir()
    file = io.BytesIO()
    pack([(source, ".")], file)
    file.seek(0)
    assert unpack(file, into, 1 << 20, 100) == []
    assert (into / "x" / "run.sh").stat().st_mode & 0o777 == 0o750
    assert (into / "two").samefile(into / "x" / "run.sh") and os.readlink(into / "link") == "x/run.sh"
    assert (into / "ö\n\udcff").read_text() == "odd"
    assert (into / "x" / "run.sh").stat().st_mtime == int((source / "x" / "run.sh").stat().st_mtime)


def test_folders_nested_deeper_than_our_stack_go_there(tmp_path: Path) -> None:
    depth = 300
    os.makedirs(tmp_path.joinpath(*["d"] * depth))
    file = io.BytesIO()
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(250)
    try:
        pack([(tmp_path / "d", "d")], file)
    finally:
        sys.setrecursionlimit(usual)
    file.seek(0)
    with tarfile.open(fileobj=file) as archive:
        assert len(archive.getnames()) == depth


def test_a_folder_that_its_owner_closed_is_removed_by_its_owner() -> None:
    nobody = 65534 if os.getuid() == 0 else os.getuid()
    with tempfile.TemporaryDirectory() as own:  # others cannot walk to pytest's
        shop = Path(own) / "shop"
        (shop / "agent" / "home" / "closed" / "more").mkdir(parents=True)
        for path in (Path(own), *shop.rglob("*"), shop):
            os.chown(path, nobody, -1)
        (shop / "agent" / "home" / "closed").chmod(0)
        subprocess.run(["sh", "-c", removal(shop)], user=nobody, check=True)
        assert not shop.exists()


def test_nothing_comes_out_beside_the_folder(tmp_path: Path) -> None:
    outside, into = tmp_path / "outside", tmp_path / "in"
    outside.mkdir()
    into.mkdir()
    (outside / "secret").write_text("kept")
    left_out = unpack(
        stream(
            (entry("../outside/secret"), b"gone"),
            (entry("door", tarfile.SYMTYPE, str(outside)), b""),
            (entry("door/secret"), b"gone"),
            (entry("hard", tarfile.LNKTYPE, "door/secret"), b""),
            (entry("up", tarfile.LNKTYPE, "../outside/secret"), b""),
            (entry("pipe", tarfile.FIFOTYPE), b""),
            (entry("disk", tarfile.BLKTYPE), b""),
            (entry("/absolute"), b"inside"),
            (entry("fine"), b"inside"),
        ),
        into, 1 << 20, 100,
    )  # fmt: skip
    assert left_out == ["../outside/secret", "door/secret", "hard", "up", "pipe", "disk"]
    assert (outside / "secret").read_text() == "kept" and len(list(outside.iterdir())) == 1
    assert sorted(p.name for p in into.iterdir()) == ["absolute", "door", "fine"]


@pytest.mark.parametrize(("max_bytes", "max_files"), [(10, 100), (1 << 20, 2)])
def test_what_is_too_much_is_stopped(tmp_path: Path, max_bytes: int, max_files: int) -> None:
    with pytest.raises(SandboxError) as caught:
        unpack(stream(*((entry(f"f{n}"), b"12345678") for n in range(3))), tmp_path, max_bytes, max_files)
    assert caught.value.cause == "disk_full"


def test_half_a_stream_is_no_workspace(tmp_path: Path) -> None:
    whole = stream((entry("f"), b"x" * 5000)).getvalue()
    with pytest.raises(SandboxError) as caught:
        unpack(io.BytesIO(whole[:3000]), tmp_path, 1 << 20, 100)
    assert caught.value.cause == "lost"


# ---------------------------------------------------------------- through a real server

Service = tuple[subprocess.Popen[bytes], Path]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Sshd, Service]]:
    with second_podman(tmp_path) as service, sshd(tmp_path / "sshd") as server:
        yield server, service


def settings(server: Sshd, socket: Path) -> RolloutSection:
    return RolloutSection(
        hosts=(server.url(socket),), parallel=4, ssh_key=str(server.key), ssh_config=str(server.config)
    )


@pytest.mark.real
@pytest.mark.slow
def test_rollouts_are_made_and_graded_on_a_host_by_ssh(server: tuple[Sshd, Service], tmp_path: Path) -> None:
    told = anyio.run(many, server[0], server[1][1], tmp_path)
    assert told == []


async def many(server: Sshd, socket: Path, folder: Path) -> list[str]:
    """Four rollouts there through the real proxy; then everything that can go wrong with one host. What was left."""
    url = server.url(socket)
    async with AsyncExitStack() as stack:
        place = await stack.enter_async_context(place_for(folder / "record", 4))
        hosts = await open_hosts(stack, podman_home(home()), settings(server, socket))
        await check_images(hosts, {"base": base_ref()})
        with pytest.raises(HostError, match="lacks the image of task x") as caught:
            await check_images(hosts[1:], {"task x": "localhost/corral-task-x:0"})
        assert f"ssh -p {server.port} root@127.0.0.1 podman load" in caught.value.remedy
        labels = {"corral.owner": f"ssh{os.getpid()}"}
        far = hosts[1]
        async with Pool([far], folder / "record" / "sandboxes", labels, at_most=0) as pool:
            ended = await small_run(replace(place, pool=pool), 4, 2, lambda done: None)
            assert [(str(r.state), r.reward, r.failure) for r in ended] == [("graded", 1.0, "")] * 4
            await a_second_step_finds_what_the_first_left(replace(place, pool=pool), folder)
            kind = Kind(base_ref(), LIMITS, place.proxy.directory)
            await what_an_agent_leaves_is_frozen(pool, kind)
            await a_broken_connection_fails_what_was_on_it(server, pool, kind)
        messages: list[str] = []
        await reconcile(hosts, labels["corral.owner"], "", lambda level, part, message: messages.append(message))
        assert far.podman.far is not None and await far.podman.list(labels) == [], messages
        there = await far.podman.far.run(f"cd {far.podman.far._base} && find sandboxes -mindepth 1; exit 0")
    assert far.name == url
    return there.decode().split() + [str(p) for p in (folder / "record" / "sandboxes").iterdir()]


async def a_second_step_finds_what_the_first_left(place: Place, folder: Path) -> None:
    first = (
        "echo hi > first.txt; echo learnt > ~/memory; ln -s /etc data; mkdir -p shut ~/shut; chmod 0 shut ~/shut ~ ."
    )
    second = "cat ~/memory && test ! -e answer.txt && test -f ready && cat data/given.txt && echo hi > second.txt"
    steps = {"first": Step(), "second": Step(setup="test -f first.txt && touch ready")}
    task = write_task(folder / "tasks" / "two", steps)
    plan = RolloutPlan(place.run_id, Purpose.SINGLE, 0, next(iter(place.harnesses)), task.name, 1000)
    (planned,) = place.store.plan([plan])
    await make_rollout(place, planned, task, StepTeacher([ScriptedTeacher([c]) for c in (first, second)]), 0)
    (ended,) = [r for r in place.store.rollouts(place.run_id) if r.id == planned.id]
    assert (ended.reward, ended.failure, ended.failure_detail) == (1.0, "", "")


async def what_an_agent_leaves_is_frozen(pool: Pool, kind: Kind) -> None:
    games = "mkfifo pipe; ln -s /tests/answer a; mkdir shut; echo 1 > shut/f; chmod 0 shut; echo hi > out; ln out two"
    async with pool.slot(kind, "games") as slot:
        (slot.workshop.workspace / "given").write_text("from here")
        (slot.workshop.home / ".rc").write_text("x")
        await slot.send()
        argv = ("sh", "-c", f"test -e ~/.rc && id -u > who && cp given copy; {games}")
        outcome = await slot.watch(await slot.go(argv, {}, LIMITS), lambda: False)
        await slot.end()
        assert outcome.exit_code == 0, outcome.output
        left_out = await slot.fetch()
        removed = freeze(slot.workshop.workspace)
        assert (left_out, removed) == (["pipe"], ["a"])
        found = {p.name: p.read_text() for p in slot.workshop.workspace.iterdir() if p.is_file()}
        assert found == {"given": "from here", "copy": "from here", "who": "1000\n", "out": "hi\n", "two": "hi\n"}
        assert (slot.workshop.workspace / "shut" / "f").read_text() == "1\n"
        await flood(slot)


async def flood(slot: Slot) -> None:
    """What is larger than its file system never comes into being there."""
    assert slot.far is not None
    state = await slot.far.machine.run(f"df -k {slot.far.folder}/agent | tail -1")
    assert int(state.split()[1]) <= LIMITS.disk_bytes >> 10


async def a_broken_connection_fails_what_was_on_it(server: Sshd, pool: Pool, kind: Kind) -> None:
    """The rollout under way is lost and no more; the next is made over a new connection, its proxy's socket too."""
    with pytest.raises(SandboxError) as caught:
        async with pool.slot(kind, "broken") as slot:
            started = await slot.go(("sleep", "60"), {}, LIMITS)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cut, server)
                try:
                    await slot.watch(started, lambda: False)
                except SandboxError as error:
                    lost = error
                    tasks.cancel_scope.cancel()
            raise lost
    assert caught.value.cause == "lost"
    deadline = time.monotonic() + 60
    while True:
        try:
            async with pool.slot(kind, "after") as slot:
                knock = "python3 -c 'import urllib.request as u; u.urlopen(\"http://127.0.0.1:8123/\")' 2>&1 | tail -1"
                outcome = await slot.watch(await slot.go(("sh", "-c", knock), {}, LIMITS), lambda: False)
            break
        except SandboxError as error:  # its back-off
            assert error.cause == "lost" and time.monotonic() < deadline, error
            await anyio.sleep(0.2)
    assert "HTTP Error 40" in outcome.output  # Corral's own proxy answers there, and knows no such address


async def cut(server: Sshd) -> None:
    for pid in server.connections():
        os.kill(pid, signal.SIGKILL)


@pytest.mark.real
def test_a_host_that_ssh_does_not_reach_is_named_at_the_start(tmp_path: Path) -> None:
    def enter(change: Callable[[Sshd], RolloutSection]) -> HostError:
        async def go() -> None:
            async with AsyncExitStack() as stack:
                await open_hosts(stack, podman_home(home()), change(server))

        with pytest.raises(HostError) as caught:
            anyio.run(go)
        return caught.value

    with sshd(tmp_path / "sshd") as server:
        error = enter(lambda s: settings(s, tmp_path / "none.sock"))
        assert "nothing answers" in error.message and str(tmp_path / "none.sock") in error.remedy
        error = enter(lambda s: settings(replace(s, key=tmp_path / "sshd" / "host"), tmp_path / "none.sock"))
        assert "Permission denied" in error.message and "rollout.ssh_key" in error.remedy
        (tmp_path / "sshd" / "known").write_text("")
        error = enter(lambda s: settings(s, tmp_path / "none.sock"))
        assert "Host key verification failed" in error.message and "by hand" in error.remedy
        error = enter(lambda s: settings(replace(s, config=tmp_path / "no"), tmp_path / "none.sock"))
        assert "ssh_config" in error.remedy
