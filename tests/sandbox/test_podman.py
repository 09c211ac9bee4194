"""Real Podman, real harnesses: what a sandbox can do, cannot do, and leaves behind (nothing)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from appliance.config.runconfig import home as installed_home
from appliance.config.runconfig import podman_home
from appliance.errors import HostError, SandboxError
from appliance.harness.harness import load_harnesses
from appliance.sandbox.diskuse import hold_more
from appliance.sandbox.images.build import base_ref, build_images
from appliance.sandbox.podman import Limits, Mount, Outcome, Podman, SandboxSpec
from appliance.sandbox.seccomp import profile, stock_profile
from appliance.sandbox.settings import HostTraits, PodmanPlaces, containers_conf, podman_environment
from appliance.system.oom import watch_oom
from tests.support.scripted_model import FINAL_TEXT, ScriptedModel, serving

HARNESSES = load_harnesses(Path(__file__).resolve().parents[2] / "harnesses")
BASE_URL = "http://127.0.0.1:8123/s/tok-1"
LABELS = {"corral.run": f"test-{os.getpid()}"}
real = pytest.mark.real


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def home() -> Path:
    """The installed state folder, whose images are built once."""
    folder = podman_home(installed_home())
    folder.mkdir(parents=True, exist_ok=True)
    build_images(folder, [HARNESSES["pi"], HARNESSES["codex"]], print)
    return folder


@pytest.fixture
async def podman(home: Path) -> AsyncIterator[Podman]:
    async with Podman(home) as service:
        yield service
        assert await service.list(LABELS) == []


@pytest.fixture
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """workspace, home and proxy of one rollout, as a rollout makes them."""
    folder = tmp_path_factory.mktemp("rollout")
    for parent in (folder, *folder.parents[:2]):
        parent.chmod(parent.stat().st_mode | 0o055)
    for name in ("workspace", "home", "proxy"):
        (folder / name).mkdir()
    hand_over(folder)
    yield folder
    shutil.rmtree(folder)


def hand_over(folder: Path) -> None:
    """Give workspace and home to the agent's user, as root must."""
    if os.geteuid() == 0:
        for name in ("workspace", "home"):
            owner = HostTraits.read().agent_host_id
            subprocess.run(["chown", "-R", f"{owner}:{owner}", str(folder / name)], check=True)


def spec(*argv: str, **changes: object) -> SandboxSpec:
    name = f"corral-test-{os.getpid()}-{os.urandom(3).hex()}"
    made = SandboxSpec(name=name, image=base_ref(), argv=argv, labels=LABELS, limits=Limits(timeout_s=30))
    return replace(made, **changes)


def in_folders(folder: Path, made: SandboxSpec) -> SandboxSpec:
    mounts = (Mount(folder / "workspace", "/workspace"), Mount(folder / "home", "/home/agent"))
    return replace(made, mounts=mounts, proxy_dir=folder / "proxy")


@real
@pytest.mark.anyio
@pytest.mark.parametrize("name", ["pi", "codex", pytest.param("mini-swe-agent", marks=pytest.mark.slow)])
async def test_a_harness_works_through_its_proxy_alone(podman: Podman, home: Path, folders: Path, name: str) -> None:
    harness = HARNESSES[name]
    ends_by_command = name == "mini-swe-agent"
    finish = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT" if ends_by_command else ""
    model = ScriptedModel("cat notes.txt > copy.txt && id -u", finish)
    launch = harness.launch("- Copy notes.txt to copy.txt", BASE_URL, "tok-1", "policy", 256)
    (folders / "workspace/notes.txt").write_text("alpha 7\n")
    for path, text in launch.files.items():
        (folders / "home" / path).parent.mkdir(parents=True, exist_ok=True)
        (folders / "home" / path).write_text(text)
    hand_over(folders)
    image = build_images(home, [harness], print)[name]
    made = spec(*launch.argv, image=image, env=launch.env, limits=Limits(timeout_s=240))
    async with serving(model.app, folders / "proxy"):
        outcome = await podman.run(in_folders(folders, made))
    assert (outcome.exit_code, outcome.timed_out, outcome.out_of_memory) == (0, False, False), outcome.output
    assert (folders / "workspace/copy.txt").read_text() == "alpha 7\n"
    assert ends_by_command or FINAL_TEXT in outcome.output
    assert len(model.bodies) == 2
    assert b"- Copy notes.txt to copy.txt" in model.bodies[0]
    assert b"1000" in model.bodies[1]
    assert all(path.startswith("/s/tok-1/v1/") for path in model.paths)


