"""Task packs: folders of tasks in Harbor's layout, read into plain records.

    PACK/NAME/task.toml            [metadata] family, split · [agent] and [verifier] timeout_sec
             instruction.md        what the agent is told
             environment/files/    what its workspace holds at the start
             environment/Dockerfile  instead or beside: the image it is done and graded in
             tests/test.sh         the hidden grader, with its data beside it
             solution/             solve.sh (the oracle), teacher.json (a list of shell commands); optional

Nothing is guessed: whatever is wrong raises a PackError that names the file, the key and the remedy, so
that a run never starts on a pack that would fail halfway. Keys Corral does not read are left alone, as
Harbor leaves them, unless they look like a misspelt one that it does.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import stat
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from appliance.errors import PackError
from appliance.rubric import Rubric

SPLITS = ("lesson", "train", "held-out")
"""What the teacher shows, what is practised, what is only measured."""
DEFAULT_TIMEOUT_S = 600.0  # Harbor's own default for its verifier
MAX_TIMEOUT_S = 7 * 86_400.0  # a week: longer is a slip of the unit
MAX_FILE_BYTES = 1024 * 1024
MAX_TASK_BYTES = 512 << 20  # a task's files are copied for each rollout

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_OWN_KEYS = {
    "": ("task", "metadata", "agent", "verifier"),
    "task": ("name",),
    "metadata": ("family", "split"),
    "agent": ("timeout_sec",),
    "verifier": ("timeout_sec",),
}
# Harbor's keys that a spelling check would otherwise take for one of ours.
_NOT_MISSPELT = frozenset({"tags", "source"})

Table = dict[str, object]


@dataclass(frozen=True, slots=True)
class Task:
    """One task. `solution` is None when the task ships none; `teacher` is then empty.

    `dockerfile` is None when Corral's own image will do; with one, the folder `environment_files` may be missing.
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

    @classmethod
    def from_dir(cls, path: Path) -> Task:
        """Read and check the task in folder `path`; PackError names the file and key that is wrong."""
        file = path / "task.toml"
        _check_files(path)
        tables = _tables(file)
        metadata = tables["metadata"]
        files = _environment_files(path / "environment")
        dockerfile = path / "environment" / "Dockerfile"
        _need(path / "tests" / "test.sh", "the grader; it writes reward.json or reward.txt")
        solution = path / "solution"
        return cls(
            name=_name(file, tables["task"], path.name),
            family=_text(file, metadata, "metadata.family"),
            split=_split(file, metadata),
            instruction=_instruction(path / "instruction.md"),
            path=path,
            environment_files=files,
            tests=path / "tests",
            solution=solution if (solution / "solve.sh").is_file() else None,
            agent_timeout_s=_seconds(file, tables["agent"], "agent.timeout_sec"),
            verifier_timeout_s=_seconds(file, tables["verifier"], "verifier.timeout_sec"),
            teacher=_teacher(solution / "teacher.json"),
            dockerfile=dockerfile if dockerfile.is_file() else None,
            rubric=_rubric(path / "tests" / "rubric.json"),
        )


@dataclass(frozen=True, slots=True)
class Pack:
    """The tasks of a folder, in name order."""

    name: str
    path: Path
    tasks: tuple[Task, ...]

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
    """The tasks of the folder `path`, of these families or of all. Folders that start with . or _ are no tasks."""
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
    if not path.is_dir():
        what = "is not a folder" if path.exists() else "does not exist"
        raise PackError(f"{path}: {what}", "name a task pack, for example data/pocket")
    if (path / "task.toml").exists():
        raise PackError(f"{path}: is one task, not a pack", f"name the folder that holds it: {path.parent}")
    folders = sorted(f for f in path.iterdir() if f.is_dir() and f.name[0] not in "._")
    if not folders:
        raise PackError(f"{path}: holds no task", "a pack has one folder a task, each with a task.toml")
    return folders


# ------------------------------------------------------------------ files


def _need(file: Path, purpose: str) -> None:
    if not file.is_file():
        raise PackError(f"{file}: missing", f"create it: {purpose}")


def _read(file: Path, purpose: str) -> str:
    """Text of a small UTF-8 file that must exist."""
    _need(file, purpose)
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise PackError(f"{file}: is larger than {MAX_FILE_BYTES} bytes", "shorten it")
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PackError(f"{file}: is not UTF-8 (byte {error.start})", "save it as UTF-8") from error
    except OSError as error:
        raise PackError(f"{file}: cannot be read: {error.strerror}", "check its permissions") from error


def _instruction(file: Path) -> str:
    text = _read(file, "what the agent is told").strip()
    if not text or "\0" in text:  # a NUL cannot be handed to a program as its argument
        what = "holds a NUL byte" if text else "is empty"
        raise PackError(f"{file}: {what}", "write what the agent is to do")
    return text


def _environment_files(environment: Path) -> Path:
    """The folder of the workspace's files."""
    files = environment / "files"
    if not files.is_dir() and not (environment / "Dockerfile").is_file():
        raise PackError(f"{files}: missing", "put the files of the workspace there")
    return files


