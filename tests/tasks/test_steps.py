"""Tasks of several steps: what is read and imported, how rewards become one, and what one step hands to the next."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from appliance.errors import HarnessError, PackError, SandboxError
from appliance.harness.harness import Harness
from appliance.report.transcript import calls_text
from appliance.runs.teaching import scripted
from appliance.sandbox.handover import Carried, carried_in, clear_way, laying_out, place_over, remove_left
from appliance.sandbox.settings import HostTraits
from appliance.sandbox.workspace import Workshop
from appliance.tasks.importers.pack import import_pack
from appliance.tasks.pack import Task, load_pack
from appliance.tasks.steps import HealthCheck, Strategy, TaskStep, combined, not_prepared
from appliance.types import Reward
from tests.support.task_folders import TASK_TOML, a_harbor_folder, make_task, refused

STEPS = """
[environment.healthcheck]
command = "test -d ."
[[steps]]
name = "first"
min_reward = 0.5
agent.timeout_sec = 20
[[steps]]
name = "second"
min_reward = {value = 1, "reward" = 0.2}
[steps.verifier]
timeout_sec = 7
[steps.healthcheck]
command = "test -f first.txt"
interval_sec = 0.5
retries = 2
"""


def a_task_of_steps(pack: Path, toml: str = STEPS) -> Path:
    """Two steps; the second has files of its own, a setup script and no time limit for the agent."""
    folder = make_task(pack, "two", TASK_TOML.replace("[metadata]", 'multi_step_reward_strategy = "final"\n[metadata]'))
    (folder / "task.toml").write_text((folder / "task.toml").read_text() + toml)
    for name in ("first", "second"):
        contents = {
            "instruction.md": f"Write {name}.\n",
            "tests/test.sh": f"test -f {name}.txt && echo 1 > /logs/verifier/reward.txt\n",
            "solution/solve.sh": f"echo x > {name}.txt\n",
            "solution/teacher.json": f'["echo {name} > {name}.txt"]',
        }
        for path, text in contents.items():
            file = folder / "steps" / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    (folder / "steps" / "second" / "workdir").mkdir()
    (folder / "steps" / "second" / "workdir" / "setup.sh").write_text("echo ready > ready.txt\n")
    return folder


def test_the_steps_of_a_task_are_read_in_order(tmp_path: Path) -> None:
    folder = a_task_of_steps(tmp_path)
    task = Task.from_dir(folder)
    own = folder / "steps"
    whole = HealthCheck("test -d .")
    assert task.in_order == (
        TaskStep(
            "first", "Write first.", own / "first" / "tests", own / "first" / "solution", 20.0, 5.5,
            ("echo first > first.txt",), None, (("reward", 0.5),), (whole,),
        ),
        TaskStep(
            "second", "Write second.", own / "second" / "tests", own / "second" / "solution", 30.0, 7.0,
            ("echo second > second.txt",), own / "second" / "workdir", (("value", 1.0), ("reward", 0.2)),
            (whole, HealthCheck("test -f first.txt", interval_s=0.5, retries=2)),
        ),
    )  # fmt: skip
    assert task.strategy is Strategy.FINAL and task.has_solution and task.solution is None
    assert task.instruction == "Step first: Write first.\n\nStep second: Write second."


def test_a_task_without_steps_is_one_step_of_no_name(tmp_path: Path) -> None:
    task = Task.from_dir(make_task(tmp_path))
    (only,) = task.in_order
    assert (only.name, only.instruction, only.tests, only.teacher) == ("", task.instruction, task.tests, task.teacher)
    assert only.prepared(("agent", "x")) == ("agent", "x") and combined(task.strategy, [("", Reward(0.5))]).parts == {}


@pytest.mark.parametrize(
    ("toml", "gone", "said"),
    [
        ("steps = 3", "", "key steps: is not a list of tables"),
        ('[[steps]]\nname = "../x"', "", "'../x' cannot name a step"),
        ('[[steps]]\nname = "first"\n[[steps]]\nname = "First"', "", "steps/First/tests/test.sh: missing"),
        ('[[steps]]\nname = "first"\n[[steps]]\nname = "first"', "", "key steps[1].name: first is listed twice"),
        ('[[steps]]\nname = "first"', "instruction.md", "instruction.md: missing"),
        ('[[steps]]\nname = "first"', "tests/test.sh", "tests/test.sh: missing"),
        ('[[steps]]\nname = "first"\nmin_reward = "all"', "", "key steps[0].min_reward: 'all' is not a number"),
        ('[[steps]]\nname = "first"\nmin_reward = {a = nan}', "", "key steps[0].min_reward.a: nan is not a number"),
        ('[[steps]]\nname = "first"\nagent.timeout_sec = 0', "", "steps[0].agent.timeout_sec: 0 is not a time"),
        ('[[steps]]\nname = "first"\nhealthcheck = 1', "", "steps[0].healthcheck: is not a table"),
        ('[[steps]]\nname = "first"\nhealthcheck.command = ""', "", "healthcheck.command: '' is no shell command"),
        ('[[steps]]\nname = "first"\nhealthcheck = {command = "a", retries = 0}', "", "retries: 0 is no number"),
        ('[[steps]]\nname = "first"\nmin_rewards = 1', "", "key steps[0].min_rewards: unknown"),
        ('[[steps]]\nname = "first"\nagent.timeout = 1', "", "key steps[0].agent.timeout: unknown"),
        ('[[steps]]\nname = "first"\nhealthcheck = {command = "a", interval = 1}', "", "check.interval: unknown"),
        ('[[steps]]\nname = "first"', "", "steps/second: no step has that name"),
        (f'[[steps]]\nname = "first"\nmin_reward = 0x{"f" * 9000}', "", "is not TOML: Exceeds the limit"),
        (
            'multi_step_reward_strategy = "best"\n[[steps]]\nname = "first"\n[[steps]]\nname = "second"',
            "",
            "multi_step_reward_strategy: 'best' is unknown",
        ),
    ],
)
def test_what_is_wrong_with_a_step_is_named(tmp_path: Path, toml: str, gone: str, said: str) -> None:
    folder = a_task_of_steps(tmp_path, "")
    head = [line for line in toml.splitlines() if line.startswith(("multi", "steps ="))]
    (folder / "task.toml").write_text("\n".join([*head, TASK_TOML, *(x for x in toml.splitlines() if x not in head)]))
    if gone:
        (folder / "steps" / "first" / gone).unlink()
    assert said in str(refused(tmp_path))


def test_parts_of_a_step_that_would_be_passed_over_are_named(tmp_path: Path) -> None:
    folder = a_task_of_steps(tmp_path)
    (folder / "steps" / "first" / "workdir").write_text("a file")
    assert "first/workdir: is not the files of step first: a folder" in str(refused(tmp_path))
    (folder / "steps" / "first" / "workdir").unlink()
    (folder / "steps" / "second" / "tests" / "rubric.json").write_text("{}")
    assert "second/tests/rubric.json: steps are graded by code alone" in str(refused(tmp_path))


def test_rewards_of_steps_become_one_as_harbors_do() -> None:
    graded = [("a", Reward(0.5, {"rows": 1.0})), ("b", Reward(1.0))]
    parts = {"a": 0.5, "a: rows": 1.0, "b": 1.0}
    assert combined(Strategy.MEAN, graded) == Reward(0.75, parts)
    assert combined(Strategy.FINAL, graded) == Reward(1.0, parts)
    assert combined(Strategy.MEAN, graded[:1]) == Reward(0.5, {"a": 0.5, "a: rows": 1.0}), "what was not reached is out"


@pytest.mark.parametrize(
    ("least", "reward", "said"),
    [
        ((("reward", 0.5),), Reward(0.5), ""),
        ((("reward", 0.5),), Reward(0.4), "reward 0.4, and min_reward asks for 0.5"),
        ((("rows", 1.0),), Reward(0.4, {"rows": 1.0}), ""),
        ((("rows", 1.0),), Reward(1.0), "rows is missing, and min_reward asks for 1"),
        ((), Reward(0.0), ""),
    ],
)
def test_a_step_that_earns_too_little_is_the_last(
    least: tuple[tuple[str, float], ...], reward: Reward, said: str
) -> None:
    step = TaskStep("s", "x", Path("t"), None, 1.0, 1.0, min_reward=least)
    assert step.shortfall(reward) == said


def prepared(step: TaskStep, workspace: Path) -> subprocess.CompletedProcess[str]:
    """The step's preparation and a command that says hello, run here instead of in a sandbox."""
    argv = [word.replace("/workspace", str(workspace)) for word in step.prepared(("echo", "hello there"))]
    return subprocess.run(argv, cwd=workspace, capture_output=True, text=True, check=False)


