"""Files that appear whole or not at all, and never over something that is there."""

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
