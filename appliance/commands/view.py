"""`corral view NAME`: what a view of the terminal UI shows, as lines or JSON; for scripts, pipes and screen readers."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeGuard

from appliance.commands.output import command_of, show
from appliance.config.runconfig import home
from appliance.errors import ConfigError, StoreError

NAMES = ("runs", "rollouts", "curve", "log", "rewards", "hardware", "traffic", "tasks", "checkpoints")
"""Views that have no command of their own; the others are calls, tree, sandboxes, harness, config and doctor."""
LONGEST = 60
"""Characters of a cell that is not the last of its line."""


def add(commands: Any) -> None:
    """Adds view."""
    command = command_of(commands, "view", _view, "what a view of the UI shows, as lines or JSON")
    command.epilog = (
        "example: corral view log --find error · corral view rollouts --step 3 · corral view log --at 10m --json"
    )
    command.add_argument("name", choices=NAMES, help="the view")
    command.add_argument("run", nargs="?", help="id of the run; the one that works, or else the newest, by default")
    command.add_argument("--step", type=int, help="rollouts: those of this training step")
    command.add_argument("--at", metavar="TIME", help="log: around 14:05, or 10m ago")
    command.add_argument("--find", default="", metavar="TEXT", help="only lines with this text in them")
    command.add_argument("--limit", type=int, default=200, help="lines of a table at most (200)")


def _view(arguments: argparse.Namespace) -> None:
    found = _read(home(), arguments)
    wanted = arguments.find.casefold()
    cut = {name: _kept(value, wanted, arguments.limit, name == "events") for name, value in found.items()}
    show(arguments, {"view": arguments.name, **_jsonable(cut)}, "\n".join(_lines(cut)))


def _read(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """The parts of a view by name: one number or text, a mapping, or a sequence of equal lines."""
    from tui.pages.hardware import Hardware
    from tui.pages.log import moment
    from tui.pages.reader import Reader
    from tui.pages.snapshot import Only, Wanted

    try:
        at = moment(arguments.at, time.time()) if arguments.at else None
    except ValueError as error:
        raise ConfigError(f"--at {arguments.at}: no time", "write 14:05, 10m or 2026-11-30T14:05") from error
    only = Only(step=arguments.step) if arguments.step is not None else None
    reader = Reader(folder)
    seen = reader.poll(Wanted(arguments.run, view=arguments.name, only=only, log_at=at))
    reader.close()
    if seen.is_missing:
        raise StoreError(f"{folder / 'record.db'}: there is no record", "corral demo, or name another CORRAL_HOME")
    if seen.problem is not None:
        raise StoreError(*seen.problem)
    if arguments.run and (seen.run is None or seen.run.id != arguments.run):
        raise StoreError(f"run {arguments.run} is not on the record", "corral view runs")
    run = {"run": seen.run.id if seen.run else ""}
    parts: dict[str, object] = {
        "runs": {"runs": seen.runs}, "rollouts": run | {"counts": seen.counts, "rollouts": seen.rollouts},
        "curve": seen.curve, "log": run | {"events": seen.events},
    }  # fmt: skip
    if arguments.name == "hardware":
        return run | _fields(Hardware()(folder)) | {"engines": seen.engines}
    found = parts.get(arguments.name, seen.page)
    return dict(found) if isinstance(found, dict) else run | _fields(found)


def _fields(page: object) -> dict[str, Any]:
    return {field.name: getattr(page, field.name) for field in fields(page)} if is_dataclass(page) else {}


def _kept(value: object, wanted: str, limit: int, is_newest_last: bool) -> object:
    """A table's lines with `wanted` in them, at most so many; anything else as it is."""
    if not _is_table(value):
        return value
    rows = [row for row in value if wanted in " ".join(map(str, _fields(row).values())).casefold()]
    return rows[-limit:] if is_newest_last else rows[:limit]


def _is_table(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(map(is_dataclass, value))


def _jsonable(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return _jsonable(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): _jsonable(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_jsonable(inner) for inner in value]
    return value


def _lines(found: Mapping[str, object]) -> Iterator[str]:
    for name, value in found.items():
        if not _is_table(value):
            yield f"{name}: {_cell(name, value)}"
        elif rows := [_fields(row) for row in value]:
            titles = list(rows[0])
            cells = [titles, *([_cell(title, row[title]) for title in titles] for row in rows)]
            widths = [min(LONGEST, max(len(line[i]) for line in cells)) for i in range(len(titles))]
            yield f"{name}:"
            for line in cells:
                short = [f"{cell[:width]:<{width}}" for cell, width in zip(line, widths, strict=True)]
                yield "  ".join([*short[:-1], line[-1]]).rstrip()
        else:
            yield f"{name}: none"


def _cell(name: str, value: object) -> str:
    if value is None or value == "":
        return "–"
    if isinstance(value, float):
        return time.strftime("%m-%d %H:%M:%S", time.localtime(value)) if _is_time(name) and value else f"{value:.4g}"
    if isinstance(value, Mapping):
        return " ".join(f"{key}={_cell('', inner)}" for key, inner in value.items()) or "–"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " ".join(_cell("", _fields(inner) or inner) for inner in value) or "–"
    return str(value).replace("\n", " ⏎ ")


def _is_time(name: str) -> bool:
    return name == "at" or name.endswith("_at")
