"""`corral images`: the images that sandboxes start from."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from appliance.commands.output import command_of, show, show_event
from appliance.commands.progress import progress
from appliance.config.runconfig import RunConfig, home, podman_home
from appliance.errors import ConfigError
from appliance.harness.harness import Harness

ACTIONS = ("build", "list", "prune", "save", "load")


def add(commands: Any) -> None:
    """Adds images."""
    from appliance.sandbox.images.build import FIRST

    text = "build, list, prune, save or load the images of sandboxes"
    command = command_of(commands, "images", _images, text, "build pi codex")
    command.add_argument("action", choices=ACTIONS, help="what to do")
    command.add_argument(
        "names", nargs="*", help=f"harnesses (build: by default {' '.join(FIRST)}); load: the archive's file"
    )
    command.add_argument("--all", action="store_true", help="build, save: every harness that terms do not bind")
    command.add_argument("--tasks", action="store_true", help="prune: the images of tasks too")
    command.add_argument("--pack", default="", help="build: also the images of this pack's tasks with a Dockerfile")
    command.add_argument("--output", type=Path, help="save: the archive's file")


def _images(arguments: argparse.Namespace) -> None:
    acts = {"build": _build, "list": _list, "prune": _prune, "save": _save, "load": _load}
    acts[arguments.action](arguments)


def _build(arguments: argparse.Namespace) -> None:
    from appliance.sandbox.images.build import FIRST, build_images

    def tell(line: str) -> None:
        show_event(arguments, {"part": "images", "message": line})

    chosen = _chosen(arguments, FIRST)
    for harness in chosen:
        if harness.terms:
            tell(f"{harness.name}: {harness.terms}")
    build_images(podman_home(home()), chosen, tell)
    if arguments.pack:
        from appliance.sandbox.images.task import build_task_images
        from appliance.tasks.pack import load_pack

        for task in load_pack(RunConfig(tasks={"pack": arguments.pack}).pack_path).tasks:
            if task.dockerfile is not None:
                build_task_images(podman_home(home()), task, chosen, tell)
    _list(arguments)


def _list(arguments: argparse.Namespace) -> None:
    from appliance.harness.catalog import Shelf
    from appliance.sandbox.images.store import stored, wanted_refs

    harnesses = Shelf.of(home()).harnesses
    there = {image.ref: image for image in stored(podman_home(home()), list(harnesses.values()))}
    wanted = wanted_refs(harnesses.values())
    sizes = {ref: image.size_bytes for ref, image in there.items()}
    rows = [
        {"name": name, "ref": ref, "present": ref in there, "bytes": sizes.get(ref, 0)} for name, ref in wanted.items()
    ]
    others = [image for ref, image in there.items() if ref not in wanted.values()]
    old = [image.ref or image.id[:12] for image in others if not image.wanted]
    tasks = [image.ref for image in others if image.wanted]
    lines = [f"{_mark(ref in sizes)} {name:<18} {_size(sizes.get(ref, 0)):>8}  {ref}" for name, ref in wanted.items()]
    lines += [f"✓ {'task':<18} {'':>8}  {ref}" for ref in tasks]
    lines += [f"{len(old)} images that nothing asks for any more: corral images prune"] if old else []
    show(arguments, {"images": rows, "tasks": tasks, "old": old}, "\n".join(lines))


def _prune(arguments: argparse.Namespace) -> None:
    from appliance.harness.catalog import Shelf
    from appliance.sandbox.images.store import prune

    with progress(arguments, "images prune"):
        gone = prune(podman_home(home()), list(Shelf.of(home()).harnesses.values()), arguments.tasks)
    refs = [image.ref or image.id[:12] for image in gone]
    show(arguments, {"removed": refs}, "\n".join(f"removed {ref}" for ref in refs) or "nothing to remove")


def _save(arguments: argparse.Namespace) -> None:
    from appliance.sandbox.images.build import FIRST
    from appliance.sandbox.images.store import save

    if arguments.output is None:
        raise ConfigError("images save: no file given", "corral images save pi codex --output images.tar")
    chosen = {harness.name: harness for harness in _chosen(arguments, FIRST)}
    with progress(arguments, f"images save {' '.join(chosen)}"):
        refs = save(podman_home(home()), chosen, arguments.output)
    text = "\n".join(f"saved {ref}" for ref in refs)
    show(arguments, {"file": str(arguments.output), "images": refs}, text)


def _load(arguments: argparse.Namespace) -> None:
    from appliance.sandbox.images.store import load

    if len(arguments.names) != 1:
        raise ConfigError("images load: takes one file", "corral images load images.tar")
    with progress(arguments, "images load"):
        refs = load(podman_home(home()), Path(arguments.names[0]))
    show(arguments, {"images": refs}, "\n".join(f"loaded {ref}" for ref in refs))


def _chosen(arguments: argparse.Namespace, first: Sequence[str]) -> list[Harness]:
    from appliance.harness.catalog import Shelf

    shelf = Shelf.of(home())
    if arguments.all:
        return [harness for harness in shelf.harnesses.values() if not harness.terms]
    return [shelf.get(name) for name in arguments.names or first]


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.0f} MB" if num_bytes else "–"


def _mark(is_there: bool) -> str:
    return "✓" if is_there else "·"
