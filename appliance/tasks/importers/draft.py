"""A task of another format on its way into a pack in our layout; the checks that every format needs."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from appliance.tasks.mcp import McpServer, servers_toml

MAX_TASK_BYTES = 512 << 20
MAX_TEXT_BYTES = 16 << 20
OUR_WORKSPACE = "/workspace"


Table = dict[str, object]


@dataclass(frozen=True, slots=True)
class Draft:
    """A task on its way in. `files` maps a path in our layout to its bytes or to a file to copy.

    `head`, `tables`: TOML above and below the tables that every task has.
    """

    name: str
    family: str
    instruction: str
    files: dict[str, bytes | Path]
    notes: tuple[str, ...] = ()
    timeouts_s: tuple[float, float] = (600.0, 600.0)
    is_runnable: frozenset[str] = frozenset()
    head: str = ""
    tables: str = ""
    mcp_servers: tuple[McpServer, ...] = ()


class Refused(Exception):
    """One task cannot be honoured; the message says why."""


def write_draft(folder: Path, draft: Draft, split: str) -> None:
    """Writes one task in our layout."""
    (folder / "environment" / "files").mkdir(parents=True)
    toml = (
        f'schema_version = "1.4"\n{draft.head}\n[task]\nname = {toml_text("imported/" + draft.name)}\n\n[metadata]\n'
        f"family = {toml_text(draft.family)}\nsplit = {toml_text(split)}\n\n"
        f"[agent]\ntimeout_sec = {draft.timeouts_s[0]}\n\n"
        f"[verifier]\ntimeout_sec = {draft.timeouts_s[1]}\n{servers_toml(draft.mcp_servers)}{draft.tables}"
    )
    files: dict[str, bytes | Path] = {"task.toml": toml.encode()}
    if draft.instruction:
        files["instruction.md"] = draft.instruction.encode() + b"\n"
    total = 0
    for path, content in (files | draft.files).items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        total += content.stat().st_size if isinstance(content, Path) else len(content)
        if total > MAX_TASK_BYTES:
            raise Refused(f"its files are larger than {MAX_TASK_BYTES >> 20} MB together")
        if isinstance(content, Path):
            if content.is_symlink():
                raise Refused(f"{content.name} is a link")
            shutil.copyfile(content, target)
        else:
            target.write_bytes(content)
        target.chmod(0o755 if path in draft.is_runnable or path.endswith(".sh") else 0o644)


def toml_text(text: str) -> str:
    """A basic string of TOML."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def task_name(value: object) -> str:
    """A foreign id as a task name: odd characters become dashes."""
    text = re.sub(r"[^A-Za-z0-9._-]+", "-", str(value)).strip("-._")[:100]
    if not text:
        raise Refused(f"{value!r} cannot name a task")
    return text


def one_line(text: str) -> str:
    """Text without line ends or control characters."""
    return "".join(c if c.isprintable() else " " for c in text).strip()[:100]


def safe_path(path: str) -> str:
    """A relative path that stays where it is put."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        raise Refused(f"the path {path!r} leaves its folder")
    return "/".join(p for p in parts if p != ".")


def plain_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """(relative path, path) of every file below `folder`; a link or device is refused, a missing folder is empty.

    So are more bytes than a task may have, before any of them is read.
    """
    if folder.is_symlink():
        raise Refused(f"{folder.name} is a link")
    if folder.is_file():
        raise Refused(f"{folder.name} is a file, not a folder")
    total = 0
    for top, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(top, name)
            mode, size = path.lstat().st_mode, path.lstat().st_size
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise Refused(f"{path.relative_to(folder)} is a link or device")
            if stat.S_ISREG(mode):
                total += size
                if total > MAX_TASK_BYTES:
                    raise Refused(f"its files are larger than {MAX_TASK_BYTES >> 20} MB together")
                yield path.relative_to(folder).as_posix(), path


def small_text(file: Path) -> str:
    """The UTF-8 text of one of a task's own files: no link, which would show what lies behind it, and no huge file."""
    if file.is_symlink():
        raise Refused(f"{file.name} is a link")
    with file.open("rb") as opened:
        data = opened.read(MAX_TEXT_BYTES + 1)
    if len(data) > MAX_TEXT_BYTES:
        raise Refused(f"{file.name} is larger than {MAX_TEXT_BYTES >> 20} MB")
    try:
        return data.decode("utf-8").removeprefix("\ufeff")  # as editors of other systems write it
    except UnicodeDecodeError as error:
        raise Refused(f"{file.name} is not UTF-8 (byte {error.start})") from error


def json_object(file: Path) -> dict[str, object]:
    """A JSON file that holds an object."""
    value = json.loads(small_text(file))
    if not isinstance(value, dict):
        raise Refused(f"{file.name} is not a JSON object")
    return value


def table_in(document: Table, name: str, key: str = "") -> Table:
    """A table of a task.toml, empty where there is none."""
    value = document.get(name, {})
    if not isinstance(value, dict):
        raise Refused(f"task.toml: {key or name} is not a table")
    return value


def seconds_in(table: Table, key: str, default: float = 600.0) -> float:
    """A time limit; Harbor's own default where there is none."""
    value = table.get(key.rpartition(".")[2], default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise Refused(f"{key}: {value!r} is not a time in seconds")
    return float(value)


def mentions_of(places: Collection[str]) -> re.Pattern[str]:
    """Where a text names one of these folders, or what lies below it."""
    names = "|".join(re.escape(place) for place in sorted(places, key=len, reverse=True))
    return re.compile(rf"(?<![\w/])(?:{names})(?![\w-])")


def moved_text(content: bytes | Path, mentions: re.Pattern[str]) -> bytes | Path:
    """A text with the places of another workspace replaced by ours; other bytes as they are."""
    data = content.read_bytes() if isinstance(content, Path) else content
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return content
    moved = mentions.sub(OUR_WORKSPACE, text)
    return content if moved == text else moved.encode("utf-8")
