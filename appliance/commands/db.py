"""Commands that look after the record: check it, shrink it, forget of it what is old."""

from __future__ import annotations

import argparse
from typing import Any

from appliance.commands.output import command_of, show
from appliance.commands.progress import progress
from appliance.config.runconfig import home


def add(commands: Any) -> None:
    """Adds db, with check, vacuum, prune and migrate."""
    parser = commands.add_parser("db", help="check, shrink or prune the record", epilog="example: corral db check")
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    command = command_of(actions, "check", _check, "check every invariant that a record can show; exit code 1 when not")
    command.epilog = "example: corral db check --json"
    command = command_of(actions, "vacuum", _vacuum, "give the disk back what was deleted")
    command.epilog = "example: corral db vacuum"
    command = command_of(actions, "prune", _prune, "take the raw bodies, or all, of an ended run out of the record")
    command.epilog = "example: corral db prune demo-1129-101500-0a1b --bodies"
    command.add_argument("run", help="id of the run")
    kind = command.add_mutually_exclusive_group(required=True)
    kind.add_argument("--bodies", action="store_true", help="raw bodies only: tokens, rewards and metrics stay")
    kind.add_argument("--all", action="store_true", help="the whole run; its folder under runs/ stays")
    command = command_of(actions, "migrate", _migrate, "bring the record to this version's schema; keeps a copy of it")
    command.epilog = "example: corral db migrate"


def _check(arguments: argparse.Namespace) -> int:
    from appliance.operate.record_check import check, check_text
    from appliance.record.access import reading

    with reading(home(), damaged=True) as store, progress(arguments, "db check", "rollouts") as told:
        found = check(store, told)
    show(arguments, found.as_json(), check_text(found))
    return 0 if found.is_sound else 1


def _vacuum(arguments: argparse.Namespace) -> None:
    from appliance.record.access import changing
    from appliance.record.retention import vacuum

    with changing(home()) as store, progress(arguments, "db vacuum"):
        found = vacuum(store)
    before, after = (found[key] / 2**20 for key in ("bytes_before", "bytes_after"))
    show(arguments, found, f"{before:.1f} MiB → {after:.1f} MiB")


def _prune(arguments: argparse.Namespace) -> None:
    from appliance.record.access import changing
    from appliance.record.retention import prune

    with changing(home()) as store, progress(arguments, "db prune", "spans of rollouts") as told:
        found = prune(store, arguments.run, "all" if arguments.all else "bodies", told)
    what = "everything" if arguments.all else "raw bodies"
    text = f"run {found['run']}: {what} of {found['calls']} calls taken out; `corral db vacuum` gives the disk back"
    show(arguments, found, text)


def _migrate(arguments: argparse.Namespace) -> None:
    from appliance.record.access import changing, record_path

    with progress(arguments, "db migrate"), changing(home()):
        path = record_path(home())
    copies = sorted(str(copy) for copy in path.parent.glob(f"{path.name}.before-*"))
    show(arguments, {"record": str(path), "copies": copies}, "\n".join([f"{path} is up to date", *copies]))
