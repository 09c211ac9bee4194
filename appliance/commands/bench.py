"""`corral bench NAME`: measurements as ratios within one run, printed as a table or as one JSON object."""

from __future__ import annotations

import argparse
import importlib
from typing import Any

from appliance.commands.output import command_of, show
from appliance.commands.progress import progress

NAMES = ("proxy", "sandbox", "train", "tree")


def add(commands: Any) -> None:
    """Adds bench, with one sub-command for each module of `appliance.bench`."""
    parser = commands.add_parser(
        "bench",
        help="measure this machine's part of the work",
        epilog=f"example: corral bench {NAMES[0]}",
    )
    benches = parser.add_subparsers(metavar="NAME", required=True)
    for name in NAMES:
        module = importlib.import_module(f"appliance.bench.{name}")
        command = command_of(benches, name, _bench, module.TEXT)
        command.set_defaults(measure=module.measure, bench=name)
        module.add(command)


def _bench(arguments: argparse.Namespace) -> None:
    """`measure` returns the promised object and the table that says the same."""
    # How long it takes depends on the sizes asked for: what is remembered is remembered with them.
    shared = {"act", "measure", "bench", "json", "plain", "readonly"}
    own = {key: value for key, value in vars(arguments).items() if key not in shared and value}
    sizes = ", ".join(f"{key}={value}" for key, value in sorted(own.items()))
    with progress(arguments, f"bench {arguments.bench} ({sizes})"):
        found, text = arguments.measure(arguments)
    show(arguments, found, text)