@real
@pytest.mark.anyio
async def test_I9_a_sandbox_has_no_network_no_rights_and_no_way_to_get_some(podman: Podman, folders: Path) -> None:
    script = """
        grep -c : /proc/net/dev; ls /sys/class/net
        grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status | tr -d '\\t'
        for try in 'touch /x' 'touch /etc/x' 'unshare -Ur true' 'mount -t tmpfs none /mnt' 'getent hosts example.com' \\
          'python3 -c "import socket; socket.create_connection((\\"192.0.2.1\\", 80), 2)"'
        do sh -c "$try" 2>/dev/null && echo "ALLOWED $try"; done
        ls /run/corral; touch /run/corral/x 2>/dev/null && echo ALLOWED proxy folder
        ls /var/run/docker.sock /run/podman 2>/dev/null
        touch /workspace/mine /home/agent/mine /tmp/mine && echo wrote; env; exit 7
    """
    outcome = await podman.run(in_folders(folders, spec("sh", "-c", textwrap.dedent(script), proxy_dir=None)))
    lines = outcome.output.splitlines()
    assert outcome.exit_code == 7
    assert not [line for line in lines if line.startswith("ALLOWED")], outcome.output
    assert lines[1] == "lo"
    assert {"CapEff:0000000000000000", "CapBnd:0000000000000000", "NoNewPrivs:1", "Seccomp:2"} <= set(lines)
    assert {"wrote", "HOME=/home/agent", "HOSTNAME=sandbox"} <= set(lines)
    assert not [line for line in lines if "proxy" in line.lower() and "=" in line]


@real
@pytest.mark.anyio
async def test_each_limit_holds_and_is_told_apart(podman: Podman) -> None:
    small = Limits(memory_bytes=64_000_000, pids=16, timeout_s=20, tmpfs_bytes=1_000_000)
    # The wait: on a busy machine it is killed before anybody watches, and cgroup v1 forgets it.
    hog = "import time; time.sleep(2); x = bytearray(200_000_000)"
    hungry = await podman.run(spec("python3", "-c", hog, limits=small))
    assert (hungry.exit_code, hungry.out_of_memory, hungry.timed_out) == (137, True, False)
    survivor = await podman.run(spec("sh", "-c", "python3 -c 'bytearray(200_000_000)'; exit 3", limits=small))
    assert (survivor.exit_code, survivor.out_of_memory) == (3, True)
    killed = await podman.run(spec("sh", "-c", "kill -9 $$", limits=small))
    assert (killed.exit_code, killed.out_of_memory) == (137, False)
    crowd = await podman.run(spec("sh", "-c", "for i in $(seq 40); do sleep 9 & done; echo no", limits=small))
    assert "fork" in crowd.output
    full = await podman.run(spec("sh", "-c", "head -c 2000000 /dev/zero > /tmp/x", limits=small))
    assert "No space left" in full.output


@real
@pytest.mark.anyio
async def test_a_sandbox_cannot_fill_the_disk(podman: Podman, folders: Path) -> None:
    small = Limits(timeout_s=20, file_bytes=1_000_000, disk_bytes=8_000_000)
    one = spec("sh", "-c", "yes > f; echo ended $?; ulimit -c", proxy_dir=None, limits=small)
    output = (await podman.run(replace(in_folders(folders, one), proxy_dir=None))).output
    assert {"ended 153", "0", "File size limit exceeded"} <= set(output.splitlines())
    assert (folders / "workspace/f").stat().st_size == 1_000_000
    many = spec("sh", "-c", "while :; do i=$((i+1)); yes > f$i; [ $i -gt 12 ] && sleep 60; done", limits=small)
    with pytest.raises(SandboxError) as caught:
        await podman.run(replace(in_folders(folders, many), proxy_dir=None))
    assert caught.value.cause == "disk_full"


