"""`corral bench NAME`: measurements as ratios within one run, printed as a table or as one JSON object."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
from typing import Any

from appliance import bench
from appliance.commands.printing import command_of, show

NAMES = sorted(module.name for module in pkgutil.iter_modules(bench.__path__))


def add(commands: Any) -> None:
    """Adds bench, with one sub-command for each module of `appliance.bench`."""
    parser = commands.add_parser(
        "bench",
        help="measure this machine's part of the work",
        epilog=f"example: corral bench {(NAMES or ['proxy'])[0]}",
    )
    benches = parser.add_subparsers(metavar="NAME", required=True)
    for name in NAMES:
        module = importlib.import_module(f"appliance.bench.{name}")
        command = command_of(benches, name, _bench, module.TEXT)
        command.set_defaults(measure=module.measure)
        module.add(command)


def _bench(arguments: argparse.Namespace) -> None:
    """`measure` returns the promised object and the table that says the same."""
    found, text = arguments.measure(arguments)
    show(arguments, found, text)
