"""A session of one's own as a draft task: the folder before and after it, and what was said, to look over.

The instruction is what the user asked; the workspace is the folder before; the checks are proposed from the difference;
the oracle lays the folder after over it. A draft is only as good as its checks: `corral tasks lint --run` has to pass.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.config.runconfig import CHECKOUT
from appliance.errors import PackError
from appliance.tasks.importers.draft import Draft, Refused, plain_files, task_name, write_draft
from appliance.tasks.pack import Task

CHECK = CHECKOUT / "data" / "templates" / "session_check.py"
MAX_FILE_BYTES = 1 << 20
LEFT_OUT = (".git", "node_modules", "__pycache__", ".venv", ".cache")

TEST_SH = """\
#!/bin/bash
# Grades the final workspace. The folders are variables so that a test can grade without a container.
exec python3 -I -S -B "${CORRAL_TESTS:-/tests}/check.py"
"""


@dataclass(frozen=True, slots=True)
class Difference:
    """What a session did to a folder: path → text, and paths. Binary files that changed are in `unchecked`."""

    before: dict[str, str]
    written: dict[str, str]
    removed: list[str]
    unchecked: list[str]


def draft_task(out: Path, before: Path, after: Path, calls: Sequence[Mapping[str, Any]], family: str) -> list[str]:
    """Writes the draft to `out`, which must not exist; returns what to look at. PackError when nothing was done."""
    for folder in (before, after):
        if not folder.is_dir():
            raise PackError(f"{folder}: is not a folder", "name the folder as it was before, then as it was after")
    if out.exists():
        raise PackError(f"{out}: exists already", "name a folder that does not")
    try:
        found = difference(before, after)
        if not found.written and not found.removed:
            raise PackError(f"{after}: does not differ from {before} in any text file", "name the right two folders")
        request = instruction(calls)
        write_draft(out, _draft(out.name, family, request, before, after, found), "train")
        Task.from_dir(out)
    except Refused as refused:
        shutil.rmtree(out, ignore_errors=True)
        raise PackError(f"{out}: {refused}", "take that file out of the folder and try again") from refused
    notes = [
        f"instruction.md: {len(request)} characters of what was asked; make it stand on its own",
        f"tests/expected.json: {len(found.written)} files to write, {len(found.removed)} to remove, "
        f"{len(found.before) - len(found.written.keys() & found.before.keys()) - len(found.removed)} to leave alone",
    ]
    notes += [f"not checked, as it is no text: {path}" for path in found.unchecked]
    return [*notes, f"then: corral tasks lint {out.parent} --run"]


def difference(before: Path, after: Path) -> Difference:
    """Compares the two folders' regular files; version control and caches are left out."""
    old, new = _texts(before), _texts(after)
    written = {p: t for p, t in new.items() if t is not None and old.get(p) != t}
    removed = sorted(p for p in old if p not in new)
    unchecked = sorted(p for p, t in new.items() if t is None and _bytes(before / p) != _bytes(after / p))
    return Difference({p: t for p, t in old.items() if t is not None}, written, removed, unchecked)


def instruction(calls: Sequence[Mapping[str, Any]]) -> str:
    """What the user asked: every user message of the longest conversation, in order, without repetition."""
    conversations = [c["conversation"]["messages"] for c in calls if c.get("conversation")]
    if not conversations:
        raise PackError("the session has no recorded conversation", "record it through `corral proxy`; keep its bodies")
    longest = max(conversations, key=len)
    asked = [str(m.get("content") or "").strip() for m in longest if m.get("role") == "user"]
    text = "\n\n".join(dict.fromkeys(t for t in asked if t)).replace("\0", "")
    if not text:
        raise PackError("the session has no message of a user", "name another session")
    return text


def _draft(name: str, family: str, request: str, before: Path, after: Path, found: Difference) -> Draft:
    untouched = sorted(found.before.keys() - found.written.keys() - set(found.removed))
    expected = {"before": found.before, "written": found.written, "removed": found.removed, "untouched": untouched}
    files: dict[str, bytes | Path] = {f"environment/files/{p}": f for p, f in _kept(before)}
    files["tests/test.sh"] = TEST_SH.encode()
    files["tests/check.py"] = CHECK
    files["tests/expected.json"] = (json.dumps(expected, indent=1, ensure_ascii=False) + "\n").encode()
    files |= {f"solution/after/{p}": after / p for p in (*found.written, *found.unchecked)}
    lines = ["#!/bin/bash", "set -e", 'here=$(dirname "$0")', 'cd "${CORRAL_WORKSPACE:-/workspace}"']
    lines += ['cp -R "$here/after/." .'] if found.written or found.unchecked else []
    lines += [f"rm -f -- {shlex.quote(path)}" for path in found.removed]
    files["solution/solve.sh"] = ("\n".join(lines) + "\n").encode()
    return Draft(task_name(name), family, request, files)


def _kept(folder: Path) -> list[tuple[str, Path]]:
    return [(p, f) for p, f in plain_files(folder) if not set(Path(p).parts) & set(LEFT_OUT)]


def _texts(folder: Path) -> dict[str, str | None]:
    """Path → text of each file; None for one that is no UTF-8 text or too large to check by its text."""
    return {path: _text(file) for path, file in _kept(folder)}


def _text(file: Path) -> str | None:
    if file.stat().st_size > MAX_FILE_BYTES:
        return None
    try:
        text = file.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _bytes(file: Path) -> bytes | None:
    return file.read_bytes() if file.is_file() else None
