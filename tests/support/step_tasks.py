"""Task folders of several steps, written from a few lines for each step.

A step's grader wants the file that has the step's name, unless the step brings another grader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from appliance.tasks.pack import Task

SEES = '[ "$(cat {name}.txt 2>/dev/null)" = hi ] && r=1 || r=0; echo "{{\\"reward\\": $r, \\"seen\\": $r}}"'
GRADER = SEES + " > /logs/verifier/reward.json; echo the answer > /workspace/answer.txt"


@dataclass
class Step:
    """A step to be written, and what the scripted agent does in it."""

    command: str = "true"
    settings: str = ""
    grader: str = ""
    setup: str = ""
    solution: str = "echo hi > {name}.txt"


def write_task(folder: Path, steps: Mapping[str, Step], head: str = "") -> Task:
    """A task of these steps."""
    (folder / "environment" / "files").mkdir(parents=True)
    toml = f'{head}\n[metadata]\nfamily = "steps"\nsplit = "train"\n'
    for name, step in steps.items():
        files = {
            "instruction.md": f"Write hi to {name}.txt.\n",
            "tests/test.sh": (step.grader or GRADER).format(name=name) + "\n",
            "solution/solve.sh": step.solution.format(name=name) + "\n",
            **({"workdir/setup.sh": step.setup, "workdir/data/given.txt": "given\n"} if step.setup else {}),
        }
        for path, text in files.items():
            file = folder / "steps" / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        toml += f'[[steps]]\nname = "{name}"\n{step.settings}\n'
    (folder / "task.toml").write_text(toml)
    return Task.from_dir(folder)