@real
@pytest.mark.anyio
async def test_a_launch_that_hangs_ends_at_its_time_limit(podman: Podman) -> None:
    stubborn = "trap '' TERM; echo begun; while :; do sleep 1; done"
    outcome = await podman.run(spec("sh", "-c", stubborn, limits=Limits(timeout_s=0.7)))
    assert (outcome.exit_code, outcome.timed_out, outcome.output) == (None, True, "begun\n")
    assert 0.6 < outcome.seconds < 5


@real
@pytest.mark.anyio
async def test_what_is_ended_gets_a_grace_and_its_last_words_are_kept(podman: Podman) -> None:
    polite = "trap 'echo bye; exit 0' TERM; echo begun; while :; do sleep 0.1; done"
    limits = Limits(timeout_s=1.5, grace_s=5)
    outcome = await podman.run(spec("sh", "-c", polite, limits=limits))
    assert (outcome.exit_code, outcome.timed_out, outcome.output) == (None, True, "begun\nbye\n")


@real
@pytest.mark.anyio
async def test_one_that_does_nothing_is_ended_and_one_that_is_owed_an_answer_is_not(podman: Podman) -> None:
    limits = Limits(timeout_s=6, idle_s=1.5, grace_s=0)
    idle = await podman.run(spec("sleep", "60", limits=limits))
    assert (idle.is_idle, idle.timed_out, idle.exit_code) == (True, False, None)
    owed = spec("sleep", "60", limits=limits)
    try:
        outcome = await podman.watch(await podman.start(owed), lambda: True)
    finally:
        await podman.remove(owed.name)
    assert (outcome.is_idle, outcome.timed_out) == (False, True)


@real
@pytest.mark.anyio
async def test_a_flood_of_output_stays_within_its_log_and_refused_forks_are_named(podman: Podman, home: Path) -> None:
    flood = "yes 0123456789012345678901234567890123456789 | head -c 30000000; sleep 3"
    sizes: list[int] = []

    async def look() -> None:
        logs = PodmanPlaces.under(home).storage.glob("overlay-containers/*/userdata/ctr.log*")
        for _ in range(8):
            await anyio.sleep(0.25)
            sizes.extend(path.stat().st_size for path in logs if path.exists())

    outcome = await podman.run(spec("sh", "-c", flood), look)
    assert max(sizes) <= 2 << 20
    assert "0123456789" in outcome.output
    crowd = "(for i in $(seq 40); do sleep 4 & done); sleep 4"  # the shell that may not fork ends at once
    crowded = await podman.run(spec("sh", "-c", crowd, limits=Limits(pids=16, timeout_s=30)))
    assert crowded.limits_hit == ("pids",)


@real
@pytest.mark.anyio
async def test_only_the_end_of_a_long_output_is_kept(podman: Podman) -> None:
    outcome = await podman.run(spec("sh", "-c", "seq 1 200000; echo the end"))
    assert len(outcome.output.encode()) <= 16 * 1024
    assert outcome.output.endswith("the end\n")


@real
@pytest.mark.anyio
async def test_a_missing_image_and_a_missing_program_are_named(podman: Podman) -> None:
    with pytest.raises(SandboxError) as caught:
        await podman.run(spec("true", image="localhost/corral-nothing:0"))
    assert caught.value.cause == "no_image"
    with pytest.raises(SandboxError) as caught:
        await podman.run(spec("true", image=base_ref(), workdir="relative"))
    assert caught.value.cause == "no_start"
    absent = await podman.run(spec("no-such-program"))
    assert absent.exit_code != 0
    assert "No such file" in absent.output


@real
@pytest.mark.anyio
async def test_cancelling_removes_the_container(podman: Podman) -> None:
    async with anyio.create_task_group() as tasks:

        async def cancel() -> None:
            assert len(await podman.list(LABELS)) == 1
            tasks.cancel_scope.cancel()

        tasks.start_soon(podman.run, spec("sleep", "60"), cancel)
    assert await podman.list(LABELS) == []


