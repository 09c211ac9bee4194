"""Write the claw pack: workspace tasks of an office and an engineer, the same bytes for the same seed everywhere.

    python data/claw/generate.py --out DIR              # all 132 tasks, as `corral` generates them for itself
    python data/claw/generate.py --seed 7 --out DIR     # another draw
    python data/claw/generate.py                        # rewrites samples/: the first task of each family

Twelve families, each one function in office.py or engineering.py: it draws a workspace, says what is wanted, computes
the right result from what it drew, and carries an oracle, a program that finds the result from the workspace alone.
Nine families have train and held-out instances, three are held out whole. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # data/ is no package

import engineering  # noqa: E402
import office  # noqa: E402
from draw import ClawTask, Draw  # noqa: E402

Family = Callable[[Draw], ClawTask]
NUM_TRAIN, NUM_HELD_OUT, NUM_OF_HELD_OUT_FAMILY = 9, 3, 8

TRAIN_FAMILIES: dict[str, Family] = {
    "sales-report": office.sales_report,
    "event-report": office.event_report,
    "invoices": office.invoices,
    "inventory": office.inventory,
    "config-migration": engineering.config_migration,
    "log-forensics": engineering.log_forensics,
    "doc-cleanup": engineering.doc_cleanup,
    "code-repair": engineering.code_repair,
    "release-notes": engineering.release_notes,
}
HELD_OUT_FAMILIES: dict[str, Family] = {
    "schedule": office.schedule,
    "contacts": office.contacts,
    "link-check": engineering.link_check,
}

TASK_TOML = """\
schema_version = "1.4"

[task]
name = "corral/{name}"

[metadata]
family = "{family}"
split = "{split}"

[agent]
timeout_sec = 300.0

[verifier]
timeout_sec = 60.0
"""

TEST_SH = """\
#!/bin/bash
# Grades the final workspace. The folders are variables so that a test can grade without a container.
exec python3 -I -S -B "${CORRAL_TESTS:-/tests}/check.py"
"""

SOLVE_SH = """\
#!/bin/bash
# The oracle: solves the task from the workspace alone.
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
python3 -I -S -B - <<'PROGRAM'
PROGRAM_TEXT
PROGRAM
"""


def plan() -> Iterator[tuple[str, str, str]]:
    """(name, family, split) of every task."""
    for family in TRAIN_FAMILIES:
        yield from ((f"{family}-train-{i:02d}", family, "train") for i in range(NUM_TRAIN))
        yield from ((f"{family}-held-{i:02d}", family, "held-out") for i in range(NUM_HELD_OUT))
    for family in HELD_OUT_FAMILIES:
        yield from ((f"{family}-held-{i:02d}", family, "held-out") for i in range(NUM_OF_HELD_OUT_FAMILY))


def write_task(folder: Path, task: ClawTask, family: str, split: str) -> None:
    """Write one task in Harbor's layout."""
    contents = {
        "task.toml": TASK_TOML.format(name=folder.name, family=family, split=split),
        "instruction.md": f"{task.instruction}\n",
        "solution/solve.sh": SOLVE_SH.replace("PROGRAM_TEXT", task.oracle.strip()),
        "tests/test.sh": TEST_SH,
        "tests/check.py": (HERE / "check.py").read_text(encoding="utf-8"),
        "tests/expected.json": json.dumps(task.expected, indent=1) + "\n",
        **{f"environment/files/{path}": body for path, body in task.files.items()},
    }
    for path, body in contents.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(body, encoding="utf-8", newline="\n")


def write_pack(out: Path, seed: int) -> list[str]:
    """Write every task under `out` (replacing those of the same name) and return their names."""
    names = []
    for name, family, split in plan():
        shutil.rmtree(out / name, ignore_errors=True)
        task = {**TRAIN_FAMILIES, **HELD_OUT_FAMILIES}[family](Draw(f"claw/{seed}/{name}"))
        write_task(out / name, task, family, split)
        names.append(name)
    return names


def write_samples() -> list[str]:
    """Write the first task of each family, as the whole pack has it, under samples/ and return their names."""
    first = {family: name for name, family, _ in reversed([*plan()])}
    shutil.rmtree(HERE / "samples", ignore_errors=True)
    with tempfile.TemporaryDirectory() as whole:
        write_pack(Path(whole), seed=0)
        for name in first.values():
            shutil.copytree(Path(whole, name), HERE / "samples" / name)
    return sorted(first.values())


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Write the claw task pack.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder for all tasks; without it only samples/ is rewritten")
    options = parser.parse_args()
    if options.out is None:
        print(f"{len(write_samples())} tasks written to {HERE / 'samples'}")
        return
    print(f"{len(write_pack(options.out, options.seed))} tasks written to {options.out}")


if __name__ == "__main__":
    main()
