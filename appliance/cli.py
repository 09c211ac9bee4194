"""The command line: every act and view, plain or as JSON. `corral` alone opens the terminal UI."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from appliance.commands.output import complain
from appliance.config.paths import home
from appliance.errors import CorralError, HostError
from appliance.system.offline import switch_off

EXIT_CODES = {
    0: "done",
    1: "failed, with a message and its remedy; or what was checked is not well",
    2: "wrong usage: an unknown command or option",
    3: "the run stopped before its end; `corral resume` goes on",
    130: "interrupted by Ctrl-C (a run that is under way drains and ends with 3)",
}
INTERRUPTED = 130
ENVIRONMENT = {
    "CORRAL_HOME": "folder of the record, runs, images and models; by default `corral` in the XDG data folder",
    "CORRAL_PODMAN_HOME": "folder of images and container storage, so that several records can share them",
    "CORRAL_RUN_…": "a key of a run's TOML, with `__` for the dot: `CORRAL_RUN_TRAIN__STEPS=4`; lists are JSON",
    "CORRAL_HARNESSES": "a further folder of harness files",
    "CORRAL_TEACHER_KEY": "key that is sent to `coldstart.teacher`",
    "CORRAL_ENGINE_KEY": "key that `corral proxy --engine` sends to its engine",
    "CORRAL_DEBIAN_MIRROR": "mirror that the base image's Debian packages come from",
    "CORRAL_PYTHON": "the Python that `install.sh` uses",
    "NO_COLOR": "the terminal UI uses greys alone",
    "VISUAL, EDITOR": "what the terminal UI opens texts in",
}
EXAMPLES = """examples:
  corral                         the terminal UI
  corral demo                    the shipped run: cold start, training, evaluation
  corral train RUN.toml --set train.steps=4
  corral status --json           what runs now
  corral stop                    drain the active run; `corral resume` goes on
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Parses, runs one command, and turns errors of ours into one message and an exit code."""
    arguments = _parsed(sys.argv[1:] if argv is None else argv)
    switch_off()
    try:
        return int(arguments.act(arguments) or 0)
    except CorralError as error:
        complain(error, arguments)
        return 1
    except BrokenPipeError:
        return 0
    except KeyboardInterrupt:
        complain(CorralError("interrupted"), arguments)
        return INTERRUPTED


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    """What was asked for. The UI alone does not wait until every command is imported and described."""
    if set(words) <= {"--readonly"} and "_ARGCOMPLETE" not in os.environ:
        return argparse.Namespace(act=_tui, json=False, plain=False, readonly=bool(words))
    from appliance.commands import completion

    parser = build_parser()
    completion.complete(parser)
    return parser.parse_args(words)


class Parser(argparse.ArgumentParser):
    """A parser, and those below it, that says what a misspelt word may have meant."""

    def error(self, message: str) -> NoReturn:
        """Ends with code 2; the list of all choices gives way to the one that is near."""
        if found := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message):
            word, known = found.group(1), [choice.strip("'") for choice in found.group(2).split(", ")]
            if near := difflib.get_close_matches(word, known, n=1):
                message = f"unknown word {word!r}: did you mean {near[0]!r}?"
        super().error(message)


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = Parser(
        prog="corral",
        description="Train agent policies inside the harnesses they will run in.",
        epilog=EXAMPLES + "\nexit codes:\n" + "\n".join(f"  {code:<4} {text}" for code, text in EXIT_CODES.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(act=_tui, json=False, plain=False, readonly=False)
    parser.add_argument("--readonly", action="store_true", help="the UI shows everything and changes nothing")
    commands = parser.add_subparsers(metavar="COMMAND")
    for group in _groups():
        group.add(commands)
    return parser


def _groups() -> tuple[Any, ...]:
    """The modules of the commands, in the order of the help."""
    from appliance.commands import (
        audit,
        bench,
        bundle,
        completion,
        config,
        control,
        db,
        evaluate,
        export,
        harness,
        images,
        inspect,
        policy,
        proxy,
        run,
        sandboxes,
        service,
        tasks,
        tree,
        trees,
        view,
    )

    return (
        run, control, inspect, view, config, harness, images, sandboxes, tasks, trees, db, tree, policy, export,
        bench, proxy, evaluate, bundle, service, audit, completion,
    )  # fmt: skip


def _tui(arguments: argparse.Namespace) -> None:
    if not sys.stdout.isatty():
        what = "`corral` alone opens the terminal UI, and this is no terminal"
        raise HostError(what, "`corral status` and the other commands say the same in lines")
    if os.environ.get("SSH_CONNECTION"):  # read when the UI is imported: fewer frames over a slow line
        os.environ.setdefault("TEXTUAL_FPS", "15")
    from tui.app import run as run_ui

    def start_demo() -> None:
        from appliance.commands import run
        from appliance.config.runconfig import resolve
        from appliance.runs import lifecycle

        run.detach(lifecycle.create(home(), resolve(run.DEMO)))

    run_ui(home(), arguments.readonly, start_demo)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
