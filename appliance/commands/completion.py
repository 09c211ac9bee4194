"""`corral completion SHELL`: completion of commands, options, runs, harnesses, packs and keys in a shell.

The shell calls `corral` itself for its answers (argcomplete), so they are always those of the installed version and of
the record at hand. Nothing of this is imported unless a shell asks.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from appliance.commands.output import command_of, show
from appliance.config.runconfig import CHECKOUT, home

SHELLS = ("bash", "zsh", "fish")
ASKING = "_ARGCOMPLETE"  # set by the shell's function while it asks
Completer = Callable[..., Iterable[str]]


def add(commands: Any) -> None:
    """Adds completion."""
    text = "print what makes a shell complete commands, options, runs, harnesses, packs and keys"
    command = command_of(commands, "completion", _completion, text)
    command.epilog = (
        'for bash add to ~/.bashrc: eval "$(corral completion bash)". example: corral completion bash · '
        "corral completion zsh · corral completion fish"
    )
    command.add_argument("shell", choices=SHELLS, help="the shell that reads it")


def _completion(arguments: argparse.Namespace) -> None:
    from argcomplete.shell_integration import shellcode

    text = shellcode(["corral"], shell=arguments.shell)
    show(arguments, {"shell": arguments.shell, "script": text}, text)


def complete(parser: argparse.ArgumentParser) -> None:
    """Answers a shell that asks for completions and ends the process; does nothing otherwise."""
    if ASKING not in os.environ:
        return
    import argcomplete

    for command in _all_of(parser):
        for action in command._actions:
            if completer := _completer(command.prog, action):
                action.completer = completer  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser, always_complete_options=False)


def _all_of(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _all_of(below)


def _completer(command: str, action: argparse.Action) -> Completer | None:
    """What can stand for this argument; None where choices or file names are the answer."""
    by_name: dict[str, Completer] = {
        "run": _runs,
        "policy": _runs,
        "of": _exported,
        "harness": _harnesses,
        "pack": _packs,
        "packs": _shipped,
        "set": _keys,
        "toml": _tomls,
    }
    named = command.startswith(("corral harness ", "corral images")) and action.dest in ("name", "names")
    return _harnesses if named else by_name.get(action.dest)


def _runs(**_: object) -> list[str]:
    from appliance.errors import CorralError
    from appliance.record.access import reading

    try:
        with reading(home()) as store:
            return [run.id for run in store.runs()]
    except CorralError:  # no record yet
        return []


def _exported(**asked: object) -> list[str]:
    return ["adapter", "merged", *_runs(**asked)]


def _harnesses(**_: object) -> list[str]:
    from appliance.harness.catalog import Shelf

    return list(Shelf.of(home()).harnesses)


def _packs(prefix: str = "", **_: object) -> list[str]:
    from argcomplete.completers import DirectoriesCompleter

    return [*_shipped(), *DirectoriesCompleter()(prefix)]


def _shipped(**_: object) -> list[str]:
    return [file.parent.name for file in sorted(CHECKOUT.glob("data/*/pack.json"))]


def _keys(**_: object) -> list[str]:
    from appliance.config.runconfig import RunConfig, leaves

    return [f"{key}=" for key, _, _ in leaves(RunConfig())]


def _tomls(prefix: str = "", **_: object) -> list[str]:
    from argcomplete.completers import FilesCompleter

    return list(FilesCompleter(["toml"])(prefix))
