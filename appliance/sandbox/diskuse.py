"""Do the folders that a sandbox may write hold too much? Looked at from outside while it runs.

A bind mount has no quota. This stops a runaway within seconds; what is deleted but still open it does not
see, and each single file is bounded by the sandbox's own limit.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import anyio
from anyio import to_thread

from appliance.sandbox.spec import Limits

LOOK_EVERY_S = 2.0


async def cancel_when_full(folders: Sequence[Path], limits: Limits, scope: anyio.CancelScope) -> None:
    """Cancel `scope` once the folders hold more than the limit; those with a file system of that size need no look."""
    folders = [folder for folder in folders if not _is_bounded(folder, limits)]
    while folders:
        await anyio.sleep(LOOK_EVERY_S)
        look = partial(hold_more, folders, limits.disk_bytes, limits.num_files)
        if await to_thread.run_sync(look, abandon_on_cancel=True):
            scope.cancel()
            return


def _is_bounded(folder: Path, limits: Limits) -> bool:
    """Whether its whole file system is about as small as the limit."""
    state = os.statvfs(folder)
    return state.f_blocks * state.f_frsize <= 2 * limits.disk_bytes


def hold_more(folders: Sequence[Path], limit_bytes: int, num_files: int) -> bool:
    """Whether the folders take more than that on disk, or have more entries than that.

    What lies in them is the agent's and changes underneath: no link is followed, what is gone is passed over.
    """
    todo = [str(folder.resolve()) for folder in folders]
    entries_left, size = num_files, 0
    while todo:
        folder = todo.pop()
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return True  # nothing honest nests so deep
            continue
        try:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    entries_left -= 1
                    size += _disk_bytes(entry)
                    if entries_left < 0 or size > limit_bytes:
                        return True
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(f"{folder}/{entry.name}")
        finally:
            os.close(descriptor)
    return False


def _disk_bytes(entry: os.DirEntry[str]) -> int:
    """What it takes on disk; a file of several names is counted in parts."""
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return 0
    return status.st_blocks * 512 // max(1, status.st_nlink)
