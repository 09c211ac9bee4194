"""Task packs: folders of tasks in Harbor's layout, read into plain records.

    PACK/NAME/task.toml            [metadata] family, split · [agent] and [verifier] timeout_sec
                                   · [[environment.mcp_servers]]
             instruction.md        what the agent is told
             environment/files/    what its workspace holds at the start
             environment/Dockerfile  instead or beside: the image it is done and graded in
             tests/test.sh         the hidden grader, with its data beside it
             solution/             solve.sh (the oracle), teacher.json (a list of shell commands); optional
             steps/                instead of instruction, tests and solution: one after the other (`steps`)

Nothing is guessed: whatever is wrong raises a PackError that names the file, the key and the remedy, so
that a run never starts on a pack that would fail halfway.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from appliance.errors import PackError
from appliance.tasks.digest import file_digest, task_digest
from appliance.tasks.generated import shipped_packs, tasks_folder
from appliance.tasks.mcp import McpServer, read_servers
from appliance.tasks.rubric import Rubric
from appliance.tasks.steps import HealthCheck, Strategy, TaskStep, health_check, in_words, steps_of, strategy_of
from appliance.tasks.task_files import (
    Table,
    check_files,
    instruction_of,
    line_of,
    need,
    readable,
    seconds_of,
    tables_of,
    teacher_of,
    text_in,
)

SPLITS = ("lesson", "train", "held-out")
"""What the teacher shows, what is practised, what is only measured."""
WORDS = "words.txt"
"""Beside the tasks: interchangeable words, with which the cold start renames lessons."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class Task:
    """One task. `solution` is None when the task ships none; `teacher` is then empty.

    `dockerfile` is None when Corral's own image will do; with one, the folder `environment_files` may be missing.
    Of a task with `steps`, `instruction` is all of theirs, and tests, solution and teacher are the steps' own.
    """

    name: str
    family: str
    split: str
    instruction: str
    path: Path
    environment_files: Path
    tests: Path
    solution: Path | None
    agent_timeout_s: float
    verifier_timeout_s: float
    teacher: tuple[str, ...] = ()
    dockerfile: Path | None = None
    rubric: Rubric | None = None
    mcp_servers: tuple[McpServer, ...] = ()
    steps: tuple[TaskStep, ...] = ()
    strategy: Strategy = Strategy.MEAN
    checks: tuple[HealthCheck, ...] = ()

    @property
    def in_order(self) -> tuple[TaskStep, ...]:
        """Its steps, each with the task's own health check before its own; a task without steps is one of no name."""
        own = self.steps or (
            TaskStep(
                "",
                self.instruction,
                self.tests,
                self.solution,
                self.agent_timeout_s,
                self.verifier_timeout_s,
                self.teacher,
            ),
        )
        return tuple(replace(step, checks=(*self.checks, *step.checks)) for step in own) if self.checks else own

    def of_step(self, step: TaskStep) -> Task:
        """The task as it is while one of its steps is done."""
        return replace(
            self, instruction=step.instruction, tests=step.tests, solution=step.solution, teacher=step.teacher,
            agent_timeout_s=step.agent_timeout_s, verifier_timeout_s=step.verifier_timeout_s,
        )  # fmt: skip

    @property
    def has_solution(self) -> bool:
        """Whether it can be shown to be solvable: by its own solution, or by one of each step."""
        return all(step.solution is not None for step in self.in_order)

    @classmethod
    def from_dir(cls, path: Path) -> Task:
        """Read and check the task in folder `path`; PackError names the file and key that is wrong."""
        file = path / "task.toml"
        check_files(path)
        tables = tables_of(file)
        metadata = tables["metadata"]
        files = _environment_files(path / "environment")
        dockerfile = path / "environment" / "Dockerfile"
        solution = path / "solution"
        limits = [seconds_of(file, tables[part], f"{part}.timeout_sec") for part in ("agent", "verifier")]
        steps = steps_of(path, tables[""], (limits[0], limits[1]))
        if not steps:
            need(path / "tests" / "test.sh", "the grader; it writes reward.json or reward.txt")
        return cls(
            name=_name(file, tables["task"], path.name),
            family=line_of(file, metadata, "metadata.family"),
            split=_split(file, metadata),
            instruction=in_words(steps) if steps else instruction_of(path / "instruction.md"),
            path=path,
            environment_files=files,
            tests=path / "tests",
            solution=solution if (solution / "solve.sh").is_file() and not steps else None,
            agent_timeout_s=limits[0],
            verifier_timeout_s=limits[1],
            teacher=() if steps else teacher_of(solution / "teacher.json"),
            dockerfile=dockerfile if dockerfile.is_file() else None,
            rubric=None if steps else _rubric(path / "tests" / "rubric.json"),
            mcp_servers=read_servers(file, tables["environment"].get("mcp_servers", [])),
            steps=steps,
            strategy=strategy_of(file, tables[""]),
            checks=health_check(file, tables["environment"], "environment.healthcheck"),
        )


