"""Folders and files that appear whole or not at all: written beside their place, synced, then renamed."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
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


@contextlib.contextmanager
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


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