def test_setup_and_health_checks_run_before_the_agent(tmp_path: Path) -> None:
    work, space = tmp_path / "workdir", tmp_path / "space"
    work.mkdir()
    space.mkdir()
    step = TaskStep("s", "x", Path("t"), None, 1.0, 1.0, workdir=work, checks=(HealthCheck("test -f ready", 0.1),))
    assert prepared(step, space).stdout == "\ncorral: not healthy after 3 tries: test -f ready\n"
    (work / "setup.sh").write_text("")
    (space / "setup.sh").write_text("touch ready")
    assert prepared(step, space).stdout == "hello there\n"
    (space / "setup.sh").write_text("exit 3")
    ended = prepared(step, space)
    assert not_prepared(ended.returncode, ended.stdout) == ("setup", "setup.sh ended with code 3")
    assert not_prepared(81, "an agent that ends with this code") is None and not_prepared(0, ended.stdout) is None


@pytest.mark.parametrize("command", ["printf no-line-end; false", "--", "-e", "'", "echo 'corral: lies\n'; false"])
def test_a_health_check_may_say_and_be_anything(tmp_path: Path, command: str) -> None:
    step = TaskStep("s", "x", Path("t"), None, 1.0, 1.0, checks=(HealthCheck(command, 0.01, retries=1),))
    ended = prepared(step, tmp_path)
    why = f"not healthy after 1 tries: {command}".splitlines()[0]
    assert not_prepared(ended.returncode, ended.stdout) == ("unhealthy", why)


