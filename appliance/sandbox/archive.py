"""Folders as a stream of tar, to another machine and back. What comes back is an agent's and is trusted in nothing.

Unpacking keeps folders, files, links and hard links within the stream; it follows no link, leaves the folder by no
name, counts what it writes, and says what it left out (pipes, devices, sockets, names that lead out).
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from appliance.errors import SandboxError

TOO_MUCH = "its folders hold more than {} bytes or {} files"
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
CHUNK = 1 << 20


def pack(folders: Sequence[tuple[Path, str]], into: IO[bytes]) -> None:
    """Write each folder under its name; the owners are the receiver's to set."""
    with tarfile.open(fileobj=into, mode="w|", format=tarfile.GNU_FORMAT, bufsize=CHUNK) as archive:
        todo = [*reversed(folders)]
        while todo:  # in a loop: what an agent nested must not exhaust our own stack
            path, name = todo.pop()
            archive.add(path, name, recursive=False)
            if path.is_dir() and not path.is_symlink():
                todo += ((path / entry, f"{name}/{entry}") for entry in sorted(os.listdir(path), reverse=True))


def unpack(source: IO[bytes], folder: Path, max_bytes: int, max_files: int) -> list[str]:
    """Fill an empty folder; the names of what was left out. SandboxError `disk_full` beyond the limits, `lost` for
    half a stream.
    """
    left_out: list[str] = []
    size = count = 0
    try:
        with tarfile.open(fileobj=source, mode="r|", bufsize=CHUNK) as archive:
            for entry in archive:
                size, count = size + entry.size, count + 1
                if size > max_bytes or count > max_files:
                    raise SandboxError("disk_full", TOO_MUCH.format(max_bytes, max_files))
                names = [name for name in entry.name.split("/") if name not in ("", ".")]
                if names and not _put(archive, entry, folder, names):
                    left_out.append("/".join(names))
    except (tarfile.TarError, EOFError) as error:
        raise SandboxError("lost", f"its folders did not come whole: {error}") from error
    return left_out


def _put(archive: tarfile.TarFile, entry: tarfile.TarInfo, folder: Path, names: list[str]) -> bool:
    """Make one entry; False for one that has no place here."""
    if ".." in names:
        return False
    with suppress(OSError), _inside(folder, names[:-1]) as at:
        if entry.isdir():
            with suppress(FileExistsError):
                os.mkdir(names[-1], 0o700, dir_fd=at)
            descriptor = os.open(names[-1], FOLDER, dir_fd=at)
            os.fchmod(descriptor, entry.mode & 0o777 | 0o700)
            os.close(descriptor)
        elif entry.issym():
            os.symlink(entry.linkname, names[-1], dir_fd=at)
        elif entry.islnk():
            return _link(entry, folder, names[-1], at)
        elif entry.isreg():
            _write(archive, entry, names[-1], at)
        else:
            return False
        return True
    _no_room(folder)
    return False


def _write(archive: tarfile.TarFile, entry: tarfile.TarInfo, name: str, at: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    source = archive.extractfile(entry)
    assert source is not None
    with os.fdopen(os.open(name, flags, 0o600, dir_fd=at), "wb") as file:
        while chunk := source.read(CHUNK):
            file.write(chunk)
        file.flush()
        os.fchmod(file.fileno(), entry.mode & 0o777)
        os.utime(file.fileno(), (entry.mtime, entry.mtime))


def _link(entry: tarfile.TarInfo, folder: Path, name: str, at: int) -> bool:
    """A second name of a file that this stream made."""
    names = [part for part in entry.linkname.split("/") if part not in ("", ".")]
    if not names or ".." in names:
        return False
    with _inside(folder, names[:-1]) as there:
        os.link(names[-1], name, src_dir_fd=there, dst_dir_fd=at, follow_symlinks=False)
    return True


@contextmanager
def _inside(folder: Path, names: Sequence[str]) -> Iterator[int]:
    """The folder below `folder` of that path, entered by no link."""
    at = os.open(folder, FOLDER)
    try:
        for name in names:
            below = os.open(name, FOLDER, dir_fd=at)
            os.close(at)
            at = below
        yield at
    finally:
        os.close(at)


def _no_room(folder: Path) -> None:
    """SandboxError where the failure was that this folder's own file system is full."""
    state = os.statvfs(folder)
    if state.f_blocks and (state.f_bavail == 0 or (state.f_files and state.f_favail == 0)):
        raise SandboxError("disk_full", f"{folder} is full")
