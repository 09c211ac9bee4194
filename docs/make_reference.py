"""Writes docs/reference.md from the code: commands, exit codes, environment, configuration.

    python docs/make_reference.py            write it
    python docs/make_reference.py --check    exit 1 when what is there differs from what the code says

The commands come from the parser itself and the keys from the schema that reads a run's TOML, so the page
cannot say anything else than they do. A fast test runs the check.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from appliance.cli import ENVIRONMENT, EXIT_CODES, build_parser
from appliance.config.runconfig import RunConfig

PAGE = Path(__file__).resolve().parent / "reference.md"
EVERYWHERE = {"help", "json", "plain"}
HEAD = """\
<!-- Written by docs/make_reference.py from the code; do not edit. -->
# Reference

[Commands](#commands) · [exit codes](#exit-codes) · [environment](#environment) · [a run's TOML](#a-runs-toml)

Every command takes `--help`, `--json` (one JSON object; what streams is one object a line) and `--plain` (one line an
event, no colour, no cursor movement). An error is one message with its remedy, on standard error or, with `--json`, an
object with the keys `error` and `remedy` on standard output.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD, "## Commands\n", *commands(build_parser()), exit_codes(), environment(), *configuration()]
    return "\n".join(parts)


def commands(parser: argparse.ArgumentParser) -> Iterator[str]:
    """One part a command: what it does, how it is called, what it takes, an example."""
    below = next((a for a in parser._actions if isinstance(a, argparse._SubParsersAction)), None)
    if parser.prog == "corral" or below is None:
        yield _command(parser, below)
    if below is not None:
        for sub in below.choices.values():
            yield from commands(sub)


def _command(parser: argparse.ArgumentParser, below: object) -> str:
    own = [a for a in parser._actions if a is not below and a.dest not in EVERYWHERE]
    call = " ".join([parser.prog, *(_in_call(a) for a in own), *(["[COMMAND …]"] if below else [])])
    lines = [f"### {parser.prog}\n", f"{_sentence(parser.description or '')}\n", f"```\n{call}\n```\n"]
    rows = [f"| `{_name(a)}` | {_cell(a.help or '')}{_more(a)} |" for a in own]
    if rows:
        lines += ["| | |", "|---|---|", *rows, ""]
    note, _, examples = (parser.epilog or "").replace("%%", "%").partition("example: ")
    if examples:
        lines += [f"{_sentence(note.strip())}\n"] if note.strip() else []
        lines += ["```", *examples.split(" · "), "```", ""]
    return "\n".join(lines)


def _in_call(action: argparse.Action) -> str:
    """The argument as it stands in the line of a call."""
    name = _name(action)
    if not action.option_strings:
        return {"?": f"[{name}]", "*": f"[{name} …]", "+": f"{name} …"}.get(str(action.nargs), name)
    return name if action.required else f"[{name}]"


def _name(action: argparse.Action) -> str:
    shown = action.metavar if isinstance(action.metavar, str) else action.dest.upper().replace("_", "-")
    if not action.option_strings:
        return shown
    return action.option_strings[0] + ("" if action.nargs == 0 else f" {shown}")


def _more(action: argparse.Action) -> str:
    """Choices, and the default where it says something."""
    said = []
    if action.choices:
        said.append("one of " + ", ".join(f"`{choice}`" for choice in action.choices))
    if action.default not in (None, False, 0, "", [], argparse.SUPPRESS) and not isinstance(action.default, Path):
        said.append(f"by default `{action.default}`")
    if isinstance(action, argparse._AppendAction):
        said.append("may be given again")
    return "".join(f"; {part}" for part in said)


def exit_codes() -> str:
    """The table of exit codes."""
    rows = [f"| {code} | {_cell(text)} |" for code, text in EXIT_CODES.items()]
    return "\n".join(["## Exit codes\n", "| code | means |", "|---|---|", *rows, ""])


def environment() -> str:
    """The variables that are read."""
    rows = [f"| `{name}` | {_cell(text)} |" for name, text in ENVIRONMENT.items()]
    return "\n".join(["## Environment\n", "| variable | means |", "|---|---|", *rows, ""])


def configuration() -> Iterator[str]:
    """One table of keys a table of the TOML, in the order of the code."""
    schema = RunConfig.model_json_schema()
    yield (
        "## A run's TOML\n\nEvery key has a default; an unknown key is an error. Over the file goes the environment "
        "(`CORRAL_RUN_TRAIN__STEPS=4`), over that `--set train.steps=4`.\n"
        "`corral config show RUN.toml --sources` says what holds for a run and what decided it.\n"
    )
    tables = {k: v for k, v in schema["properties"].items() if "$ref" in v}
    yield _keys("Top level", "", {k: v for k, v in schema["properties"].items() if k not in tables})
    for name, field in tables.items():
        table = schema["$defs"][field["$ref"].rpartition("/")[2]]
        text = " ".join(str(table.get("description", "")).split())
        yield _keys(f"[{name}]", text, table["properties"], schema["$defs"])


def _keys(title: str, text: str, keys: dict[str, Any], known: dict[str, Any] | None = None) -> str:
    lines = [f"### {title}\n", *([f"{text}\n"] if text else [])]
    lines += ["| key | type | default | means |", "|---|---|---|---|"]
    for name, key in keys.items():
        full = (known or {}).get(key.get("$ref", "").rpartition("/")[2], {}) | key
        default = json.dumps(key.get("default"), ensure_ascii=False)
        lines.append(f"| `{name}` | {_type(full)} | `{default}` | {_cell(str(key.get('description', '')))} |")
    return "\n".join([*lines, ""])


def _type(key: dict[str, Any]) -> str:
    """A key's type and bounds in words."""
    if "enum" in key:
        return " or ".join(f"`{json.dumps(value)}`" for value in key["enum"])
    if key["type"] == "array":
        inner = key.get("items") or {"type": "string"}
        return f"list of {_type(inner)}"
    words = {"string": "text", "boolean": "true or false", "integer": "whole number", "number": "number"}[key["type"]]
    if "minimum" in key and "maximum" in key:
        return f"{words} from {key['minimum']:g} to {key['maximum']:g}"
    bounds = (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))
    return " ".join([words, *(f"{sign} {key[bound]:g}" for bound, sign in bounds if bound in key)])


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def _cell(text: str) -> str:
    return text.replace("%%", "%").replace("|", "\\|")


def main(argv: list[str]) -> int:
    """Writes the page, or with --check compares it."""
    wanted = page()
    if "--check" not in argv:
        PAGE.write_text(wanted, encoding="utf-8")
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == wanted:
        return 0
    sys.stderr.write("docs/reference.md is not what the code says\n  remedy: python docs/make_reference.py\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
