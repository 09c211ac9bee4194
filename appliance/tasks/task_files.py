"""The files and keys of a task folder, read strictly: whatever is wrong raises a PackError that names file and key.

Keys Corral does not read are left alone, as Harbor leaves them, unless they look like a misspelt one that it does.
"""

from __future__ import annotations

import difflib
import json
import os
import stat
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from appliance.errors import PackError

DEFAULT_TIMEOUT_S = 600.0  # Harbor's own default for its verifier
MAX_TIMEOUT_S = 7 * 86_400.0  # a week: longer is a slip of the unit
MAX_FILE_BYTES = 1024 * 1024
MAX_TASK_BYTES = 512 << 20  # a task's files are copied for each rollout
OWN_KEYS = {
    "": ("task", "metadata", "agent", "verifier", "environment", "steps", "multi_step_reward_strategy"),
    "task": ("name",),
    "metadata": ("family", "split"),
    "agent": ("timeout_sec",),
    "verifier": ("timeout_sec",),
    "environment": ("healthcheck", "mcp_servers"),
    "steps": ("name", "min_reward", "agent", "verifier", "healthcheck"),
    "healthcheck": ("command", "interval_sec", "timeout_sec", "start_period_sec", "start_interval_sec", "retries"),
}
_ONCE = ("task", "metadata", "agent", "verifier", "environment")
# Harbor's keys that a spelling check would otherwise take for one of ours.
_NOT_MISSPELT = frozenset({"tags", "source"})

Table = dict[str, object]


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """PackError that names the file where something at or below `path` cannot be read."""
    try:
        yield
    except OSError as error:
        name = os.fsdecode(error.filename) if error.filename else path
        raise PackError(f"{name}: cannot be read: {error.strerror}", "check its permissions") from error


def need(file: Path, purpose: str) -> None:
    """PackError where a file that every task has is missing."""
    if not file.is_file():
        raise PackError(f"{file}: missing", f"create it: {purpose}")


def text_in(file: Path, purpose: str) -> str:
    """Text of a small UTF-8 file that must exist."""
    need(file, purpose)
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


def instruction_of(file: Path) -> str:
    """What the agent is told."""
    text = text_in(file, "what the agent is told").strip()
    if not text or "\0" in text:  # a NUL cannot be handed to a program as its argument
        what = "holds a NUL byte" if text else "is empty"
        raise PackError(f"{file}: {what}", "write what the agent is to do")
    return text


def check_files(task: Path) -> None:
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


def teacher_of(file: Path) -> tuple[str, ...]:
    """The teacher's shell commands, one line each; empty when the task has no teacher."""
    if not file.exists():
        return ()
    remedy = 'write a list of shell commands, for example ["ls", "cat notes.txt"]'
    try:
        commands = json.loads(text_in(file, "the teacher's commands"))
    except (ValueError, RecursionError) as error:
        raise PackError(f"{file}: is not JSON: {error}", remedy) from error
    if not isinstance(commands, list) or not commands:
        raise PackError(f"{file}: is not a list with at least one command", remedy)
    for index, command in enumerate(commands):
        if not isinstance(command, str) or not command.strip() or not command.isprintable():
            raise PackError(f"{file}: key [{index}]: is not one line of text", remedy)
    return tuple(commands)


def tables_of(file: Path) -> dict[str, Table]:
    """The tables of task.toml that Corral reads, each present, with no key misspelt; "" is the whole document."""
    try:
        document: Table = tomllib.loads(text_in(file, "the task's settings; every task folder has one"))
        str(document)  # no message could show a number that is too long for this
    except (ValueError, RecursionError) as error:
        raise PackError(f"{file}: is not TOML: {error}", "correct the line it names") from error
    tables = {"": document} | {name: table_in(file, document, name) for name in _ONCE}
    for name, table in tables.items():
        check_spelling(file, name, table, name)
    return tables


def table_in(file: Path, table: Table, key: str) -> Table:
    """The table at `key`, which is `section.name` or a name; empty where there is none."""
    value = table.get(key.rpartition(".")[2], {})
    if not isinstance(value, dict):
        raise PackError(f"{file}: key {key}: is not a table", f"write it as [{key}]")
    return value


def check_spelling(file: Path, where: str, content: Table, kind: str) -> None:
    """An unknown key that nearly is one of ours is a slip; any other belongs to Harbor or the author.

    `where`: the table's own key; `kind`: that of OWN_KEYS which it is like.
    """
    own = OWN_KEYS[kind]
    for key in content:
        if key in own or key in _NOT_MISSPELT:
            continue
        near = [k for k in difflib.get_close_matches(key, own, n=1, cutoff=0.75) if k not in content]
        if near:
            raise PackError(f"{file}: key {where}.{key}: unknown".replace("key .", "key "), f"did you mean {near[0]}?")


def line_of(file: Path, table: Table, key: str) -> str:
    """The one line of text at `key`, which is `section.name` and must be there."""
    last = key.rpartition(".")[2]
    if last not in table:
        section = key.rpartition(".")[0]
        raise PackError(f"{file}: key {key}: missing", f'add {last} = "…" under [{section}]')
    value = table[last]
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise PackError(f"{file}: key {key}: {value!r} is not one line of text", f'write {last} = "…"')
    return value


def seconds_of(file: Path, table: Table, key: str, default: float = DEFAULT_TIMEOUT_S) -> float:
    """The time limit at `key`, above 0 and at most a week."""
    value = table.get(key.rpartition(".")[2], default)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value <= MAX_TIMEOUT_S:  # type: ignore[operator]
        raise PackError(
            f"{file}: key {key}: {value!r} is not a time in seconds",
            f"use a number above 0 and at most {MAX_TIMEOUT_S:g}",
        )
    return float(value)  # type: ignore[arg-type]
