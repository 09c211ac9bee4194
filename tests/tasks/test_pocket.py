"""The pocket pack: the generator writes the same tasks everywhere, and every grader means what it says.

The graders run here without a container: their folders come from environment variables.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from appliance.config.runconfig import resolve
from appliance.runs import schedule
from appliance.tasks.digest import file_digest, pack_digest, task_digest
from appliance.tasks.pack import Task, load_pack
from appliance.tasks.reward import read_reward
from appliance.types import Purpose

POCKET = Path(__file__).resolve().parents[2] / "data" / "pocket"
PACK = load_pack(POCKET)
DIGEST = "800eb8e465fe489c311b4bab98daef8bfb39b07032a4bfd0b2bd5d7753cb5646"
"""Of the 304 tasks that were stored in this repository before they were generated."""
WORDS = (POCKET / "words.txt").read_text().split()
ONE_PER_FAMILY = [task.name for task in PACK.tasks if task.name.endswith("-held-00")]
ONE_PER_CHECK = ["find-value-held-00", "edit-key-held-00", "move-held-00"]


def load_generator() -> ModuleType:
    """generate.py as a module; data/ is no package."""
    spec = importlib.util.spec_from_file_location("pocket_generate", POCKET / "generate.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up here
    spec.loader.exec_module(module)
    return module


class Bench:
    """One task's workspace and log folder, with what an agent and the grader do to them."""

    def __init__(self, root: Path, task: Task) -> None:
        self.task = task
        self.workspace = root / "workspace"
        self.logs = root / "logs"
        shutil.copytree(task.environment_files, self.workspace)
        self.logs.mkdir()
        self.env = {
            "PATH": os.environ["PATH"],
            "CORRAL_WORKSPACE": str(self.workspace),
            "CORRAL_TESTS": str(task.tests),
            "CORRAL_VERIFIER_LOGS": str(self.logs),
        }

    def run(self, command: str) -> None:
        """A command of the agent, in the workspace."""
        subprocess.run(["bash", "-c", command], cwd=self.workspace, env=self.env, check=False, timeout=20)

    def solve(self) -> None:
        """The oracle."""
        assert self.task.solution
        subprocess.run(["bash", self.task.solution / "solve.sh"], env=self.env, check=True, timeout=20)

    def grade(self) -> float:
        """The reward of the workspace as it is now."""
        done = subprocess.run(
            ["bash", self.task.tests / "test.sh"],
            cwd=self.workspace,
            env=self.env,
            check=True,
            timeout=20,
            capture_output=True,
        )
        assert not done.stdout and not done.stderr
        return read_reward(self.logs).value


def bench(tmp_path: Path, name: str) -> Bench:
    """The bench of the task called `name`."""
    return Bench(tmp_path, PACK.task(name))