def _check_files(task: Path) -> None:
    """No link, pipe or device anywhere, and no more bytes than can be copied for each rollout.

    The host reads and copies these files, so a link would bring in what lies behind it. Only what a Dockerfile is built
    with may hold links: Podman keeps them inside the image.
    """
    context = task / "environment" if (task / "environment" / "Dockerfile").is_file() else None
    plain = {task / "environment" / "files", task / "environment" / "Dockerfile"}
    total = 0
    for folder, names, file_names in os.walk(task):
        for name in ("", *names, *file_names) if Path(folder) == task else (*names, *file_names):
            entry = Path(folder, name)
            entry_stat = entry.lstat()
            is_built_with = context is not None and context in entry.parents and not plain & {entry, *entry.parents}
            if not (stat.S_ISREG(entry_stat.st_mode) or stat.S_ISDIR(entry_stat.st_mode) or is_built_with):
                raise PackError(f"{entry}: is neither a file nor a folder", "replace it by a plain copy")
            total += 0 if is_built_with or stat.S_ISDIR(entry_stat.st_mode) else entry_stat.st_size
            if total > MAX_TASK_BYTES:
                what = f"brings the task's files over {MAX_TASK_BYTES >> 20} MB"
                raise PackError(f"{entry}: {what}", "make them smaller; each rollout gets a copy")


def _teacher(file: Path) -> tuple[str, ...]:
    """The teacher's shell commands, one line each; empty when the task has no teacher."""
    if not file.exists():
        return ()
    remedy = 'write a list of shell commands, for example ["ls", "cat notes.txt"]'
    try:
        commands = json.loads(_read(file, "the teacher's commands"))
    except (ValueError, RecursionError) as error:
        raise PackError(f"{file}: is not JSON: {error}", remedy) from error
    if not isinstance(commands, list) or not commands:
        raise PackError(f"{file}: is not a list with at least one command", remedy)
    for index, command in enumerate(commands):
        if not isinstance(command, str) or not command.strip() or not command.isprintable():
            raise PackError(f"{file}: key [{index}]: is not one line of text", remedy)
    return tuple(commands)


def _rubric(file: Path) -> Rubric | None:
    """What a judge is asked beside the code's checks; None for a task that code grades alone."""
    if not file.exists():
        return None
    try:
        return Rubric.parse(_read(file, "the rubric"))
    except (ValueError, RecursionError) as error:
        raise PackError(f"{file}: {error}", 'write {"criteria": ["…"], "weight": 0.3}') from error


# ------------------------------------------------------------------ keys of task.toml


def _tables(file: Path) -> dict[str, Table]:
    """The tables of task.toml that Corral reads, each present, with no key misspelt."""
    try:
        document: Table = tomllib.loads(_read(file, "the task's settings; every task folder has one"))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise PackError(f"{file}: is not TOML: {error}", "correct the line it names") from error
    _check_spelling(file, "", document)
    tables: dict[str, Table] = {}
    for name in _OWN_KEYS:
        if not name:
            continue
        table = document.get(name, {})
        if not isinstance(table, dict):
            raise PackError(f"{file}: key {name}: is not a table", f"write it as [{name}]")
        _check_spelling(file, name, table)
        tables[name] = table
    return tables


def _check_spelling(file: Path, table: str, content: Table) -> None:
    """An unknown key that nearly is one of ours is a slip; any other belongs to Harbor or the author."""
    own = _OWN_KEYS[table]
    for key in content:
        if key in own or key in _NOT_MISSPELT:
            continue
        near = [k for k in difflib.get_close_matches(key, own, n=1, cutoff=0.75) if k not in content]
        if near:
            where = f"{table}.{key}" if table else key
            raise PackError(f"{file}: key {where}: unknown", f"did you mean {near[0]}?")


def _text(file: Path, table: Table, key: str) -> str:
    last = key.rpartition(".")[2]
    if last not in table:
        section = key.rpartition(".")[0]
        raise PackError(f"{file}: key {key}: missing", f'add {last} = "…" under [{section}]')
    value = table[last]
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise PackError(f"{file}: key {key}: {value!r} is not one line of text", f'write {last} = "…"')
    return value


def _name(file: Path, table: Table, folder_name: str) -> str:
    """Harbor's [task] name without its organisation, or the folder's name where there is none."""
    text = _text(file, table, "task.name") if "name" in table else folder_name
    organisation, slash, name = text.rpartition("/")
    if not _NAME.fullmatch(name) or (slash and not _NAME.fullmatch(organisation)):
        where = "key task.name" if "name" in table else "folder name"
        raise PackError(
            f"{file}: {where}: {text!r} cannot name a task",
            "use letters, digits, dot, dash and underscore, at most 100, starting with a letter or digit",
        )
    return name


def _split(file: Path, table: Table) -> str:
    split = _text(file, table, "metadata.split")
    if split not in SPLITS:
        near = difflib.get_close_matches(split, SPLITS, n=1)
        remedy = f"did you mean {near[0]}?" if near else f"use one of: {', '.join(SPLITS)}"
        raise PackError(f"{file}: key metadata.split: {split!r} is unknown", remedy)
    return split


def _seconds(file: Path, table: Table, key: str) -> float:
    value = table.get(key.rpartition(".")[2], DEFAULT_TIMEOUT_S)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value <= MAX_TIMEOUT_S:  # type: ignore[operator]
        raise PackError(
            f"{file}: key {key}: {value!r} is not a time in seconds",
            f"use a number above 0 and at most {MAX_TIMEOUT_S:g}",
        )
    return float(value)  # type: ignore[arg-type]
