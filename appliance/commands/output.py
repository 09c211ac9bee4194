"""What every command shares: its options, and how it shows an answer, an event or an error."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from appliance.errors import ApplianceError, ConfigError, CorralError


def command_of(
    commands: Any, name: str, act: Callable[[argparse.Namespace], int | None], text: str, example: str = ""
) -> argparse.ArgumentParser:
    """A command with --json, --plain and an example in its help, which gives it `example`; `act` runs it."""
    command: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    command.epilog = f"example: {command.prog} {example}".rstrip()  # prog has the words of the commands above it
    command.set_defaults(act=act)
    command.add_argument("--json", action="store_true", help="one JSON object, or one a line for a stream")
    command.add_argument("--plain", action="store_true", help="plain lines without colour or cursor movement")
    return command


def overrides_of(arguments: argparse.Namespace) -> dict[str, str]:
    """The KEY=VALUE pairs of --set."""
    return pairs_of(arguments.set, "--set", "write for example --set train.steps=4")


def pairs_of(items: Sequence[str], option: str, remedy: str = "put an equals sign between the two") -> dict[str, str]:
    """KEY=VALUE texts as a dictionary; ConfigError names the one that is none."""
    found: dict[str, str] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals:
            raise ConfigError(f"{option} {item}: not KEY=VALUE", remedy)
        found[key.strip()] = value.strip()
    return found


def show(arguments: argparse.Namespace, found: object, text: str) -> None:
    """Prints the answer of a command: `found` as one line of JSON with --json, else `text`."""
    print(json.dumps(found, ensure_ascii=False) if arguments.json else text, flush=True)


def show_event(arguments: argparse.Namespace, event: dict[str, Any]) -> None:
    """Prints one event of a stream: a JSON object with --json, else time, part and message."""
    if arguments.json:
        print(json.dumps(event, ensure_ascii=False), flush=True)
        return
    at = time.strftime("%H:%M:%S", time.localtime(event.get("at", time.time())))
    level = event.get("level", "info")
    print(f"{at}  {event['part']:<10} {'' if level == 'info' else level + ': '}{event['message']}", flush=True)


def complain(error: CorralError, arguments: argparse.Namespace) -> None:
    """One message with its remedy, on standard error or as an object."""
    remedy = error.remedy if isinstance(error, ApplianceError) else ""
    if arguments.json:
        print(json.dumps({"error": error.message, "remedy": remedy}), flush=True)
    else:
        print(f"corral: {error}", file=sys.stderr)
