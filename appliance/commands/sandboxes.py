"""`corral sandboxes`: what lives now, on this machine's own Podman: list, logs, shell, stop, prune."""

from __future__ import annotations

import argparse
import os
from typing import Any

from appliance.commands.output import command_of, show
from appliance.config.runconfig import home, podman_home


def add(commands: Any) -> None:
    """Adds sandboxes."""
    command = command_of(commands, "sandboxes", _sandboxes, "list, read, shell into, stop or prune sandboxes")
    command.epilog = "example: corral sandboxes list --json · corral sandboxes shell NAME · corral sandboxes prune"
    command.add_argument(
        "action", nargs="?", default="list", choices=["list", "logs", "shell", "stop", "prune"],
        help="list; show what one has written; open a shell in one; stop one (SIGTERM, grace, SIGKILL); remove "
        "those that no supervisor owns any more",
    )  # fmt: skip
    command.add_argument("name", nargs="?", help="name of the sandbox, or the start of it; for logs, shell and stop")
    command.add_argument("--lines", type=int, default=200, metavar="N", help="last lines that logs shows")
    command.add_argument("--grace", type=int, default=2, metavar="S", help="seconds from SIGTERM to SIGKILL")


def _sandboxes(arguments: argparse.Namespace) -> None:
    from appliance.sandbox import admin

    place = podman_home(home())
    if arguments.action == "prune":
        removed = admin.prune(place)
        show(arguments, {"removed": removed}, "\n".join(removed) or "nothing was left behind")
    elif arguments.action == "list":
        rows = admin.sandboxes(place)
        keys = ("name", "state", "owner", "rollout", "image")
        told = [dict(zip(keys, keys, strict=True)), *rows] if rows else []
        lines = [f"{r['name']:<44} {r['state']:<8} {r['owner']:<6} {r['rollout'] or '–':<9} {r['image']}" for r in told]
        show(arguments, {"sandboxes": rows}, "\n".join(lines) or "no sandbox lives now")
    else:
        name = admin.find(place, arguments.name or "")
        if arguments.action == "shell":
            command, environment = admin.shell_command(place, name)
            os.execvpe(command[0], command, environment)
        if arguments.action == "logs":
            log = admin.logs(place, name, arguments.lines)
            show(arguments, {"sandbox": name, "log": log}, log.rstrip() or "nothing was written yet")
            return
        admin.stop(place, name, arguments.grace)
        show(arguments, {"stopped": name}, f"{name} stopped")
