"""The command line: every act and view, plain or as JSON. `corral` alone opens the terminal UI.

Exit codes: 0 done · 1 failed with a message · 2 wrong usage · 3 stopped before the end (`corral resume` goes on).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from appliance.commands import (
    bench,
    bundle,
    db,
    evaluate,
    export,
    harness,
    images,
    keep,
    look,
    policy,
    proxy,
    run,
    sandboxes,
    service,
    steer,
    tasks,
    tree,
    trees,
)
from appliance.commands.printing import complain
from appliance.config import home, resolve
from appliance.errors import CorralError
from appliance.offline import switch_off

EXAMPLES = """examples:
  corral                         the terminal UI
  corral demo                    the shipped run: cold start, training, evaluation
  corral train RUN.toml --set train.steps=4
  corral status --json           what runs now
  corral stop                    drain the active run; `corral resume` goes on
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Parses, runs one command, and turns errors of ours into one message and an exit code."""
    arguments = build_parser().parse_args(argv)
    switch_off()
    try:
        return int(arguments.act(arguments) or 0)
    except CorralError as error:
        complain(error, arguments)
        return 1
    except BrokenPipeError:
        return 0


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="corral",
        description="Train agent policies inside the harnesses they will run in.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(act=_tui, json=False, plain=False, readonly=False)
    parser.add_argument("--readonly", action="store_true", help="the UI shows everything and changes nothing")
    commands = parser.add_subparsers(metavar="COMMAND")
    for group in (
        run,
        steer,
        look,
        keep,
        harness,
        images,
        sandboxes,
        tasks,
        trees,
        db,
        tree,
        policy,
        export,
        bench,
        proxy,
        evaluate,
        bundle,
        service,
    ):
        group.add(commands)
    return parser


def _tui(arguments: argparse.Namespace) -> None:
    if os.environ.get("SSH_CONNECTION"):  # read when the UI is imported: fewer frames over a slow line
        os.environ.setdefault("TEXTUAL_FPS", "15")
    from tui.app import run as run_ui

    def start_demo() -> None:
        from appliance import running

        run.detach(running.create(home(), resolve(run.DEMO)))

    run_ui(home(), arguments.readonly, start_demo)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