@real
@pytest.mark.anyio
async def test_eight_run_at_once(podman: Podman) -> None:
    outcomes: list[Outcome] = []

    async def one(number: int) -> None:
        outcomes.append(await podman.run(spec("sh", "-c", f"exit {number}")))

    async with anyio.create_task_group() as tasks:
        for number in range(16):
            tasks.start_soon(one, number)
    assert sorted(outcome.exit_code or 0 for outcome in outcomes) == list(range(16))


@real
@pytest.mark.anyio
async def test_a_killed_service_fails_the_launch_and_comes_back(podman: Podman) -> None:
    async def kill() -> None:
        os.kill(podman.service_pid, signal.SIGKILL)

    with pytest.raises(SandboxError) as caught:
        await podman.run(spec("sleep", "60"), kill)
    assert caught.value.cause == "lost"
    assert (await podman.run(spec("true"))).exit_code == 0


@real
@pytest.mark.anyio
async def test_what_a_killed_owner_left_is_found_and_removed(podman: Podman, home: Path) -> None:
    script = f"""
        import anyio, os, signal, sys
        sys.path[:0] = {sys.path!r}
        from pathlib import Path
        from appliance.sandbox.podman import Podman, SandboxSpec
        async def die():
            print(podman.service_pid, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        async def main():
            global podman
            async with Podman(Path({str(home)!r})) as podman:
                orphan = SandboxSpec("orphan-{os.getpid()}", {base_ref()!r}, ("sleep", "99"), labels={LABELS!r})
                await podman.run(orphan, die)
        anyio.run(main)
    """
    dead = await anyio.run_process([sys.executable, "-c", textwrap.dedent(script)], check=False)
    assert dead.returncode == -signal.SIGKILL
    with anyio.fail_after(10):
        while Path(f"/proc/{int(dead.stdout)}").exists():
            await anyio.sleep(0.02)
    assert await podman.list(LABELS) == [f"orphan-{os.getpid()}"]
    assert await podman.reconcile(LABELS) == [f"orphan-{os.getpid()}"]


@real
@pytest.mark.anyio
async def test_a_service_killed_amid_eight_starts_leaves_nothing(podman: Podman) -> None:
    causes: list[str] = []

    async def one() -> None:
        try:
            await podman.run(spec("sleep", "60"), kill)
        except SandboxError as error:
            causes.append(error.cause)

    async def kill() -> None:
        os.kill(podman.service_pid, signal.SIGKILL)

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(one)
    assert len(causes) == 8
    assert set(causes) <= {"lost", "no_start"}
    with anyio.fail_after(10):  # a monitor that was starting may still bring up a container or two
        while await podman.reconcile(LABELS):
            pass


@real
@pytest.mark.anyio
async def test_a_container_that_podman_forgot_is_removed_too(podman: Podman, home: Path) -> None:
    """Made as a service killed in mid-start leaves one: known to the runtime, not to Podman."""
    environment = podman_environment(home)
    image = await anyio.run_process(["podman", "image", "mount", base_ref()], env=environment)
    lost = f"lost{os.getpid()}"
    bundle = PodmanPlaces.under(home).storage / "overlay-containers" / lost / "userdata"
    bundle.mkdir(parents=True)
    runtime = "runc" if shutil.which("runc") else "crun"
    try:
        subprocess.run([runtime, "spec"], cwd=bundle, check=True)
        config = json.loads((bundle / "config.json").read_text())
        config["root"] = {"path": image.stdout.decode().strip(), "readonly": True}
        config["process"] |= {"args": ["sleep", "99"], "terminal": False, "rlimits": []}
        (bundle / "config.json").write_text(json.dumps(config))
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
        subprocess.run([runtime, "run", "-d", "-b", str(bundle), lost], check=True, **quiet)
        assert await podman.reconcile(LABELS) == [lost]
        assert lost not in subprocess.run([runtime, "list"], capture_output=True, text=True, check=True).stdout
    finally:
        shutil.rmtree(bundle.parent)
        await anyio.run_process(["podman", "image", "unmount", base_ref()], env=environment)


