"""Commands for what a run is made of: its configuration."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from appliance.commands.output import command_of, overrides_of, show
from appliance.config.runconfig import leaves, resolve, sources


def add(commands: Any) -> None:
    """Adds config."""
    command = command_of(
        commands, "config", _config, "show every key of a run, its value and meaning", "show data/demo.toml"
    )
    command.add_argument("action", choices=["show"], help="show")
    command.add_argument("toml", type=Path, nargs="?", help="the run's TOML")
    command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key")
    command.add_argument("--sources", action="store_true", help="also say what decided each value")


def _config(arguments: argparse.Namespace) -> None:
    overrides = overrides_of(arguments)
    config = resolve(arguments.toml, overrides)
    origin = sources(arguments.toml, overrides) if arguments.sources else {}
    rows = [
        {"key": k, "value": v, "meaning": m} | ({"source": origin[k]} if origin else {}) for k, v, m in leaves(config)
    ]
    lines = [f"{r['key']:<26} = {json.dumps(r['value']):<22} {_origin(r)}{r['meaning']}" for r in rows]
    show(arguments, {"keys": rows}, "\n".join(lines))


def _origin(row: dict[str, Any]) -> str:
    return f"[{row['source']}] " if "source" in row else ""