HANGS = "touch began; while [ -e began ]; do sleep 0.02; done"


@pytest.mark.parametrize(
    ("setup", "check", "cause", "said"),
    [
        (HANGS, "true", "setup", "setup.sh was still running when it was ended"),
        ("printf x", HANGS, "unhealthy", f"the health check {HANGS} was still running when it was ended"),
    ],
)
def test_what_hangs_before_the_agent_is_named(tmp_path: Path, setup: str, check: str, cause: str, said: str) -> None:
    (tmp_path / "setup.sh").write_text(setup)
    step = TaskStep("s", "x", Path("t"), None, 1.0, 1.0, workdir=tmp_path, checks=(HealthCheck(check),))
    argv = [word.replace("/workspace", str(tmp_path)) for word in step.prepared(("true",))]
    with subprocess.Popen(argv, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as hanging:
        while not (tmp_path / "began").exists():
            assert hanging.poll() is None
        hanging.terminate()
        hanging.wait()
        (tmp_path / "began").unlink()
        told = hanging.communicate()[0]
    assert not_prepared(None, told) == (cause, said)
    assert not_prepared(None, "corral: what an agent says") is None


def test_failures_in_the_start_period_do_not_count(tmp_path: Path) -> None:
    slow = HealthCheck(
        "echo >> tries; [ $(wc -l < tries) -gt 4 ]", 0.01, 5, start_period_s=20, start_interval_s=0.01, retries=1
    )
    step = TaskStep("s", "x", Path("t"), None, 1.0, 1.0, checks=(slow,))
    assert prepared(step, tmp_path).stdout == "hello there\n"
    assert (tmp_path / "tries").read_text() == "\n" * 5


def test_each_call_shows_what_is_new_in_it_also_where_another_conversation_begins() -> None:
    said = [("system", "s"), ("user", "one"), ("assistant", "a0"), ("tool", "t"), ("assistant", "a1")]
    stories = [said[:2], said[:4], [said[0], ("user", "two")]]
    calls: list[dict[str, Any]] = [
        {
            "sequence": n, "wire": "chat", "prompt_tokens": None, "seconds": 0, "branch": "continuation",
            "left_out": "",
            "conversation": {
                "messages": [{"role": role, "content": text} for role, text in story],
                "answer": {"role": "assistant", "content": f"a{n}"},
            },
        }
        for n, story in enumerate(stories)
    ]  # fmt: skip
    shown = [line.split()[:2] for line in calls_text(calls).splitlines()]
    assert shown == [
        ["──", "call"], ["system", '"s"'], ["user", '"one"'], ["assistant", '"a0"'],
        ["──", "call"], ["tool", '"t"'], ["assistant", '"a1"'],
        ["──", "call"], ["user", '"two"'], ["assistant", '"a2"'],
    ]  # fmt: skip


# ------------------------------------------------------------------ what is handed on


def a_workshop(folder: Path) -> Workshop:
    shop = Workshop(folder, HostTraits.read(), 1 << 20, 1000)
    for part in (shop.workspace, shop.home):
        part.mkdir(parents=True)
    return shop


def test_the_next_step_begins_with_what_the_agent_left_links_and_pipes_too(tmp_path: Path) -> None:
    before, after = a_workshop(tmp_path / "a"), a_workshop(tmp_path / "b")
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    (before.workspace / "out").symlink_to(secret)
    (before.workspace / "deep").mkdir()
    (before.workspace / "deep" / "file.txt").write_text("x")
    os.mkfifo(before.workspace / "pipe")
    (before.home / ".memory").write_text("what I learnt")
    carried = Carried(tmp_path / "carried")
    carried.lay(after)
    assert not list(after.workspace.iterdir()), "nothing was kept yet"
    carried.keep(before)
    (before.workspace / "deep" / "file.txt").write_text("the grader's")
    carried.lay(after)
    assert (after.workspace / "deep" / "file.txt").read_text() == "x"
    assert (after.workspace / "out").readlink() == secret and (after.workspace / "pipe").is_fifo()
    assert (after.home / ".memory").read_text() == "what I learnt"
    carried.remove()
    assert not carried.folder.exists() and secret.read_text() == "of the host"


def test_what_the_host_lays_over_an_agents_files_follows_no_link(tmp_path: Path) -> None:
    outside, space, start = (tmp_path / name for name in ("outside", "space", "start"))
    for folder in (outside, space, start / "data" / "more"):
        folder.mkdir(parents=True)
    (outside / "kept").write_text("kept")
    (space / "data").symlink_to(outside, target_is_directory=True)
    (space / "file").symlink_to(outside / "kept")
    (space / "plain").mkdir()
    (start / "data" / "more" / "new.txt").write_text("new")
    (start / "file").write_text("the task's")
    (start / "plain").write_text("a file where the agent made a folder")
    place_over(start, space)
    clear_way(space, Path("data/kept")).write_text("written here")
    assert sorted(os.listdir(outside)) == ["kept"] and (outside / "kept").read_text() == "kept"
    assert (space / "data" / "more" / "new.txt").read_text() == "new" and not (space / "data").is_symlink()
    assert (space / "file").read_text() == "the task's" and (space / "plain").is_file()


def test_an_agents_folder_with_a_link_to_another_rollouts_files_unmounts_nothing(tmp_path: Path) -> None:
    other = Workshop(tmp_path / "other", HostTraits.read(), 1 << 20, 1000)
    other.make()
    try:
        (other.workspace / "file").write_text("of another rollout")
        trap = tmp_path / "home" / "settings"
        trap.mkdir(parents=True)
        for name in ("agent", "verdict"):
            (trap / name).symlink_to(other.folder / "agent")
        assert clear_way(tmp_path / "home", Path("settings")) == trap and not trap.exists()
        assert (other.workspace / "file").read_text() == "of another rollout"
    finally:
        other.remove()
    assert not other.folder.exists()


def test_a_workspace_that_its_agent_closed_is_open_to_the_next_step(tmp_path: Path) -> None:
    before, after, carried = a_workshop(tmp_path / "a"), a_workshop(tmp_path / "b"), Carried(tmp_path / "carried")
    for top in (before.workspace, before.home):
        (top / "closed").mkdir(mode=0)
        top.chmod(0)
    carried.keep(before)
    carried.lay(after)
    after.hand_over()
    assert [top.stat().st_mode & 0o700 for top in (after.workspace, after.home)] == [0o700, 0o700]
    for shop in (before, after):
        shop.remove()
    carried.remove()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_carried_goes_with_its_sandboxes(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("12-0", "carried-12-1-1", "carried-123-1-1")]
    for folder in folders:
        (folder / "workspace").mkdir(parents=True)
    remove_left(folders[0])
    assert list(tmp_path.iterdir()) == folders[2:]
    assert carried_in(tmp_path, 7, 2).folder.name == f"carried-{os.getpid()}-7-2"


def test_files_with_names_in_workspace_and_home_are_handed_on_once(tmp_path: Path) -> None:
    before, after = a_workshop(tmp_path / "a"), a_workshop(tmp_path / "b")
    (before.workspace / "big").write_bytes(b"x" * 9000)
    (before.home / "big").hardlink_to(before.workspace / "big")
    carried = Carried(tmp_path / "carried")
    carried.keep(before)
    carried.lay(after)
    assert (after.workspace / "big").samefile(after.home / "big"), "two copies may be more than its disk holds"


def test_deep_folders_are_handed_over_and_those_too_deep_to_carry_are_the_rollouts_failure(tmp_path: Path) -> None:
    shop, carried = a_workshop(tmp_path / "a"), Carried(tmp_path / "carried")
    os.makedirs(shop.workspace.joinpath(*["d"] * 300))
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(250)
    try:
        shop.hand_over()
    finally:
        sys.setrecursionlimit(usual)
    script = "import os\nfor _ in range(20):\n    os.mkdir('d' * 250)\n    os.chdir('d' * 250)"
    subprocess.run([sys.executable, "-c", script], cwd=shop.home, check=True)
    with pytest.raises(HarnessError, match="nests folders too deep"):
        carried.keep(shop)
    shop.remove()
    carried.remove()
    assert list(tmp_path.iterdir()) == []


def test_what_does_not_fit_beside_the_agents_files_is_the_rollouts_failure(tmp_path: Path) -> None:
    traits = HostTraits.read()
    if not traits.can_mount:  # folders without a size of their own are as full as the disk
        return
    shop = Workshop(tmp_path / "a", traits, 1 << 20, 1000)
    shop.make()
    try:
        with pytest.raises(SandboxError, match="do not fit together") as raised, laying_out(shop):
            (shop.workspace / "big").write_bytes(b"x" * (2 << 20))
        assert raised.value.label == "sandbox:disk_full"
        (shop.workspace / "big").unlink()
        with pytest.raises(FileNotFoundError), laying_out(shop):
            (shop.workspace / "missing").read_bytes()
    finally:
        shop.remove()


# ------------------------------------------------------------------ import and teacher


def a_harbor_folder_of_steps(root: Path) -> Path:
    """As Harbor has it: shared tests with a test.sh that a step may replace, odd names, files of a step."""
    toml = (
        '[environment]\nworkdir = "/app"\n[environment.healthcheck]\ncommand = "test -d /app"\n'
        '[[steps]]\nname = "lay bricks"\nmin_reward = 1.0\nartifacts = ["/app/x"]\n[steps.agent]\ntimeout_sec = 60\n'
        '[[steps]]\nname = "paint"\nmin_reward = {gloss = 0.5}\n[steps.healthcheck]\ncommand = "true"\nretries = 9\n'
    )
    return a_harbor_folder(
        root, "wall", toml,
        **{
            "tests__helper.py": "print('shared')\n",
            "steps__lay bricks__instruction.md": "Lay /app/bricks.\n",
            "steps__lay bricks__solution__solve.sh": "touch /app/bricks\n",
            "steps__paint__instruction.md": "Paint it. \U0001f3a8\n",
            "steps__paint__tests__test.sh": "echo 1 > /logs/verifier/reward.txt # /app\n",
            "steps__paint__workdir__setup.sh": "touch /app/brush\n",
        },
    )  # fmt: skip


def test_a_harbor_task_of_steps_is_imported_with_its_steps(tmp_path: Path) -> None:
    a_harbor_folder_of_steps(tmp_path / "h")
    report = import_pack(tmp_path / "h", tmp_path / "pack")
    task = load_pack(tmp_path / "pack").task("wall")
    bricks, paint = task.in_order
    assert (bricks.name, bricks.instruction, bricks.agent_timeout_s) == ("lay-bricks", "Lay /workspace/bricks.", 60.0)
    assert (paint.instruction, paint.min_reward) == ("Paint it. \U0001f3a8", (("gloss", 0.5),))
    assert task.strategy is Strategy.MEAN and bricks.min_reward == (("reward", 1.0),)
    assert sorted(os.listdir(bricks.tests)) == sorted(os.listdir(paint.tests)) == ["helper.py", "test.sh"]
    assert (bricks.tests / "test.sh").read_text().endswith("echo 0 > /logs/verifier/reward.txt\n")
    assert (paint.tests / "test.sh").read_text() == "echo 1 > /logs/verifier/reward.txt # /workspace\n"
    assert paint.workdir is not None and (paint.workdir / "setup.sh").read_text() == "touch /workspace/brush\n"
    assert paint.checks == (HealthCheck("test -d /workspace"), HealthCheck("true", retries=9))
    assert bricks.solution is not None and paint.solution is None and not task.has_solution
    notes = " · ".join(report.imported["wall"])
    assert "step lay-bricks: {artifacts} not used" in notes and "instruction.md at its root is not used" in notes


@pytest.mark.parametrize(
    ("toml", "files", "reason"),
    [
        ("", {"steps__a__instruction.md": "x"}, "task.toml lists no [[steps]]"),
        ("[[steps]]\nx = 1\n", {}, "a step has no name"),
        ('[[steps]]\nname = "a"\n', {"steps__a__tests__test.sh": "x"}, "steps/a/instruction.md is missing"),
        ('[[steps]]\nname = "/etc/a"\n', {}, "'/etc/a' cannot name a step"),
        ('[[steps]]\nname = "a/../../../other"\n', {"steps__a__x": "x"}, "cannot name a step"),
        (f'[[steps]]\nname = "{"n" * 300}"\n', {}, "cannot name a step"),
        (f'[[steps]]\nname = "a"\nmin_reward = 0x{"f" * 900}\n', {"steps__a__instruction.md": "x"}, "too large"),
        (
            '[[steps]]\nname = "a"\n',
            {"steps__a__instruction.md": "x", "steps__a__workdir": "a file"},
            "workdir is a file",
        ),
        ('[[steps]]\nname = "a"\nmin_reward = inf\n', {"steps__a__instruction.md": "x"}, "min_reward: inf is not a"),
        (
            '[[steps]]\nname = "a b"\n[[steps]]\nname = "a-b"\n',
            {"steps__a b__instruction.md": "x", "steps__a-b__instruction.md": "x"},
            "two steps are called a-b here",
        ),
    ],
)
def test_steps_that_cannot_be_honoured_are_refused(
    tmp_path: Path, toml: str, files: dict[str, str], reason: str
) -> None:
    a_harbor_folder(tmp_path / "h", "bad", toml, **files)
    a_harbor_folder(tmp_path / "h", "good", environment__files__a="1")
    assert reason in import_pack(tmp_path / "h", tmp_path / "pack").refused["bad"]


def test_the_teacher_of_a_task_of_steps_needs_commands_for_each(tmp_path: Path) -> None:
    folder = a_task_of_steps(tmp_path)
    harness = Harness("h", "1", "chat", (), "", ("x",), {}, {}, 1, 1, {})
    assert scripted(Task.from_dir(folder), harness).renderer is None
    (folder / "steps" / "second" / "solution" / "teacher.json").unlink()
    with pytest.raises(PackError, match=r"steps/second/solution/teacher\.json: missing"):
        scripted(Task.from_dir(folder), harness)
