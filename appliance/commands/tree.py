"""The command that shows one rollout's tree."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from appliance.commands.output import command_of, show
from appliance.commands.progress import progress
from appliance.config.runconfig import home


def add(commands: Any) -> None:
    """Adds tree."""
    command = command_of(commands, "tree", _tree, "a rollout's tree: branch points, tokens, causes, rewards")
    command.epilog = "example: corral tree 42 --html tree.html"
    command.add_argument("rollout", type=int, help="number of the rollout")
    command.add_argument(
        "--html", type=Path, metavar="FILE", help="write one self-contained page with every token and the raw bodies"
    )


def _tree(arguments: argparse.Namespace) -> None:
    from appliance.record.access import reading
    from appliance.report.trace import recollect
    from appliance.report.tree_view import text, view
    from appliance.report.treehtml import write_html

    with progress(arguments, "tree"):
        with reading(home()) as store:
            told = recollect(store, arguments.rollout)
        found = view(home(), told)
        if arguments.html:
            write_html(home(), told, arguments.html)
    written = {"html": str(arguments.html)} if arguments.html else {}
    show(arguments, found | written, "\n".join([text(found), *written.values()]))