NORMAL = HostTraits(
    is_root=False,
    has_cgroup_v2=True,
    has_systemd=True,
    can_raise_limits=True,
    controllers=frozenset({"cpu", "memory", "pids"}),
    max_files=1 << 20,
    max_processes=1 << 20,
)


def settings_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if " = " in line and "tmp_dir" not in line and "lock_type" not in line]


def test_an_ordinary_host_keeps_the_stock_settings(tmp_path: Path) -> None:
    assert settings_of(containers_conf(PodmanPlaces.under(tmp_path), NORMAL)) == []


def test_a_bounded_root_gets_limits_it_can_set(tmp_path: Path) -> None:
    bounded = replace(NORMAL, is_root=True, can_raise_limits=False, max_files=1024, max_processes=99)
    lines = settings_of(containers_conf(PodmanPlaces.under(tmp_path), bounded))
    assert lines == ['default_ulimits = ["nofile=1024:1024", "nproc=99:99"]']


def test_two_state_folders_share_nothing(tmp_path: Path) -> None:
    one, two = PodmanPlaces.under(tmp_path / "a"), PodmanPlaces.under(tmp_path / "b")
    assert one.run != two.run
    assert one.storage != two.storage
    assert len(str(one.run)) < 70  # a Unix socket's path ends at 107 bytes


def test_the_call_filter_has_no_rule_left_that_allows_a_denied_call() -> None:
    assert stock_profile() is not None
    allowed = [
        name
        for rule in json.loads(profile())["syscalls"]
        if rule["action"] == "SCMP_ACT_ALLOW"
        for name in rule["names"]
    ]
    assert not {"mount", "unshare", "bpf", "clone3", "io_uring_setup"} & set(allowed)
    assert allowed.count("clone") == 1


@pytest.mark.anyio
async def test_a_process_that_is_gone_is_not_out_of_memory() -> None:
    async with watch_oom(0) as watch:
        assert not await watch.was_killed()


FAKE_PODMAN = """
import json, os, re, sys
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingUnixStreamServer

KINDS = {"POST /containers/create": "create", "POST /containers/N/start": "start", "GET /containers/N/json": "inspect",
         "POST /containers/N/wait": "wait", "GET /containers/N/logs": "logs", "DELETE /containers/N": "remove",
         "GET /containers/json": "list", "GET /images/N/exists": "image", "GET /_ping": "ping"}
ANSWERS = {"inspect": {"State": {"Pid": 0}}, "wait": 0, "list": [], "create": {"Id": "1"}}
FAULTS = json.loads(os.environ["FAKE_PODMAN_FAULTS"])

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = re.sub("^/v[0-9.]+/libpod|[?].*", "", self.path)
        kind = KINDS[self.command + " " + re.sub("/box|/an-image", "/N", path)]
        fault = FAULTS.get(kind)
        if fault == "dies":
            os._exit(1)
        if fault == "drops":
            self.close_connection = True
            return
        body = {"message": "out of order"} if fault == "500" else ANSWERS.get(kind)
        content = b"" if kind == "logs" and not fault or body is None else json.dumps(body).encode()
        self.send_response(500 if fault == "500" else 200)
        self.send_header("Content-Length", str(len(content) + 9 * (fault == "halves")))
        self.end_headers()
        self.wfile.write(content)
        self.close_connection = fault == "halves"

    do_GET = do_POST = do_DELETE = answer

    def address_string(self):
        return ""

ThreadingUnixStreamServer(sys.argv[-1].removeprefix("unix://"), Handler).serve_forever()
"""


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Podman]]:
    """Podman as a program of that name which answers on its socket, and goes wrong at the kinds of call named."""
    program = tmp_path / "bin/podman"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable} -IS\n{FAKE_PODMAN}")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr("appliance.sandbox.podman.TEARDOWN_S", 0.3)
    monkeypatch.setattr("appliance.sandbox.podman.PATIENCE_S", (0.01, 0.02))

    def make(**faults: str) -> Podman:
        monkeypatch.setenv("FAKE_PODMAN_FAULTS", json.dumps(faults))
        return Podman(tmp_path)

    yield make
    shutil.rmtree(PodmanPlaces.under(tmp_path).run)


