"""The `[[steps]]` of a Harbor task on their way into a pack in our layout.

Honoured: names, order, instructions, `workdir/` with its setup.sh, graders (the task's own tests with the step's over
them), solutions, time limits, `min_reward`, health checks, and how rewards become one. Noted: everything else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from appliance.tasks.importers.draft import (
    Refused,
    Table,
    plain_files,
    seconds_in,
    small_text,
    table_in,
    task_name,
    toml_text,
)

PARTS = ("workdir", "solution")
HONOURED = {"name", "agent", "verifier", "min_reward", "healthcheck"}
CHECK_KEYS = ("interval_sec", "timeout_sec", "start_period_sec", "start_interval_sec", "retries")
MAX_STEPS, MAX_NAME_BYTES = 1000, 255


@dataclass(frozen=True, slots=True)
class Steps:
    """What the steps bring: TOML above all tables and below them, files in our layout, notes."""

    head: str
    tables: str
    files: dict[str, bytes | Path]
    notes: tuple[str, ...]


def harbor_steps(folder: Path, document: Table, times: tuple[float, float]) -> Steps | None:
    """The steps of a task folder, None where it has none; Refused where one cannot be honoured.

    `times`: the task's own limits for agent and verifier, in seconds.
    """
    listed = document.get("steps") or []
    if not listed:
        if (folder / "steps").is_dir():
            raise Refused("it has a folder steps/, but task.toml lists no [[steps]]")
        return None
    if not isinstance(listed, list) or not all(isinstance(table, dict) for table in listed) or len(listed) > MAX_STEPS:
        raise Refused(f"task.toml: steps is not a list of at most {MAX_STEPS} tables")
    strategy = document.get("multi_step_reward_strategy") or "mean"
    if strategy not in ("mean", "final"):
        raise Refused(f"task.toml: multi_step_reward_strategy: {strategy!r} is neither mean nor final")
    shared = dict(plain_files(folder / "tests"))
    lines: list[str] = []
    notes: list[str] = []
    files: dict[str, bytes | Path] = {}
    names: set[str] = set()
    for table in listed:
        name, text = _settings(table, times)
        if name.casefold() in names:
            raise Refused(f"task.toml: two steps are called {name} here")
        names.add(name.casefold())
        lines.append(text)
        files |= _files(folder / "steps" / str(table["name"]), f"steps/{name}", shared)
        unused = ", ".join(sorted(table.keys() - HONOURED))
        if unused:
            notes.append(f"step {name}: {{{unused}}} not used")
    if (folder / "instruction.md").is_file():
        notes.append("instruction.md at its root is not used: no step is told it, as in Harbor")
    head = f"multi_step_reward_strategy = {toml_text(strategy)}\n"
    return Steps(head, "".join(lines), files, tuple(notes))


def check_toml(table: Table, key: str, header: str) -> str:
    """A health check as TOML under `header`; "" where `table` has none."""
    check = table_in(table, "healthcheck", key)
    if not check:
        return ""
    command = check.get("command")
    if not isinstance(command, str) or not command.strip():
        raise Refused(f"task.toml: {key}.command is no shell command")
    lines = [f"\n[{header}]", f"command = {toml_text(command)}"]
    for name in CHECK_KEYS:
        if name in check:
            lines.append(f"{name} = {_number(check[name], f'{key}.{name}')}")
    return "\n".join(lines) + "\n"


def _settings(table: Table, times: tuple[float, float]) -> tuple[str, str]:
    """(our name, TOML) of one step."""
    given = table.get("name")
    if not isinstance(given, str):
        raise Refused("task.toml: a step has no name")
    if "/" in given or "\0" in given or given == ".." or len(given.encode()) > MAX_NAME_BYTES:
        raise Refused(f"task.toml: {given[:40]!r} cannot name a step: it is that of a folder in steps/")
    name = task_name(given)
    least = table.get("min_reward")
    lines = [f"\n[[steps]]\nname = {toml_text(name)}"]
    if isinstance(least, dict):
        parts = ", ".join(f"{toml_text(part)} = {_number(value, 'min_reward')}" for part, value in least.items())
        lines.append(f"min_reward = {{{parts}}}")
    elif least is not None:
        lines.append(f"min_reward = {_number(least, 'min_reward')}")
    for part, default in zip(("agent", "verifier"), times, strict=True):
        limit = seconds_in(table_in(table, part, f"steps.{part}"), f"steps.{part}.timeout_sec", default)
        lines.append(f"{part}.timeout_sec = {limit}")
    return name, "\n".join(lines) + "\n" + check_toml(table, "steps.healthcheck", "steps.healthcheck")


def _files(folder: Path, ours: str, shared: dict[str, Path]) -> dict[str, bytes | Path]:
    """What lies in a step's folder; its tests are complete here, the task's own below the step's."""
    if folder.is_symlink() or not folder.is_dir():
        raise Refused(f"steps/{folder.name} is missing")
    instruction = folder / "instruction.md"
    if not instruction.is_file():
        raise Refused(f"steps/{folder.name}/instruction.md is missing")
    files: dict[str, bytes | Path] = {f"{ours}/instruction.md": small_text(instruction).encode()}
    tests = shared | dict(plain_files(folder / "tests"))
    if "test.sh" not in tests:
        raise Refused(f"steps/{folder.name}/tests/test.sh is missing, and so is tests/test.sh")
    files |= {f"{ours}/tests/{path}": file for path, file in tests.items()}
    for part in PARTS:
        files |= {f"{ours}/{part}/{path}": file for path, file in plain_files(folder / part)}
    return files


def _number(value: object, key: str) -> str:
    """A finite number as TOML."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise Refused(f"task.toml: {key}: {value!r} is not a number")
    return repr(value)
