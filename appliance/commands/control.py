"""Commands that steer a run while it goes on: pause, unpause, kill and retry a rollout."""

from __future__ import annotations

import argparse
from typing import Any

from appliance.commands.output import command_of, show
from appliance.config.runconfig import home

TEXTS = {
    "pause": "start no new rollouts of the active run until `corral unpause`",
    "unpause": "go on after `corral pause`",
    "kill": "end a rollout of the active run; it counts as failed and has no reward",
    "retry": "make a rollout of the active run again: one under way, or one that failed in the batch under way",
}


def add(commands: Any) -> None:
    """Adds pause, unpause, kill and retry."""
    for name, text in TEXTS.items():
        command = command_of(commands, name, _steer, text)
        command.set_defaults(kind=name, rollout=None)
        if name in ("kill", "retry"):
            command.epilog = f"example: corral {name} 42"
            command.add_argument("rollout", type=int, help="number of the rollout")


def _steer(arguments: argparse.Namespace) -> None:
    from appliance.runs import lifecycle

    argument = "" if arguments.rollout is None else str(arguments.rollout)
    run_id = lifecycle.steer(home(), None, arguments.kind, argument)
    text = f"run {run_id}: asked its supervisor to {' '.join([arguments.kind, argument]).strip()}"
    show(arguments, {"run": run_id, "command": arguments.kind, "rollout": arguments.rollout}, text)
