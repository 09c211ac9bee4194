"""Files and folders that appear whole or not at all: written beside their place, then put into it.

`written` never takes the place of something that is there, and what it writes only its owner may read; `new_file` and
`new_folder` replace, and are synced before.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from appliance.errors import ExportError


@contextmanager
def written(target: Path, is_folder: bool = False) -> Iterator[Path]:
    """A path to write to, put in place of `target` at the end; nothing of it is left when anything fails on the way.

    ExportError when `target` exists, its folder does not, or the disk is full.
    """
    target = Path(os.path.abspath(target))
    if target.exists() or target.is_symlink():
        raise ExportError(f"{target}: is there already", "name another target, or move it away first")
    if not target.parent.is_dir():
        raise ExportError(f"{target}: {target.parent} is no folder", "make the folder first")
    holder: Path | None = None
    try:
        holder = Path(tempfile.mkdtemp(prefix=f".{target.name[:100]}.", dir=target.parent))
        temporary = holder / "new"
        if is_folder:
            temporary.mkdir()
        yield temporary
        _close(temporary)
        if is_folder:
            temporary.rename(target)  # refused where a folder with files appeared meanwhile
        else:
            os.link(temporary, target)  # unlike a rename, refused where a file appeared meanwhile
    except FileExistsError as error:
        raise ExportError(f"{target}: is there already", "name another target, or move it away first") from error
    except OSError as error:
        raise ExportError(
            f"{target}: {error.strerror or error}", "nothing was written; name a target with room that can be written"
        ) from error
    finally:
        if holder is not None:
            shutil.rmtree(holder, ignore_errors=True)


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yields a temporary sibling to fill; on leaving without an error it becomes `folder`, replacing what was there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        temporary.chmod(0o755)
        yield temporary
        for path in temporary.iterdir():
            _sync(path)
        _sync(temporary)
        if folder.exists():  # a directory cannot be renamed over a full one: the old one steps aside first
            folder.rename(temporary.with_name(temporary.name + ".old"))
        temporary.rename(folder)
        _sync(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(temporary.with_name(temporary.name + ".old"), ignore_errors=True)


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yields a temporary sibling to write; on leaving without an error it becomes `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        _sync(temporary)
        temporary.replace(path)
        _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def private_folder(folder: Path) -> Path:
    """The folder, made where it is missing, for its owner alone; one that others could enter is closed."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if folder.stat().st_mode & 0o077:
        folder.chmod(0o700)
    return folder


def _close(path: Path) -> None:
    """Takes every right of others away from a file, or a folder and all in it."""
    for each in (path, *path.rglob("*")) if path.is_dir() else (path,):
        each.chmod(0o700 if each.is_dir() else 0o600)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