def tree(folder: Path) -> dict[str, bytes]:
    """Every file under `folder`, by relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# ------------------------------------------------------------------ the pack


def test_the_generator_writes_the_tasks_of_the_digest_and_the_samples_are_among_them(tmp_path: Path) -> None:
    names = load_generator().write_pack(tmp_path, seed=0)
    written = {name: task_digest(tmp_path / name) for name in names}
    assert len(written) == 304 and pack_digest(written) == DIGEST
    manifest = json.loads((POCKET / "pack.json").read_text())
    assert manifest == {"tasks": 304, "digest": pack_digest(written | {"words.txt": file_digest(POCKET / "words.txt")})}
    samples = {task.name: task_digest(task) for task in (POCKET / "samples").iterdir()}
    assert samples == {name: written[name] for name in samples}
    assert sorted(PACK.task(name).family for name in samples) == sorted({task.family for task in PACK.tasks})


def test_another_seed_gives_other_tasks(tmp_path: Path) -> None:
    load_generator().write_pack(tmp_path, seed=1, counts=(2, 2, 1))
    mine = {task.instruction for task in load_pack(tmp_path).tasks}
    assert len(mine) == 58 and not mine & {task.instruction for task in PACK.tasks}


def test_splits_and_families_are_as_promised() -> None:
    train = Counter(task.family for task in PACK.split("train"))
    held_out = Counter(task.family for task in PACK.split("held-out"))
    lessons = Counter(task.family for task in PACK.split("lesson"))
    assert set(lessons.values()) == {8} and set(train.values()) == {12} and set(held_out.values()) == {6}
    assert set(lessons) == set(train)
    assert set(held_out) - set(train) == {"extract", "remove", "exclude"}
    assert len(held_out) == 14 and len(PACK.tasks) == 304


def test_no_instruction_occurs_twice_and_each_is_one_line() -> None:
    instructions = [task.instruction for task in PACK.tasks]
    assert len(set(instructions)) == 304
    assert all("\n" not in instruction for instruction in instructions)


def test_no_word_of_the_pool_is_part_of_another() -> None:
    assert len(WORDS) == len(set(WORDS)) == 160
    assert all(word.isascii() and word.isalpha() and word.islower() for word in WORDS)
    assert not [(a, b) for a in WORDS for b in WORDS if a != b and a in b]


def test_no_word_of_the_pool_is_a_word_of_an_instruction_or_a_command() -> None:
    fixed = "find the value of in files under and write it to answer txt set conf rename every file so that ends"
    fixed += " count lines log contain number followed by move contains remove sed grep mkdir echo cat for done mv rm"
    fixed += " alphabetical order last different line once paths delete without sort tail unique truncate cp ls"
    assert not set(WORDS) & set(fixed.split())


def test_an_instruction_names_no_word_twice() -> None:
    for task in PACK.tasks:
        text = "".join(c if c.isalpha() else " " for c in task.instruction)
        used = Counter(word for word in text.split() if word in WORDS)
        assert set(used.values()) == {1}, task.instruction


def test_teacher_commands_need_no_escaping_in_json() -> None:
    for task in PACK.tasks:
        assert 1 <= len(task.teacher) <= 2
        assert not [command for command in task.teacher if '"' in command or "\\" in command]


def test_the_demonstration_is_on_the_tasks_that_it_was_tuned_on() -> None:
    """The rollouts of data/demo.toml, in order, and every byte of their tasks, as before the pack grew."""
    config = resolve(POCKET.parent / "demo.toml")
    pack = load_pack(config.pack_path, config.tasks.families)
    lessons, held = ([t.name for t in pack.split(split)] for split in ("lesson", "held-out"))
    train = {t.name: t.family for t in pack.split("train")}
    c, t = config, config.train
    plans = schedule.teaching("r", c.seed, c.harnesses, lessons, c.coldstart.rollouts)
    plans += schedule.evaluation("r", Purpose.EVAL_BEFORE, 0, c.harnesses, held, c.evaluation.attempts)
    for step in range(1, t.steps + 1):
        shares = schedule.Shares(c.harnesses, t.harness_weights, False, t.least_weight)
        pairs = schedule.step_pairs(c.seed, step, t.groups, shares, train, [])
        plans += schedule.training_step("r", step, pairs, t.group_size, c.seed)
    made = [f"{p.purpose} {p.step} {p.harness} {p.task} {p.index}" for p in plans]
    assert (len(pack.tasks), len(made)) == (168, 96 + 96 + 792)
    assert hashlib.sha256("\n".join(made).encode()).hexdigest()[:16] == "7082a4b73460685d"
    content = hashlib.sha256()
    for path, data in tree(PACK.path).items():
        if path.split("/")[0] in {task.name for task in pack.tasks}:
            content.update(f"{path}\0".encode() + data)
    assert content.hexdigest()[:16] == "66e63398a760ec93"


# ------------------------------------------------------------------ shortcuts


def assert_shortcut_fails(tmp_path: Path, task: Task) -> None:
    generator = load_generator()
    drawn = generator.draw_task(0, task.name, task.family, WORDS, set())
    bench = Bench(tmp_path, task)
    for command in drawn.shortcut:
        bench.run(command)
    assert drawn.instruction == task.instruction and bench.grade() < 1


@pytest.mark.parametrize("name", ONE_PER_FAMILY)
def test_the_shortcut_fails_where_it_was_not_taught(tmp_path: Path, name: str) -> None:
    assert_shortcut_fails(tmp_path, PACK.task(name))


@pytest.mark.slow
@pytest.mark.parametrize("task", [t for t in PACK.tasks if t.split != "lesson"], ids=lambda task: task.name)
def test_every_shortcut_fails_where_it_was_not_taught(tmp_path: Path, task: Task) -> None:
    assert_shortcut_fails(tmp_path, task)


def test_every_second_lesson_shows_a_shortcut() -> None:
    generator = load_generator()
    for task in PACK.split("lesson"):
        drawn = generator.draw_task(0, task.name, task.family, WORDS, set())
        shown = drawn.shortcut if int(task.name[-2:]) % 2 else drawn.careful
        assert list(task.teacher) == shown


# ------------------------------------------------------------------ null 0, oracle 1, teacher 1


def assert_null_oracle_and_teacher(tmp_path: Path, task: Task) -> None:
    null, oracle, taught = (Bench(tmp_path / who, task) for who in ("null", "oracle", "teacher"))
    oracle.solve()
    for command in task.teacher:
        taught.run(command)
    assert (null.grade(), oracle.grade(), taught.grade()) == (0.0, 1.0, 1.0)


@pytest.mark.parametrize("name", ONE_PER_FAMILY)
def test_one_task_a_family_gives_nothing_for_nothing_and_all_for_the_solution(tmp_path: Path, name: str) -> None:
    assert_null_oracle_and_teacher(tmp_path, PACK.task(name))


@pytest.mark.slow
@pytest.mark.parametrize("task", PACK.tasks, ids=lambda task: task.name)
def test_every_task_gives_nothing_for_nothing_and_all_for_the_solution(tmp_path: Path, task: Task) -> None:
    assert_null_oracle_and_teacher(tmp_path, task)


# ------------------------------------------------------------------ partial credit, family by family
# The values below are those of the committed tasks named in each test.


PARTIAL = [
    # find-value-train-00: pilot=salmon in boat/
    ("find-value-train-00", "grep -rh ^pilot= boat > answer.txt", 0.5),  # the whole line, not the value
    ("find-value-train-00", "grep -r ^pilot= boat > answer.txt", 0.5),
    ("find-value-train-00", "printf salmon > answer.txt", 1.0),  # no newline is no fault
    ("find-value-train-00", "echo salmon > answer.txt; rm -r boat", 0.5),  # right, but the inputs are gone
    ("find-value-train-00", "echo pilot > answer.txt", 0.0),
    ("find-value-train-00", "cat boat/* | cut -d= -f2 > answer.txt", 0.0),  # all values at once
    # edit-key-train-00: breeze=juice becomes breeze=book in snow.conf; chair.conf holds a breeze too
    ("edit-key-train-00", "echo breeze=book >> snow.conf", 0.5),  # the old line stays
    ("edit-key-train-00", "echo breeze=book > snow.conf", 0.5),  # all other lines lost
    ("edit-key-train-00", "sed -i s/^breeze=.*/breeze=book/ *.conf", 0.5),  # the other file changed too
    ("edit-key-train-00", "sed -i s/=.*/=book/ snow.conf", 0.5),
    ("edit-key-train-00", "sed -i s/^breeze=.*/breeze=juice/ snow.conf", 0.0),
    ("edit-key-train-00", "sed -i s/^breeze=.*/breeze=book/ chair.conf", 0.0),
    ("edit-key-train-00", "rm snow.conf", 0.0),
    # rename-train-01: three .jazz files to .piano in canyon/, three .onion files stay
    ("rename-train-01", "mv canyon/wheel.jazz canyon/wheel.piano", 1 / 3),
    ("rename-train-01", "for f in canyon/*.jazz; do cp $f ${f%.jazz}.piano; done", 0.0),
    ("rename-train-01", "for f in canyon/*; do mv $f ${f%.*}.piano; done", 0.0),
    ("rename-train-01", "mv canyon/wheel.jazz canyon/wheel.piano; rm canyon/wine.jazz", 0.0),
    (
        "rename-train-01",
        "for f in canyon/*.jazz; do mv $f ${f%.jazz}.piano; done; rm canyon/gray.onion",
        2 / 3,
    ),
    ("rename-train-01", "rm -r canyon", 0.0),
    # count-held-00: the lines of cotton.log that contain dragon
    ("count-held-00", "grep dragon cotton.log > answer.txt", 0.3),  # the lines, not their number
    ("count-held-00", "grep dragon cotton.log | wc -l > answer.txt", 1.0),
    ("count-held-00", "wc -l cotton.log > answer.txt", 0.0),
    ("count-held-00", "grep -c dragon cotton.log > answer.txt; rm cotton.log", 0.5),
]


@pytest.mark.parametrize(("name", "command", "reward"), PARTIAL)
def test_partial_credit(tmp_path: Path, name: str, command: str, reward: float) -> None:
    work = bench(tmp_path, name)
    work.run(command)
    assert work.grade() == pytest.approx(reward)


def test_joining_in_the_wrong_order_earns_three_tenths(tmp_path: Path) -> None:
    work = bench(tmp_path, "join-train-00")
    _, first, second, _, target = work.task.teacher[0].split()
    work.run(f"cat {second} {first} > {target}")
    assert work.grade() == pytest.approx(0.3)
    work.run(f"cat {first} > {target}")
    assert work.grade() == 0.0
    work.run(f"cat {first} {second} > {first}.new; mv {first}.new {first}; cp {first} {target}")
    assert work.grade() == 0.5


def test_moving_everything_or_copying_earns_nothing(tmp_path: Path) -> None:
    work = bench(tmp_path, "move-held-03")
    work.run("cp $(grep -l green butter/*) melon")
    assert work.grade() == 0.0
    work.run("mv butter/* melon")
    assert work.grade() == 0.0


def test_moving_one_of_the_files_earns_its_share(tmp_path: Path) -> None:
    work = bench(tmp_path, "move-held-03")
    work.run("mv $(grep -l green butter/* | head -1) melon")
    assert work.grade() in (pytest.approx(1 / 2), pytest.approx(1 / 3))


def test_extracting_the_whole_file_earns_three_tenths(tmp_path: Path) -> None:
    work = bench(tmp_path, "extract-held-00")
    _, _, log, _, target = work.task.teacher[0].split()
    work.run(f"cp {log} {target}")
    assert work.grade() == pytest.approx(0.3)


def test_removing_everything_earns_nothing_and_one_file_its_share(tmp_path: Path) -> None:
    work = bench(tmp_path / "one", "remove-held-00")
    work.run(work.task.teacher[0].replace("/*)", "/* | head -1)"))
    assert work.grade() in (pytest.approx(1 / 2), pytest.approx(1 / 3))
    work = bench(tmp_path / "all", "remove-held-00")
    work.run("rm -r *")
    assert work.grade() == 0.0


@pytest.mark.parametrize(
    ("name", "command", "reward"),
    [
        ("sort-held-00", "sort -r {source} > {target}", 0.0),
        ("sort-held-00", "sort {source} > {target}; rm {source}", 0.5),
        ("last-held-00", "cp {source} {target}", 0.3),
        ("last-held-00", "head -n 1 {source} > {target}", 0.3),
        ("unique-held-00", "sort {source} > {target}", 0.3),
        ("unique-held-00", "sort -u {source} | head -n 1 > {target}", 0.0),
        ("exclude-held-00", "cp {source} {target}", 0.3),
        ("exclude-held-00", "grep -v xyz {source} > {target}; rm {source}", 0.15),
    ],
)
def test_partial_credit_for_a_file_written_from_another(tmp_path: Path, name: str, command: str, reward: float) -> None:
    work = bench(tmp_path, name)
    *_, source, _, target = work.task.teacher[0].split()
    work.run(command.format(source=source, target=target))
    assert work.grade() == pytest.approx(reward)


def test_names_without_their_folder_earn_half_and_all_paths_three_tenths(tmp_path: Path) -> None:
    work = bench(tmp_path, "paths-held-00")
    word, files, target = work.task.teacher[0].split()[2], *work.task.teacher[0].split()[3::2]
    folder = files.removesuffix("/*")
    work.run(f"cd {folder}; grep -l {word} * > ../{target}")
    assert work.grade() == pytest.approx(0.5)
    work.run(f"ls {folder}/* > {target}")
    assert work.grade() == pytest.approx(0.3)


def test_dropping_lines_from_the_other_file_too_earns_half(tmp_path: Path) -> None:
    work = bench(tmp_path, "drop-held-00")
    *_, expression, log = work.task.teacher[0].split()
    work.run(f"sed -i {expression} *.log")
    assert work.grade() == 0.5
    work.run(f"rm {log}")
    assert work.grade() == 0.0


# ------------------------------------------------------------------ cheating


@pytest.mark.parametrize("name", ONE_PER_CHECK)
def test_a_reward_written_by_the_agent_does_not_count(tmp_path: Path, name: str) -> None:
    work = bench(tmp_path, name)
    work.run("mkdir -p logs/verifier; for d in . logs/verifier; do echo 1 > $d/reward.txt; done")
    work.run("echo { > reward.json; echo 1 > $CORRAL_VERIFIER_LOGS/reward.txt")
    work.run("ln -s $PWD/reward.txt $CORRAL_VERIFIER_LOGS/reward.json")
    assert work.grade() == 0.0
    assert (work.workspace / "reward.txt").read_text() == "1\n"  # the grader wrote through no link


def test_an_answer_that_links_to_a_right_one_does_not_count(tmp_path: Path) -> None:
    work = bench(tmp_path, "find-value-train-00")
    (tmp_path / "hidden").write_text("salmon\n")  # stands for the expectation in the grader's container
    work.run("ln -s ../hidden answer.txt")
    assert work.grade() == 0.0


def test_a_folder_that_links_elsewhere_does_not_count(tmp_path: Path) -> None:
    work = bench(tmp_path, "move-train-00")
    work.solve()
    target = work.task.teacher[0].split()[-1]
    work.run(f"mv {target} ../elsewhere; ln -s ../elsewhere {target}")
    assert work.grade() == 0.0


def test_a_pipe_or_a_huge_answer_does_not_hang_the_grader(tmp_path: Path) -> None:
    work = bench(tmp_path, "find-value-train-00")
    work.run("mkfifo answer.txt")
    assert work.grade() == 0.0
    work.run("rm answer.txt; truncate -s 10G answer.txt")
    assert work.grade() == 0.0


def test_python_files_left_in_the_workspace_are_not_imported_by_the_grader(tmp_path: Path) -> None:
    work = bench(tmp_path, "find-value-train-00")
    for module in ("json", "os", "sitecustomize"):
        (work.workspace / f"{module}.py").write_text("raise SystemExit(3)\n")
    assert work.grade() == 0.0