BOX = SandboxSpec("box", "an-image", ("true",))
WRONGS = ["500", "drops", "halves", "dies"]


@pytest.mark.anyio
async def test_a_launch_goes_well_on_the_podman_that_has_no_fault(faulty: Callable[..., Podman]) -> None:
    async with faulty() as podman:
        assert (await podman.run(BOX)).exit_code == 0
        assert await podman.image_exists("an-image")
        assert await podman.reconcile({}) == []


@pytest.mark.anyio
async def test_a_sandbox_that_is_just_being_removed_is_not_one_that_nobody_started(
    faulty: Callable[..., Podman], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reconciliation may list it before its removal and look at it after, or while that takes its time."""
    async with faulty() as podman:
        removed: list[str] = []

        async def surely(name: str) -> bool:
            assert await podman.reconcile({}) == [], "while it goes"
            removed.append(name)
            return True

        async def at_once(name: str) -> bool:
            return True

        async def listed(labels: object) -> list[str]:
            if not removed:
                return ["box"]
            podman._ours.add("late")
            await podman.remove("late")  # it was there when the list was made
            return ["late", "left by another"]

        monkeypatch.setattr(podman, "list", listed)
        monkeypatch.setattr(podman, "_remove", lambda name: anyio.sleep(0))
        podman._ours |= {"box"}
        monkeypatch.setattr(podman, "_remove_surely", surely)
        await podman.remove("box")
        podman._ours.add("late")
        monkeypatch.setattr(podman, "_remove_surely", at_once)
        assert await podman.reconcile({}) == ["left by another"] and not podman._ours


@pytest.mark.anyio
@pytest.mark.parametrize("wrong", WRONGS)
@pytest.mark.parametrize("kind", ["create", "start", "inspect", "wait", "logs", "remove"])
async def test_podman_failing_at_any_call_of_a_launch_fails_that_launch_only(
    faulty: Callable[..., Podman], kind: str, wrong: str
) -> None:
    async with faulty(**{kind: wrong}) as podman:
        with pytest.raises(SandboxError) as caught:
            await podman.run(BOX)
        assert caught.value.cause in ("lost", "no_start")


@pytest.mark.anyio
@pytest.mark.parametrize("wrong", WRONGS)
async def test_podman_failing_as_it_comes_back_is_a_lost_sandbox_too(faulty: Callable[..., Podman], wrong: str) -> None:
    async with faulty(wait="dies", list=wrong, image=wrong) as podman:
        for call in (podman.run(BOX), podman.run(BOX), podman.reconcile({}), podman.image_exists("an-image")):
            with pytest.raises(SandboxError) as caught:
                await call
            assert caught.value.cause == "lost"


@pytest.mark.anyio
async def test_a_podman_that_cannot_start_is_the_hosts_fault(faulty: Callable[..., Podman]) -> None:
    with pytest.raises(HostError):
        async with faulty(ping="dies"):
            pass


def test_folders_are_measured_without_following_links(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    (outside / "deep").mkdir(parents=True)
    (inside / "deep").mkdir(parents=True)
    (outside / "deep/big").write_bytes(bytes(3_000_000))
    (inside / "away").symlink_to(outside)
    (inside / "deep/file").write_bytes(bytes(1_000_000))
    (inside / "deep/same").hardlink_to(inside / "deep/file")
    with (inside / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 40)
    assert not hold_more([inside], 1_100_000, 99)
    assert hold_more([inside], 900_000, 99)
    assert hold_more([inside, outside], 3_500_000, 99)


def test_more_files_than_allowed_are_too_many(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).touch()
    assert not hold_more([tmp_path], 1 << 20, 3)
    (tmp_path / "d").touch()
    assert hold_more([tmp_path], 1 << 20, 3)
