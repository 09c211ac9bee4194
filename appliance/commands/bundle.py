"""`corral bundle`: what a machine without a network needs, in one folder."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from appliance.commands.output import command_of, show, show_event
from appliance.commands.progress import progress
from appliance.config.runconfig import CHECKOUT, home
from appliance.errors import ConfigError, HostError


def add(commands: Any) -> None:
    """Adds bundle."""
    command = command_of(commands, "bundle", _bundle, "collect all that a machine without a network needs in a folder")
    command.epilog = (
        "docs/operate.md says how it is installed from. example: corral bundle /media/stick/corral --harness pi · "
        "corral bundle /media/stick/corral --check"
    )
    command.add_argument("folder", type=Path, help="where to; one that was interrupted is gone on with")
    command.add_argument("--harness", action="append", default=[], metavar="NAME", help="images; by default the first")
    command.add_argument("--model", action="append", default=[], type=Path, metavar="FOLDER", help="a model folder")
    command.add_argument("--plan", action="store_true", help="only say how large it will be")
    command.add_argument("--check", action="store_true", help="only check a bundle that is there")


def _bundle(arguments: argparse.Namespace) -> None:
    from appliance.operate import bundle

    if arguments.check:
        with progress(arguments, "bundle --check", "MB") as told:
            wrong = bundle.check(arguments.folder, told)
        if wrong:
            more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
            raise HostError(f"{arguments.folder}: {'; '.join(wrong[:5])}{more}", "copy it again, or make it again")
        show(arguments, {"bundle": str(arguments.folder), "whole": True}, f"{arguments.folder}: whole")
        return
    wish = _wish(arguments)
    if arguments.plan:
        sizes = bundle.plan(wish)
        lines = [f"{part:<10} {size / 1e6:>8.0f} MB{' at most' * (part == 'wheels')}" for part, size in sizes.items()]
        show(arguments, {"sizes": sizes, "bytes": sum(sizes.values())}, "\n".join(lines))
        return
    made = bundle.make(wish, arguments.folder.resolve(), lambda line: _tell(arguments, line))
    text = f"{made['bundle']}: {made['files']} files, {made['bytes'] / 1e9:.2f} GB, for {' '.join(made['platform'])}"
    text += f"\nsha256 of its SHA256SUMS: {made['sha256_of_sums']}"
    show(arguments, made, text)


def _tell(arguments: argparse.Namespace, line: str) -> None:
    show_event(arguments, {"part": "bundle", "message": line})


def _wish(arguments: argparse.Namespace) -> Any:
    from appliance.harness.catalog import Shelf
    from appliance.operate.bundle import Wish
    from appliance.sandbox.images.build import FIRST

    shelf = Shelf.of(home())
    chosen = {name: shelf.get(name) for name in arguments.harness or FIRST}
    for name, harness in chosen.items():
        if harness.terms:
            raise ConfigError(f"--harness {name}: {harness.terms}", f"leave {name} out; build it on the other machine")
    device = "gpu" if Path("/proc/driver/nvidia/gpus").exists() else "cpu"
    lock = CHECKOUT / "locks" / f"{device}.txt"
    return Wish(home(), lock, chosen, [folder.expanduser().resolve() for folder in arguments.model])
