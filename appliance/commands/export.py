"""Commands by which rollouts leave the record, and conversations enter it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from appliance.commands.output import command_of, show
from appliance.commands.policy import export_policy
from appliance.commands.progress import progress
from appliance.config.runconfig import home
from appliance.errors import ConfigError

POLICY = ("adapter", "merged")
FORMATS = ("atif", "harbor", "messages", "tokens", "parquet")


def add(commands: Any) -> None:
    """Adds export and import."""
    command = command_of(
        commands, "export", _export, "a run's rollouts as ATIF, a Harbor job, messages, tokens, Parquet"
    )
    command.epilog = "example: corral export demo-1129-101500-0a1b --format harbor --to jobs/demo"
    command.add_argument(
        "of", nargs="*", metavar="[adapter|merged] [RUN]",
        help="adapter or merged: the policy instead of rollouts, merged into the unquantised base; "
        "id of the run, the newest by default",
    )  # fmt: skip
    command.add_argument("--format", choices=FORMATS, help="atif and harbor make a folder, the others a file")
    command.add_argument("--version", type=int, default=None, help="policy version; the newest by default")
    command.add_argument("--to", type=Path, required=True, metavar="TARGET", help="what is to be made; must not exist")
    command.add_argument("--rollout", type=int, help="only this rollout")
    command = command_of(commands, "import", _import, "conversations (ATIF or messages JSONL) as lessons of a run")
    command.epilog = "example: corral import lessons.jsonl --run my-run --harness pi"
    command.add_argument("file", type=Path, help="one ATIF trajectory, or a conversation a line")
    command.add_argument("--run", required=True, help="id of a run that has no policy yet")
    command.add_argument("--harness", default="imported", help="whose lessons they are where the file does not say")


def _export(arguments: argparse.Namespace) -> None:
    from appliance.record.access import newest, reading
    from appliance.report.export.export_run import export

    with reading(home()) as store:
        what = arguments.of.pop(0) if arguments.of and arguments.of[0] in POLICY else None
        run = arguments.of[0] if arguments.of else newest(store).id
    if what:
        with progress(arguments, f"export {what}"):
            export_policy(arguments, what, run)
        return
    if not arguments.format:
        raise ConfigError("corral export: --format is missing", f"one of {', '.join(FORMATS)}; or adapter, merged")
    with reading(home()) as store, progress(arguments, f"export {arguments.format}", "rollouts") as told:
        found = export(store, run, arguments.format, arguments.to, arguments.rollout, told)
    show(arguments, found, f"run {found['run']}: {found['documents']} documents in {found['target']}")


def _import(arguments: argparse.Namespace) -> None:
    from appliance.record.access import changing
    from appliance.report.export.import_run import bring_in

    with changing(home()) as store, progress(arguments, "import"):
        found = bring_in(store, arguments.run, arguments.file, arguments.harness)
        run = store.run(arguments.run).id
    text = f"run {run}: {len(found)} conversations came in as lessons; they have no token ids"
    if not found:
        text = f"run {run}: nothing new: every conversation of {arguments.file} was imported before"
    show(arguments, {"run": run, "rollouts": found}, text)
