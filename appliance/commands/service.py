"""`corral service`: a systemd user unit that keeps the newest unfinished run going."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from appliance.commands.output import command_of, show


def add(commands: Any) -> None:
    """Adds service."""
    command = command_of(commands, "service", _service, "a systemd user unit that keeps the newest run going")
    command.epilog = "example: corral service show · corral service install · corral service remove"
    command.add_argument("action", choices=["show", "install", "remove"], help="print the unit; write it; take it away")


def _service(arguments: argparse.Namespace) -> None:
    from appliance.operate import service

    program = Path(shutil.which("corral", path=str(Path(sys.executable).parent)) or sys.argv[0]).absolute()
    if arguments.action == "show":
        text = service.unit(program, os.environ)
        show(arguments, {"unit": text, "file": str(service.unit_file(os.environ))}, text.rstrip())
    elif arguments.action == "install":
        path, left = service.install(program)
        show(arguments, {"file": str(path), "next": left}, "\n".join([f"wrote {path}; now:", *left]))
    else:
        path = service.remove()
        show(arguments, {"removed": str(path)}, f"removed {path}")
