"""The claw pack: the generator writes the same tasks everywhere, and every grader means what it says.

The graders run here without a container: their folders come from environment variables.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from appliance.tasks.digest import pack_digest, task_digest
from appliance.tasks.pack import Task, load_pack
from appliance.tasks.reward import read_reward
from appliance.types import Reward

CLAW = Path(__file__).resolve().parents[2] / "data" / "claw"
PACK = load_pack(CLAW)
DIGEST = "142458f94dd3021734758a1a1bc6961704d452feb9219a9c7477e1b84f8564dd"
"""Of the 132 tasks that were stored in this repository before they were generated."""
HELD_OUT_WHOLE = {"schedule", "contacts", "link-check"}
FAMILIES = sorted({task.family for task in PACK.tasks})


class Bench:
    """One task's workspace and log folder, with what an agent and the grader do to them."""

    def __init__(self, root: Path, task: Task) -> None:
        self.task, self.workspace, self.logs = task, root / "workspace", root / "logs"
        shutil.copytree(task.environment_files, self.workspace)
        self.logs.mkdir()
        self.env = {
            "PATH": os.environ["PATH"],
            "CORRAL_WORKSPACE": str(self.workspace),
            "CORRAL_TESTS": str(task.tests),
            "CORRAL_VERIFIER_LOGS": str(self.logs),
        }

    def solve(self) -> None:
        assert self.task.solution
        subprocess.run(["bash", self.task.solution / "solve.sh"], env=self.env, check=True, timeout=60)

    def grade(self) -> Reward:
        done = subprocess.run(
            ["bash", self.task.tests / "test.sh"], env=self.env, check=True, timeout=60, capture_output=True
        )
        assert not done.stdout and not done.stderr
        return read_reward(self.logs)


def first_of(family: str) -> Task:
    return next(task for task in PACK.tasks if task.family == family and task.split == "held-out")


def written(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def test_the_generator_writes_the_tasks_of_the_digest_and_the_samples_are_among_them(tmp_path: Path) -> None:
    subprocess.run([sys.executable, CLAW / "generate.py", "--out", tmp_path], check=True, capture_output=True)
    digests = {task.name: task_digest(task) for task in tmp_path.iterdir()}
    assert len(digests) == 132 and pack_digest(digests) == DIGEST
    samples = {task.name: task_digest(task) for task in (CLAW / "samples").iterdir()}
    assert samples == {name: digests[name] for name in samples}
    assert sorted(PACK.task(name).family for name in samples) == FAMILIES


def test_there_are_at_least_120_tasks_in_twelve_families_split_by_family_and_instance() -> None:
    splits = {f: Counter(t.split for t in PACK.tasks if t.family == f) for f in FAMILIES}
    assert len(PACK.tasks) == 132 and len(FAMILIES) == 12
    for family, counts in splits.items():
        assert counts == ({"held-out": 8} if family in HELD_OUT_WHOLE else {"train": 9, "held-out": 3})
    workspaces = {tuple(sorted(written(t.environment_files).items())) for t in PACK.tasks}
    assert len(workspaces) == len(PACK.tasks)


def check_null_and_oracle(root: Path, task: Task) -> None:
    assert Bench(root / "null", task).grade().value == 0.0
    bench = Bench(root / "oracle", task)
    bench.solve()
    assert bench.grade().value == 1.0


@pytest.mark.parametrize("family", FAMILIES)
def test_one_task_a_family_gives_nothing_for_nothing_and_all_for_the_oracle(tmp_path: Path, family: str) -> None:
    check_null_and_oracle(tmp_path, first_of(family))


@pytest.mark.slow
@pytest.mark.parametrize("task", PACK.tasks, ids=lambda task: task.name)
def test_every_task_gives_nothing_for_nothing_and_all_for_the_oracle(tmp_path: Path, task: Task) -> None:
    check_null_and_oracle(tmp_path, task)


def test_changing_an_input_halves_the_reward(tmp_path: Path) -> None:
    bench = Bench(tmp_path, first_of("sales-report"))
    bench.solve()
    (bench.workspace / "sales.csv").write_text("id\n")
    assert bench.grade().value == 0.5


def test_part_of_a_report_earns_part_of_the_reward(tmp_path: Path) -> None:
    bench = Bench(tmp_path, first_of("schedule"))
    bench.solve()
    plan = (bench.workspace / "plan.json").read_text()
    (bench.workspace / "plan.json").write_text(plan.replace('"slot": "', '"slot": "1'))
    assert 0.0 < bench.grade().value < 1.0


def test_rows_too_many_take_from_the_reward(tmp_path: Path) -> None:
    bench = Bench(tmp_path, first_of("contacts"))
    bench.solve()
    with (bench.workspace / "contacts.csv").open("a") as file:
        file.write("Zed Zed,z@z.example,1\n" * 2)
    assert bench.grade().value == pytest.approx(6 / 8)


def test_a_reward_written_by_the_agent_does_not_count(tmp_path: Path) -> None:
    bench = Bench(tmp_path, first_of("invoices"))
    (bench.logs / "reward.json").write_text('{"reward": 1.0}')
    (bench.workspace / "reward.json").write_text('{"reward": 1.0}')
    assert bench.grade().value == 0.0


CHEATS = {
    "reads what is expected": "import json\nE = json.load(open({tests!r} + '/expected.json'))\n",
    "writes the reward": "open({logs!r} + '/reward.json', 'w').write('{{\"reward\": 1}}')\n",
    "leaves a process": "import os\nif os.fork() == 0:\n    import time; time.sleep(3)\n",
    "starts a program": "import subprocess\nsubprocess.run(['cp', '/dev/null', {logs!r}])\n",
    "loads C": "import ctypes\n",
    "hangs": "while True:\n    pass\n",
    "ends the grader": "import sys\nsys.exit(0)\n",
    "kills it": "import os\nos.kill(os.getppid(), 9)\n",
    "says what was right": "print('[[true, 1]]')\nraise SystemExit\n",
}


@pytest.mark.parametrize("cheat", [*CHEATS.values()], ids=[*CHEATS])
def test_code_that_cheats_earns_nothing(tmp_path: Path, cheat: str) -> None:
    task = first_of("code-repair")
    bench = Bench(tmp_path, task)
    (module,) = [f for f in bench.workspace.glob("*.py") if not f.name.startswith("test_")]
    body = cheat.format(tests=str(task.tests), logs=str(bench.logs))
    module.write_text(body + module.read_text())
    assert bench.grade().value == 0.0
    assert [f.name for f in bench.logs.iterdir()] == ["reward.json"]


def test_a_repair_that_breaks_what_was_right_earns_half(tmp_path: Path) -> None:
    task = next(t for t in PACK.tasks if t.instruction.startswith("late_fee"))
    bench = Bench(tmp_path, task)
    bench.solve()
    (module,) = [f for f in bench.workspace.glob("*.py") if not f.name.startswith("test_")]
    whole = bench.grade().value
    module.write_text(module.read_text().replace("max(0, days)", "max(7, days)"))  # no fee on day 0 was right before
    assert whole == 1.0 and 0.0 < bench.grade().value <= 0.5
