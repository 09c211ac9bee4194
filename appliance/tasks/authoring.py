"""Making and sharing out tasks: a new task folder to fill in, and the split of a pack's tasks."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

from appliance.errors import PackError
from appliance.system.files import new_file
from appliance.tasks.generated import is_generated, tasks_folder
from appliance.tasks.pack import Task, load_pack

NEW_TASK = {
    "task.toml": """\
schema_version = "1.4"

[task]
name = "own/NAME"

[metadata]
family = FAMILY
split = "train"

[agent]
timeout_sec = 300.0

[verifier]
timeout_sec = 60.0
""",
    "instruction.md": "Write the number of lines of notes.txt to answer.txt.\n",
    "environment/files/notes.txt": "one\ntwo\n",
    "solution/solve.sh": """\
#!/bin/bash
# The oracle: it earns 1 from the workspace alone.
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
wc -l < notes.txt > answer.txt
""",
    "tests/test.sh": """\
#!/bin/bash
# Hidden from the agent. Writes one number in [0, 1], or reward.json with {"reward": …, "parts": {…}}.
cd "${CORRAL_WORKSPACE:-/workspace}" || exit 1
reward=0
[ "$(tr -d '[:space:]' < answer.txt 2>/dev/null)" = 2 ] && reward=1
echo "$reward" > "${CORRAL_VERIFIER_LOGS:-/logs/verifier}/reward.txt"
""",
}


def new_task(folder: Path, family: str) -> list[str]:
    """Writes a small working task to `folder`, which must not exist; returns its files. PackError when it does."""
    if folder.exists():
        raise PackError(f"{folder}: exists already", "name a folder that does not")
    for name, text in NEW_TASK.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("NAME", folder.name).replace("FAMILY", json.dumps(family)), encoding="utf-8")
        path.chmod(0o755 if name.endswith(".sh") else 0o644)
    Task.from_dir(folder)
    return list(NEW_TASK)


def split_pack(pack: Path, held_out: float, by: str, seed: int) -> dict[str, str]:
    """Draws `held_out` of the tasks (or of the families) and writes every task's split; lessons stay lessons.

    Returns task → split. The draw depends on names and seed alone. PackError when a share leaves one side empty.
    """
    if is_generated(pack):
        remedy = f"copy its tasks first: cp -r {tasks_folder(pack)} packs/own"
        raise PackError(f"{pack}: a shipped pack's splits are its generator's", remedy)
    tasks = [t for t in load_pack(pack).tasks if t.split != "lesson"]
    unit_of = {t.name: t.family if by == "family" else t.name for t in tasks}
    units = sorted(set(unit_of.values()))
    count = round(held_out * len(units))
    if not 0 < count < len(units):
        raise PackError(
            f"{pack}: a share of {held_out} of {len(units)} ({by} by {by}) leaves one side empty",
            f"use a share between {1 / max(2, len(units)):.2f} and {1 - 1 / max(2, len(units)):.2f}",
        )
    random.Random(f"{seed}/split").shuffle(units)
    chosen = set(units[:count])
    splits = {t.name: "held-out" if unit_of[t.name] in chosen else "train" for t in tasks}
    for task in tasks:
        _write_split(task.path / "task.toml", splits[task.name])
    return splits


def _write_split(file: Path, split: str) -> None:
    text = file.read_text(encoding="utf-8")
    changed, times = re.subn(
        r'^(\s*split\s*=\s*)("[^"\n]*"|\'[^\'\n]*\')', rf'\g<1>"{split}"', text, count=1, flags=re.M
    )
    if not times:
        raise PackError(f"{file}: key metadata.split: is not written as one line", f'write split = "{split}"')
    with new_file(file) as draft:
        draft.write_text(changed, encoding="utf-8")
