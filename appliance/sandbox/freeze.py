"""The final workspace, made safe to grade: what an agent could leave there to read or stall its grader is taken out.

The agent and all its processes are gone when this runs, so nothing changes underneath. Links that lead, or could
lead, to places of the grader are removed: followed inside the grader's sandbox they would show the hidden tests
as the agent's own work. So are pipes and sockets, which would stall a reader, and folders that could not be entered
are opened again. Nothing here follows a link; what was removed is told.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path, PurePosixPath

from appliance.errors import HarnessError

WORKSPACE = "/workspace"
# First folders of a path that an agent's link has no business with; /dev/null apart.
HIDDEN = frozenset({"tests", "logs", "proc", "sys", "dev", "run", "solution", "home", "root"})
MOST_ENTRIES = 1_000_000


def freeze(workspace: Path) -> list[str]:
    """Clean `workspace`; the names of what was removed. HarnessError `bad_workspace` when it cannot be walked."""
    removed: list[str] = []
    todo, entries_left = ["."], MOST_ENTRIES
    while todo:
        folder = todo.pop()
        try:
            descriptor = _enter(workspace / folder)
        except OSError as error:
            what = "nests folders too deep" if error.errno == errno.ENAMETOOLONG else f"cannot be read ({error})"
            raise HarnessError("bad_workspace", f"the workspace the harness left {what}") from error
        try:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    entries_left -= 1
                    if entries_left < 0:
                        raise HarnessError("bad_workspace", f"the workspace holds more than {MOST_ENTRIES} files")
                    path = str(PurePosixPath(folder, entry.name))
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(path)
                    elif not _may_stay(workspace, path, entry, descriptor):
                        os.unlink(entry.name, dir_fd=descriptor)
                        removed.append(path)
        finally:
            os.close(descriptor)
    return sorted(removed)


def leads_out(workspace: Path, link: str, target: str) -> bool:
    """Whether a link at `link` (a path within the workspace) may lead to a place of the grader."""
    if target.startswith("/"):
        parts = PurePosixPath(target).parts[1:]
        if parts and f"/{parts[0]}" == WORKSPACE:
            return _climbs(workspace, (), parts[1:])
        return ".." in parts or not parts or (parts[0] in HIDDEN and target != "/dev/null")
    return _climbs(workspace, PurePosixPath(link).parent.parts, PurePosixPath(target).parts)


def _climbs(workspace: Path, start: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    """Whether walking `parts` from `start` leaves the workspace, or turns back up behind another link."""
    at = list(start)
    through_link = False
    for part in parts:
        if part != "..":
            at.append(part)
            through_link = through_link or _is_link(workspace.joinpath(*at))
        elif through_link or not at:
            return True
        else:
            at.pop()
    return False


def _enter(path: Path) -> int:
    """The folder's descriptor; one that its owner closed is opened again, so that the grader can enter it."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    mode = stat.S_IMODE(path.lstat().st_mode)
    if mode & stat.S_IRWXU != stat.S_IRWXU:
        os.chmod(path, mode | stat.S_IRWXU)
    return os.open(path, flags)


def _may_stay(workspace: Path, path: str, entry: os.DirEntry[str], descriptor: int) -> bool:
    if entry.is_symlink():
        return not leads_out(workspace, path, os.readlink(entry.name, dir_fd=descriptor))
    return entry.is_file(follow_symlinks=False)


def _is_link(path: Path) -> bool:
    try:
        return stat.S_ISLNK(path.lstat().st_mode)
    except OSError:
        return False
