"""ClawGym's tasks: folders with data_entry.json, input_files/ and reward/, or one JSONL of them.

The agent's workspace is ours, so every mention of ClawGym's (in instruction and grader) is replaced; the grader stays
hidden under tests/ and its reward.sh runs as it is, its last line being the score.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from appliance.taskdraft import Draft, Refused, json_object, one_line, plain_files, safe_path, task_name

CLAW_WORKSPACE = "/root/.openclaw/workspace"
OUR_WORKSPACE = "/workspace"
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
        for number, line in enumerate(lines, 1):
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
    root = str(mount) if isinstance(mount, str) and mount.startswith("/") else CLAW_WORKSPACE
    base, below = (
        (CLAW_WORKSPACE, f"{PurePosixPath(root).relative_to(CLAW_WORKSPACE)}/") if _is_below(root) else (root, "")
    )
    below = "" if below == "./" else below
    notes = [f"{base} is {OUR_WORKSPACE} here: the path was replaced in the instruction and the grader"]
    out: dict[str, bytes | Path] = {}
    for path, content in files.items():
        if path.startswith("reward/"):
            out[f"tests/{path}"] = _moved(content, base)
        else:
            out[f"environment/files/{below}{path.removeprefix('input_files/')}"] = content
    if hook is not None:
        command = hook or f"python3 {base}/reward/{_check_name(files)} {base}"
        out["tests/reward/reward.sh"] = _moved(CLAW_REWARD.replace("HOOK", command).encode(), base)
    out["tests/test.sh"] = CLAW_TEST.encode()
    rule = metadata.get("rule") or metadata.get("rubric")
    if rule:
        out["tests/rubric.json"] = (json.dumps({"criteria": rule, "weight": 0.3}, ensure_ascii=False) + "\n").encode()
        notes.append("hybrid: 0.7 code + 0.3 rubric; without a judge it is graded by its code alone")
    family = str(metadata.get("category") or "") or "clawgym"
    return Draft(name, one_line(family), query.replace(base, OUR_WORKSPACE).strip(), out, tuple(notes))


CLAW_REWARD = """\
#!/usr/bin/env bash
set -euo pipefail
HOOK | python3 -c 'import json, sys
value = json.loads(sys.stdin.read())
if isinstance(value, dict):
    value = sum(map(float, value.values())) / len(value) if value else 0.0
print(float(value))'
"""

CLAW_TEST = """\
#!/bin/bash
# Runs the task's own reward.sh, whose last line is the score, and hands that line on as it is.
cd "${CORRAL_WORKSPACE:-/workspace}" || exit 1
score=$(bash "${CORRAL_TESTS:-/tests}/reward/reward.sh" "$PWD") || exit 1
printf '%s\\n' "$score" | tail -n 1 >"${CORRAL_VERIFIER_LOGS:-/logs/verifier}/reward.txt"
"""


def _is_below(path: str) -> bool:
    return PurePosixPath(path).is_relative_to(CLAW_WORKSPACE)


def _check_name(files: dict[str, bytes | Path]) -> str:
    """The grader's Python file: check.py or test.py, else the only one there is."""
    found = sorted(p.removeprefix("reward/") for p in files if p.startswith("reward/") and p.endswith(".py"))
    for name in ("check.py", "test.py"):
        if name in found:
            return name
    if len(found) != 1:
        raise Refused(f"reward/ has no reward.sh and several checks: {', '.join(found)}")
    return found[0]


def _moved(content: bytes | Path, base: str) -> bytes | Path:
    """A grader's text with its places replaced by ours; other bytes as they are."""
    data = content.read_bytes() if isinstance(content, Path) else content
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return content
    tests, workspace = '"${CORRAL_TESTS:-/tests}"/reward/', '"${CORRAL_WORKSPACE:-/workspace}"'
    if text.startswith("#!") and ("sh" in text.split("\n", 1)[0]):
        text = text.replace(f"{base}/reward/", tests)
        text = re.sub(r"(?<![\w/$.}])reward/(?=[\w.-]+\.(?:py|sh))", lambda _: tests, text)
        text = re.sub(re.escape(base) + r"(?![\w.-])", lambda _: workspace, text)
    else:
        text = text.replace(f"{base}/reward/", "/tests/reward/").replace(base, OUR_WORKSPACE)
    return text.encode("utf-8")
