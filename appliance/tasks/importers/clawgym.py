"""ClawGym's tasks: folders with data_entry.json, input_files/ and reward/, or one JSONL of them.

The agent's workspace is ours, so every mention of ClawGym's (in instruction and grader) is replaced; the grader stays
hidden under tests/ until it is graded. Then reward/ lies in the workspace, where its scripts expect it, and the last
line that reward.sh prints is the score, whatever its exit code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from appliance.tasks.importers.draft import (
    OUR_WORKSPACE,
    Draft,
    Refused,
    json_object,
    mentions_of,
    moved_text,
    one_line,
    plain_files,
    safe_path,
    task_name,
)

CLAW_WORKSPACE = "/root/.openclaw/workspace"
HOMES = (CLAW_WORKSPACE, "~/.openclaw/workspace", "$HOME/.openclaw/workspace", "${HOME}/.openclaw/workspace")
MAX_LINE_BYTES = 64 << 20


def claw_task(folder: Path) -> Draft:
    """A ClawGym task folder."""
    entry = json_object(folder / "data_entry.json")
    metadata = entry.get("metadata") if isinstance(entry.get("metadata"), dict) else {}
    assert isinstance(metadata, dict)
    name = task_name(entry.get("task_id") or folder.name)
    files: dict[str, bytes | Path] = {f"input_files/{p}": path for p, path in plain_files(folder / "input_files")}
    files |= {f"reward/{p}": path for p, path in plain_files(folder / "reward")}
    hook = None if (folder / "reward" / "reward.sh").is_file() else ""
    return _claw_draft(name, entry.get("user_query"), metadata, files, entry.get("input_mount_dir"), hook)


def claw_lines(source: Path) -> Iterator[tuple[str, Callable[[], Draft]]]:
    """(line, how to read it) of ClawGym's JSONL."""
    with source.open("rb") as lines:
        # One byte more than a line may have tells that it is too long; the rest of it is passed over, never held.
        for number, line in enumerate(iter(lambda: lines.readline(MAX_LINE_BYTES + 1), b""), 1):
            while len(line) > MAX_LINE_BYTES and (rest := lines.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                pass
            if line.strip():
                yield f"line {number}", lambda line=line, number=number: _claw_line(line, number)  # type: ignore[misc]


def _claw_line(line: bytes, number: int) -> Draft:
    if len(line) > MAX_LINE_BYTES:
        raise Refused(f"is larger than {MAX_LINE_BYTES >> 20} MB")
    entry = json.loads(line.decode("utf-8"))
    if not isinstance(entry, dict):
        raise Refused("is not a JSON object")
    found = re.search(r"^\s*id:\s*(\S+)", str(entry.get("origin_template") or ""), re.M)
    name = task_name(entry.get("task_id") or (found and found[1]) or f"task_{number:05d}")
    files: dict[str, bytes | Path] = {}
    for item in entry.get("input_files") or []:
        if (
            not isinstance(item, dict)
            or not isinstance(item.get("file_path"), str)
            or not isinstance(item.get("content"), str)
        ):
            raise Refused("an entry of input_files lacks file_path or content as text")
        path = safe_path(item["file_path"].removeprefix(f"{CLAW_WORKSPACE}/"))
        where = path if path.startswith("reward/") else f"input_files/{path}"
        if where in files:
            raise Refused(f"input_files names {path} twice")
        files[where] = item["content"].encode("utf-8")
    metadata = entry.get("metadata") if isinstance(entry.get("metadata"), dict) else {}
    assert isinstance(metadata, dict)
    if entry.get("rule"):
        metadata = metadata | {"rule": entry["rule"]}
    if "reward/test.py" in files:  # the public converter gives it this name, and some hooks know no other
        files.setdefault("reward/check.py", files["reward/test.py"])
    has_script = "reward/reward.sh" in files
    hook = None if has_script else str(entry.get("hook_code") or "")
    return _claw_draft(name, entry.get("prompt") or entry.get("user_query"), metadata, files, CLAW_WORKSPACE, hook)


def _claw_draft(
    name: str,
    query: object,
    metadata: dict[str, object],
    files: dict[str, bytes | Path],
    mount: object,
    hook: str | None,
) -> Draft:  # noqa: PLR0913, RUF100
    """A ClawGym task in our layout. `hook`: the grading command where there is no reward.sh, else None."""
    if not isinstance(query, str) or not query.strip():
        raise Refused("user_query (or prompt) is missing or empty")
    if not any(path.startswith("reward/") and path.endswith((".py", ".sh")) for path in files):
        raise Refused("reward/ has no check: neither reward.sh nor a .py file")
    base, below = _mounted(mount)
    mentions = mentions_of({base, *HOMES})
    notes = [f"{base} is {OUR_WORKSPACE} here: the path was replaced in the instruction and the grader"]
    out: dict[str, bytes | Path] = {}
    for path, content in files.items():
        if path.startswith("reward/"):
            out[f"tests/{path}"] = moved = moved_text(content, mentions)
            if isinstance(moved, bytes) and b".openclaw" in moved:
                notes.append("its grader still names .openclaw, which is not here; lint --run shows whether it matters")
        else:
            out[f"environment/files/{below}{path.removeprefix('input_files/')}"] = content
    if hook is not None:
        command = hook or f"python3 {base}/reward/{_check_name(files)} {base}"
        out["tests/reward/reward.sh"] = moved_text(CLAW_REWARD.replace("HOOK", command).encode(), mentions)
    out["tests/test.sh"] = CLAW_TEST.encode()
    out["tests/bin/python3"] = CLAW_PYTHON.encode()
    rule = metadata.get("rule") or metadata.get("rubric")
    if rule:
        out["tests/rubric.json"] = (json.dumps({"criteria": rule, "weight": 0.3}, ensure_ascii=False) + "\n").encode()
        notes.append("hybrid: 0.7 code + 0.3 rubric; without a judge it is graded by its code alone")
    family = str(metadata.get("category") or "") or "clawgym"
    text = mentions.sub(OUR_WORKSPACE, query).strip()
    return Draft(
        name, one_line(family), text, out, tuple(dict.fromkeys(notes)), is_runnable=frozenset({"tests/bin/python3"})
    )


CLAW_REWARD = """\
#!/usr/bin/env bash
set -euo pipefail
HOOK | python3 -c 'import json, sys
value = json.loads(sys.stdin.read())
if isinstance(value, dict):
    value = sum(map(float, value.values())) / len(value) if value else 0.0
if not isinstance(value, (int, float)):
    sys.exit("the check printed neither a number nor an object of numbers")
print(float(value))'
"""

CLAW_TEST = """\
#!/bin/bash
# Lays the task's own reward/ into the workspace, runs its reward.sh there, and hands its last line on as it is.
cd "${CORRAL_WORKSPACE:-/workspace}" || exit 1
tests=${CORRAL_TESTS:-/tests} logs=${CORRAL_VERIFIER_LOGS:-/logs/verifier}
rm -rf reward && cp -r "$tests/reward" reward && chmod -R u+w reward || exit 1
trap 'rm -rf "$PWD/reward"' EXIT
if [ "$PWD" != /workspace ]; then grep -rlI /workspace reward | xargs -r sed -i "s#/workspace#$PWD#g"; fi
score=$(PATH="$tests/bin:$PATH" bash reward/reward.sh "$PWD" | tail -n 1)
rm -rf "$logs"/reward.*  # what the workspace's own code may have written
[ -n "$score" ] && printf '%s\\n' "$score" >"$logs/reward.txt"
"""

CLAW_PYTHON = """\
#!/bin/sh
# `python3 -c` would import from the current folder, the agent's workspace, before Python's own modules.
self=$(dirname "$0")
PATH=$(printf %s ":$PATH:" | sed "s#:$self:#:#g; s#^:##; s#:\\$##")
export PATH
case "$1" in -c | -) exec python3 -P "$@" ;; *) exec python3 "$@" ;; esac
"""


def _mounted(mount: object) -> tuple[str, str]:
    """(what is our workspace here, where the inputs lie below it) for an input_mount_dir; ClawGym's own by default."""
    if not isinstance(mount, str) or not mount.strip("/. "):
        if mount == "/":
            raise Refused("input_mount_dir is /, which no workspace can be")
        return CLAW_WORKSPACE, ""
    path = PurePosixPath(CLAW_WORKSPACE, mount)  # a relative one is below the workspace
    if ".." in path.parts:
        raise Refused(f"input_mount_dir {mount!r} leaves the workspace")
    if not path.is_relative_to(CLAW_WORKSPACE):
        return str(path), ""
    below = str(path.relative_to(CLAW_WORKSPACE))
    return CLAW_WORKSPACE, "" if below == "." else f"{below}/"


def _check_name(files: dict[str, bytes | Path]) -> str:
    """The grader's Python file: check.py or test.py, else the only one there is."""
    found = sorted(p.removeprefix("reward/") for p in files if p.startswith("reward/") and p.endswith(".py"))
    for name in ("check.py", "test.py"):
        if name in found:
            return name
    if len(found) != 1:
        raise Refused(f"reward/ has no reward.sh and several checks: {', '.join(found)}")
    return found[0]
