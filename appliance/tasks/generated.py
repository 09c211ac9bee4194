"""Packs that a generator writes: `data/NAME` holds the generator, the state folder holds the tasks.

    data/NAME/generate.py    writes every task into the folder after --out, the same bytes on every machine
              pack.json      {"tasks": 304, "digest": "…"}: what it must write
              samples/       one task of each family, for people to read

The tasks are generated once, into `$CORRAL_HOME/packs/DIGEST/NAME`. That folder appears whole or not at all, and its
digest is compared with pack.json at every load. Loading such a pack runs a program, so only the packs of this checkout
are generated.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from appliance.config.paths import CHECKOUT, home
from appliance.errors import PackError
from appliance.tasks.digest import differences, pack_digest, task_digest

DATA = CHECKOUT / "data"
MANIFEST, GENERATOR = "pack.json", "generate.py"
DEADLINE_S = 300.0
"""For a generator, on the slowest disk; the shipped ones take a quarter of a second."""


@dataclass(frozen=True, slots=True)
class Generated:
    """A pack whose tasks were generated again. `kept` is where a folder that differed was moved, or None."""

    name: str
    folder: Path
    num_tasks: int
    digest: str
    kept: Path | None


def shipped_packs() -> list[Path]:
    """The packs of this checkout that a generator writes, by name."""
    return sorted(file.parent for file in DATA.glob(f"*/{MANIFEST}"))


def is_generated(pack: Path) -> bool:
    """Whether the tasks of this folder lie in the state folder."""
    return (pack / MANIFEST).is_file() and pack.resolve().parent == DATA


def tasks_folder(pack: Path) -> Path:
    """Where the tasks of a pack's folder lie: there, or in the state folder, where this generates missing ones.

    PackError where they are not what pack.json says.
    """
    if not all((pack / name).is_file() for name in (MANIFEST, GENERATOR)):
        return pack
    pack = pack.resolve()
    if not is_generated(pack):
        raise PackError(
            f"{pack}: belongs to another Corral, and this one runs no generator but its own",
            f"generate its tasks, then name their folder: python3 {pack / GENERATOR} --out FOLDER",
        )
    count, digest = _manifest(pack)
    folder = _folder(pack, digest)
    if not folder.is_dir():
        return generate(pack).folder
    found = _digests(folder)
    if pack_digest(found) != digest:
        with _written(pack) as fresh:
            what = differences(_digests(fresh), found)
        raise PackError(
            f"{folder}: is not the pack {pack.name} of {count} tasks any more: {what}",
            f"generate it again: corral tasks generate {pack.name} (the changed folder is kept beside it)",
        )
    return folder


def generate(pack: Path) -> Generated:
    """Writes the tasks of a shipped pack again; a folder that differs from pack.json steps aside and is kept."""
    pack = pack.resolve()
    count, digest = _manifest(pack)
    folder = _folder(pack, digest)
    with _written(pack) as fresh:
        found = _digests(fresh)
        if (len(found), pack_digest(found)) != (count, digest):
            raise PackError(
                f"{pack / GENERATOR}: wrote {len(found)} tasks with digest {pack_digest(found)}, and "
                f"{pack / MANIFEST} asks for {count} with {digest}",
                f"restore {pack}; or, if the tasks are meant to change, write the new number and digest there",
            )
        kept = None
        if folder.exists() and pack_digest(_digests(folder)) != digest:
            kept = _free_name(folder)
            folder.rename(kept)
        if not folder.exists():
            folder.parent.mkdir(exist_ok=True)
            fresh.rename(folder)
    return Generated(pack.name, folder, count, digest, kept)


def _manifest(pack: Path) -> tuple[int, str]:
    """Number of tasks and digest that pack.json asks for."""
    file = pack / MANIFEST
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
        return int(manifest["tasks"]), str(manifest["digest"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PackError(f"{file}: cannot be read ({error!r})", "restore the file, or install Corral again") from error


def _folder(pack: Path, digest: str) -> Path:
    """By digest first, so that two checkouts with one home never replace each other's tasks."""
    return home() / "packs" / digest[:12] / pack.name


def _digests(folder: Path) -> dict[str, str]:
    """Task folder → digest."""
    return {task.name: task_digest(task) for task in sorted(folder.iterdir()) if task.is_dir()}


@contextmanager
def _written(pack: Path) -> Iterator[Path]:
    """A temporary folder with all tasks of the pack. One process writes at a time, and removes what a kill left."""
    packs = home() / "packs"
    try:
        packs.mkdir(parents=True, exist_ok=True)
        with (packs / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for left in packs.glob(".writing-*"):
                shutil.rmtree(left, ignore_errors=True)
            holder = Path(tempfile.mkdtemp(prefix=".writing-", dir=packs))
            try:
                folder = holder / pack.name
                folder.mkdir()
                _run(pack, folder)
                yield folder
            finally:
                shutil.rmtree(holder, ignore_errors=True)
    except OSError as error:
        raise PackError(
            f"{packs}: the tasks of {pack.name} cannot be written there: {error.strerror or error}",
            "free some space, or set CORRAL_HOME to a folder of your own",
        ) from error


def _run(pack: Path, folder: Path) -> None:
    command = [sys.executable, "-I", "-B", str(pack / GENERATOR), "--out", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=DEADLINE_S)
    except subprocess.TimeoutExpired as error:
        raise PackError(f"{pack / GENERATOR}: did not end within {DEADLINE_S:.0f} s", "try again") from error
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no message"])[-1]
        if is_full := [code for code in (errno.ENOSPC, errno.EDQUOT) if f"[Errno {code}]" in last]:
            raise OSError(is_full[0], os.strerror(is_full[0])) from error  # the home's fault, not the generator's
        raise PackError(f"{pack / GENERATOR}: failed: {last}", f"restore {pack}") from error


def _free_name(folder: Path) -> Path:
    """A name beside the folder that nothing has."""
    number = 1
    while (name := folder.with_name(f"{folder.name}.changed-{number}")).exists():
        number += 1
    return name
