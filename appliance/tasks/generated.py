"""Packs that a generator writes: `data/NAME` holds the generator, the state folder holds the tasks.

    data/NAME/generate.py    writes every task into the folder after --out, the same bytes on every machine
              pack.json      {"tasks": 304, "digest": "…"}: what it must write, words.txt included
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
import shlex
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
from appliance.tasks.digest import differences, file_digest, pack_digest, task_digest
from appliance.tasks.task_files import readable

DATA = CHECKOUT / "data"
MANIFEST, GENERATOR = "pack.json", "generate.py"
FULL = (errno.ENOSPC, errno.EDQUOT)
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
    with readable(pack):
        own = _own(pack)
        if own is None:
            return pack
        count, digest = _manifest(own)
        folder = _folder(own, digest)
        if not os.path.lexists(folder):
            return generate(own).folder
        if _is(folder, digest):
            return folder
    raise PackError(
        f"{folder}: is not the pack {own.name} of {count} tasks any more: {_what_changed(own, folder)}",
        f"generate it again: corral tasks generate {own.name} (the changed folder is kept beside it)",
    )


def generate(pack: Path) -> Generated:
    """Writes the tasks of a shipped pack again; what differs from pack.json steps aside and is kept."""
    pack = pack.resolve()
    count, digest = _manifest(pack)
    folder = _folder(pack, digest)
    with _written(pack) as fresh:
        found = _digests(fresh)
        written = sum(entry.is_dir() for entry in fresh.iterdir())
        if (written, pack_digest(found)) != (count, digest):
            raise PackError(
                f"{pack / GENERATOR}: wrote {written} tasks with digest {pack_digest(found)}, and "
                f"{pack / MANIFEST} asks for {count} with {digest}",
                f"restore {pack}; or, if the tasks are meant to change, write the new number and digest there",
            )
        kept = None
        if os.path.lexists(folder) and not _is(folder, digest):
            kept = _free_name(folder)
            folder.rename(kept)
        if not folder.exists():
            folder.parent.mkdir(exist_ok=True)
            fresh.rename(folder)
    return Generated(pack.name, folder, count, digest, kept)


def _own(pack: Path) -> Path | None:
    """The shipped pack that a folder names; None for a folder of tasks.

    The folder of another checkout stands for ours where its pack.json says the same. PackError for any other folder
    with a generator, and for one of ours that lost a file.
    """
    pack = pack.resolve()
    there = [name for name in (MANIFEST, GENERATOR) if (pack / name).is_file()]
    if pack.parent == DATA and len(there) == 1:
        lost = ({MANIFEST, GENERATOR} - set(there)).pop()
        raise PackError(f"{pack / lost}: is missing", f"restore {pack}, or install Corral again")
    if len(there) < 2 or pack.parent == DATA:
        return pack if len(there) == 2 else None
    if next(pack.glob("*/task.toml"), None):
        return None  # somebody wrote tasks beside a generator of their own
    ours = DATA / pack.name
    if is_generated(ours) and _manifest(ours) == _manifest(pack):
        return ours
    raise PackError(
        f"{pack}: belongs to another Corral, and this one runs no generator but its own",
        f"generate its tasks, then name their folder: python3 {shlex.quote(str(pack / GENERATOR))} --out FOLDER",
    )


def _manifest(pack: Path) -> tuple[int, str]:
    """Number of tasks and digest that pack.json asks for."""
    file = pack / MANIFEST
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
        return int(manifest["tasks"]), str(manifest["digest"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise PackError(f"{file}: cannot be read ({error!r})", "restore the file, or install Corral again") from error


def _folder(pack: Path, digest: str) -> Path:
    """By digest first, so that two checkouts with one home never replace each other's tasks."""
    return home() / "packs" / digest[:12] / pack.name


def _digests(folder: Path) -> dict[str, str]:
    """Digest of each task's folder, and of each file beside them."""
    entries = sorted(folder.iterdir())
    return {entry.name: task_digest(entry) if entry.is_dir() else file_digest(entry) for entry in entries}


def _is(folder: Path, digest: str) -> bool:
    """Whether a folder holds the tasks of this digest; one that cannot be read does not."""
    try:
        return not folder.is_symlink() and folder.is_dir() and pack_digest(_digests(folder)) == digest
    except (OSError, PackError):
        return False


def _what_changed(pack: Path, folder: Path) -> str:
    """In words, which tasks differ from those that the generator writes."""
    try:
        found = _digests(folder)
    except (OSError, PackError):
        return "it cannot be read"
    try:
        with _written(pack) as fresh:
            return differences(_digests(fresh), found)
    except PackError:
        return "some tasks are changed, new or missing"


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
                _run(pack, folder, lock.fileno())
                yield folder
            finally:
                shutil.rmtree(holder, ignore_errors=True)
    except OSError as error:
        where = os.fsdecode(error.filename) if error.filename else packs
        remedy = "free some space" if error.errno in FULL else f"make {where} a folder of yours, or remove it"
        raise PackError(
            f"{where}: the tasks of {pack.name} cannot be written there: {error.strerror or error}",
            f"{remedy}; or set CORRAL_HOME to another folder",
        ) from error


def _run(pack: Path, folder: Path, lock: int) -> None:
    """Runs the generator, which holds the lock too: when this process is killed, nobody cleans up before it ends."""
    command = [sys.executable, "-I", "-B", "-X", "utf8", str(pack / GENERATOR), "--out", str(folder)]
    try:
        subprocess.run(
            command, check=True, capture_output=True, encoding="utf-8", errors="replace", timeout=DEADLINE_S,
            pass_fds=(lock,),
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise PackError(f"{pack / GENERATOR}: did not end within {DEADLINE_S:.0f} s", "try again") from error
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no message"])[-1]
        if is_full := [code for code in FULL if f"[Errno {code}]" in last]:
            raise OSError(is_full[0], os.strerror(is_full[0])) from error  # the home's fault, not the generator's
        raise PackError(f"{pack / GENERATOR}: failed: {last}", f"restore {pack}") from error


def _free_name(folder: Path) -> Path:
    """A name beside the folder that nothing has."""
    number = 1
    while os.path.lexists(name := folder.with_name(f"{folder.name}.changed-{number}")):
        number += 1
    return name
