"""`corral harness`: the agent programs at hand; build, try and add them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from appliance.commands.output import command_of, pairs_of, show, show_event
from appliance.commands.progress import progress
from appliance.config.runconfig import home, podman_home
from appliance.errors import HarnessFileError

WIRES = ("chat", "responses", "messages", "gemini")
OWN = "mytool --wire chat --install pip:mytool==1.0 --command 'mytool --url {base_url}/v1 \"{prompt}\"'"
QUESTIONS = (
    ("wire", f"What does it speak? One of {', '.join(WIRES)}"),
    ("install", "What is installed? pip:NAME==VERSION or npm:NAME@VERSION"),
    ("command", "How is it called? One line with {prompt}, {base_url}, {token}, {model}"),
)


def add(commands: Any) -> None:
    """Adds harness with list, show, build, check and new."""
    parser = commands.add_parser(
        "harness",
        help="agent programs: list, show, build, check, or add your own",
        epilog="example: corral harness check pi",
    )
    acts = parser.add_subparsers(metavar="ACTION", required=True)
    _named(acts, "list", _list, "every harness file that is read, and what is wrong with the broken ones")
    command = _named(acts, "show", _show, "one harness: what it speaks, installs, runs and writes", "pi")
    command.add_argument("name", help="name of a harness")
    command = _named(acts, "build", _build, "build the images of harnesses", "pi codex")
    command.add_argument("names", nargs="+", help="names of harnesses")
    command = _named(acts, "check", _check, "try the whole contract against a scripted model", "pi")
    command.add_argument("name", help="name of a harness")
    command.add_argument("--runs", type=int, default=1, help="times it is run; more say how stable its prompts are")
    command.add_argument("--timeout-s", type=int, default=240, help="seconds after which a run counts as never ending")
    command = _named(acts, "new", _new, "write a harness file for a program of your own; asks what is not given", OWN)
    _add_answers(command)


def _named(
    acts: Any, name: str, act: Callable[[argparse.Namespace], int | None], text: str, example: str = ""
) -> argparse.ArgumentParser:
    command = command_of(acts, name, act, text)
    command.epilog = f"example: corral harness {name} {example}".rstrip().replace("%", "%%")
    return command


def _add_answers(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", help="its name, also the file's")
    command.add_argument("--wire", choices=WIRES, help="the API it speaks")
    command.add_argument("--install", help="pip:NAME==VERSION or npm:NAME@VERSION")
    command.add_argument("--layer", type=Path, help="instead of --install: a file with Containerfile text")
    command.add_argument("--version", default="", help="with --layer: its version")
    command.add_argument("--check", default="", help="a command that prints the version")
    command.add_argument("--command", help="one line with {prompt}, {base_url}, {token} and {model}")
    command.add_argument("--env", action="append", default=[], metavar="KEY=VALUE", help="an environment variable")
    command.add_argument("--file", action="append", default=[], metavar="PATH=FILE", help="a file under its HOME")
    command.add_argument("--memory-mb", type=int, default=1000, help="memory of one sandbox, in MB")
    command.add_argument("--pids", type=int, default=256, help="processes and threads of one sandbox")
    command.add_argument("--folder", type=Path, help="where the file goes; $CORRAL_HOME/harnesses by default")


def _list(arguments: argparse.Namespace) -> None:
    from appliance.harness.catalog import Shelf
    from appliance.sandbox.images.build import image_exists, image_ref
    from appliance.sandbox.settings import podman_environment

    shelf = Shelf.of(home())
    environment = podman_environment(podman_home(home()))
    rows = [
        {
            "name": name, "version": harness.version, "wire": harness.wire, "file": str(shelf.paths[name]),
            "image": image_ref(harness), "built": image_exists(environment, image_ref(harness)),
            "terms": harness.terms, "mcp": [*harness.mcp.entries] if harness.mcp else [],
        }
        for name, harness in shelf.harnesses.items()
    ]  # fmt: skip
    broken = [{"file": str(path), "error": e.message, "remedy": e.remedy} for path, e in shelf.problems.items()]
    lines = [
        f"{'✓' if r['built'] else '·'} {r['name']:<18} {r['version']:<10} {r['wire']:<10}"
        f" {'MCP' if r['mcp'] else '':<3}{'' if r['built'] else ' corral harness build ' + str(r['name'])}"
        for r in rows
    ]
    lines += [f"✗ {b['error']}\n  remedy: {b['remedy']}" for b in broken]
    show(arguments, {"harnesses": rows, "broken": broken}, "\n".join(lines))


def _show(arguments: argparse.Namespace) -> None:
    from appliance.harness.catalog import Shelf
    from appliance.sandbox.images.build import image_ref

    shelf = Shelf.of(home())
    harness = shelf.get(arguments.name)
    found = {
        "name": harness.name, "version": harness.version, "wire": harness.wire,
        "file": str(shelf.paths[harness.name]), "image": image_ref(harness), "terms": harness.terms,
        "memory_mb": harness.memory_bytes // 1_000_000, "pids": harness.pids, "argv": list(harness.argv),
        "env": harness.env, "files": harness.files, "layer": harness.layer, "quirks": harness.quirks,
        "mcp": [*harness.mcp.entries] if harness.mcp else [],
    }  # fmt: skip
    lines = [f"{key:<10} {value}" for key, value in found.items() if not isinstance(value, dict) and key != "layer"]
    lines += [f"{'env':<10} {key}={value}" for key, value in harness.env.items()]
    lines += [f"{'file':<10} ~/{path}\n{text.rstrip()}" for path, text in harness.files.items()]
    lines += [f"{'quirk':<10} {key}: {value}" for key, value in harness.quirks.items()]
    show(arguments, found, "\n".join([*lines, f"{'layer':<10}{harness.layer.rstrip()}"]))


def _build(arguments: argparse.Namespace) -> None:
    from appliance.harness.catalog import Shelf
    from appliance.sandbox.images.build import build_images

    shelf = Shelf.of(home())
    harnesses = [shelf.get(name) for name in arguments.names]
    for harness in harnesses:
        if harness.terms:
            show_event(arguments, {"part": "images", "message": f"{harness.name}: {harness.terms}"})

    def tell(line: str) -> None:
        show_event(arguments, {"part": "images", "message": line})

    built = build_images(podman_home(home()), harnesses, tell)
    show(arguments, {"built": built}, "\n".join(f"✓ {name:<18} {ref}" for name, ref in built.items()))


def _check(arguments: argparse.Namespace) -> int:
    from appliance.harness.catalog import Shelf
    from appliance.operate.harness_check import card_text, checked

    harness = Shelf.of(home()).get(arguments.name)
    runs = f" --runs {arguments.runs}" if arguments.runs > 1 else ""
    with progress(arguments, f"harness check {harness.name}{runs}"):
        card = checked(podman_home(home()), harness, arguments.timeout_s, arguments.runs)
    show(arguments, card.as_dict(), card_text(card))
    return 1 if card.problem else 0


def _new(arguments: argparse.Namespace) -> None:
    from appliance.harness.scaffold import Answers, write_harness

    layer = _text(arguments.layer) if arguments.layer else ""
    asked = [(key, text) for key, text in QUESTIONS if not getattr(arguments, key) and not (layer and key == "install")]
    if asked and not sys.stdin.isatty():
        missing = ", ".join(f"--{key}" for key, _ in asked)
        raise HarnessFileError(f"harness new: {missing} not given", "give them, or run it in a terminal to be asked")
    for key, text in asked:
        setattr(arguments, key, input(f"{text}: ").strip())
    answers = Answers(
        name=arguments.name, wire=arguments.wire, command=arguments.command, install=arguments.install or "",
        layer=layer, version=arguments.version, check=arguments.check, env=pairs_of(arguments.env, "--env"),
        files={path: _text(Path(name)) for path, name in pairs_of(arguments.file, "--file").items()},
        memory_mb=arguments.memory_mb, pids=arguments.pids,
    )  # fmt: skip
    path = write_harness(answers, arguments.folder or home() / "harnesses")
    text = f"{path}\nnext: corral harness build {arguments.name}, then corral harness check {arguments.name}"
    show(arguments, {"file": str(path)}, text)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise HarnessFileError(f"{path}: cannot be read: {error}", "name a text file") from error