@dataclass(frozen=True, slots=True)
class Pack:
    """The tasks of a folder, in name order."""

    name: str
    path: Path
    tasks: tuple[Task, ...]

    def digests(self) -> dict[str, str]:
        """Task → digest of everything in its folder, and that of the pack's words.txt if it has one."""
        words = self.path / WORDS
        return {task.name: task_digest(task.path) for task in self.tasks} | (
            {WORDS: file_digest(words)} if words.is_file() else {}
        )

    def split(self, split: str) -> tuple[Task, ...]:
        """The tasks of one split."""
        return tuple(task for task in self.tasks if task.split == split)

    def of_families(self, families: Sequence[str]) -> Pack:
        """The pack with these families alone, or whole where none is named; PackError for one that it has not."""
        known = sorted({task.family for task in self.tasks})
        for family in families:
            if family not in known:
                near = difflib.get_close_matches(family, known, n=1, cutoff=0.7)
                remedy = f"did you mean {near[0]}?" if near else f"name some of {', '.join(known)}, or none for all"
                raise PackError(f"tasks.families: {self.path} has no family {family!r}", remedy)
        return replace(self, tasks=tuple(t for t in self.tasks if t.family in families)) if families else self

    def task(self, name: str) -> Task:
        """The task called `name`; PackError suggests the nearest name otherwise."""
        for task in self.tasks:
            if task.name == name:
                return task
        near = difflib.get_close_matches(name, [task.name for task in self.tasks], n=1)
        remedy = f"did you mean {near[0]}?" if near else f"the pack has {len(self.tasks)} tasks; name one"
        raise PackError(f"{self.path}: no task called {name}", remedy)


def load_pack(path: Path, families: Sequence[str] = ()) -> Pack:
    """The tasks of the folder `path`, of these families or of all. Folders that start with . or _ are no tasks.

    The tasks of a shipped pack are generated where they are missing (see `generated`).
    """
    path = tasks_folder(path)
    folders = _folders(path)
    by_name: dict[str, Task] = {}
    for folder in folders:
        task = Task.from_dir(folder)
        if task.name in by_name:
            twin = by_name[task.name].path / "task.toml"
            raise PackError(
                f"{folder / 'task.toml'}: key task.name: {task.name} is also the name of {twin}",
                "give one of the two another name",
            )
        by_name[task.name] = task
    return Pack(path.resolve().name, path, tuple(by_name[name] for name in sorted(by_name))).of_families(families)


def read_pack(path: Path) -> tuple[Pack, dict[str, str]]:
    """The tasks of a folder that can be read, and folder → what is wrong with each of the others."""
    tasks: dict[str, Task] = {}
    broken: dict[str, str] = {}
    path = tasks_folder(path)
    for folder in _folders(path):
        try:
            task = Task.from_dir(folder)
            if task.name in tasks:
                raise PackError(f"{folder}: its name {task.name} is also that of {tasks[task.name].path}", "rename one")
            tasks[task.name] = task
        except PackError as error:
            broken[folder.name] = str(error)
    return Pack(path.resolve().name, path, tuple(tasks[name] for name in sorted(tasks))), broken


def _folders(path: Path) -> list[Path]:
    """The folders of a pack's tasks; at least one."""
    with readable(path):
        if not path.is_dir():
            what = "is not a folder" if path.exists() else "does not exist"
            shipped = ", ".join(pack.name for pack in shipped_packs())
            raise PackError(f"{path}: {what}", f"name a task pack: a folder of tasks, or one of {shipped}")
        if (path / "task.toml").exists():
            raise PackError(f"{path}: is one task, not a pack", f"name the folder that holds it: {path.parent}")
        folders = sorted(f for f in path.iterdir() if f.is_dir() and f.name[0] not in "._")
    if not folders:
        raise PackError(f"{path}: holds no task", "a pack has one folder a task, each with a task.toml")
    return folders


def _environment_files(environment: Path) -> Path:
    """The folder of the workspace's files."""
    files = environment / "files"
    if not files.is_dir() and not (environment / "Dockerfile").is_file():
        raise PackError(f"{files}: missing", "put the files of the workspace there")
    return files


def _rubric(file: Path) -> Rubric | None:
    """What a judge is asked beside the code's checks; None for a task that code grades alone."""
    if not file.exists():
        return None
    try:
        return Rubric.parse(text_in(file, "the rubric"))
    except (ValueError, RecursionError) as error:
        raise PackError(f"{file}: {error}", 'write {"criteria": ["…"], "weight": 0.3}') from error


def _name(file: Path, table: Table, folder_name: str) -> str:
    """Harbor's [task] name without its organisation, or the folder's name where there is none."""
    text = line_of(file, table, "task.name") if "name" in table else folder_name
    organisation, slash, name = text.rpartition("/")
    if not _NAME.fullmatch(name) or (slash and not _NAME.fullmatch(organisation)):
        where = "key task.name" if "name" in table else "folder name"
        raise PackError(
            f"{file}: {where}: {text!r} cannot name a task",
            "use letters, digits, dot, dash and underscore, at most 100, starting with a letter or digit",
        )
    return name


def _split(file: Path, table: Table) -> str:
    split = line_of(file, table, "metadata.split")
    if split not in SPLITS:
        near = difflib.get_close_matches(split, SPLITS, n=1)
        remedy = f"did you mean {near[0]}?" if near else f"use one of: {', '.join(SPLITS)}"
        raise PackError(f"{file}: key metadata.split: {split!r} is unknown", remedy)
    return split
