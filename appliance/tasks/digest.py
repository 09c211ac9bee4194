"""What a task or a pack is: the SHA-256 of everything in its folder.

Two folders have one digest exactly when they hold the same files and folders under the same names, with the same
bytes, the same right to be executed and the same targets of links. Times and owners do not count.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from appliance.tasks.task_files import readable


def task_digest(folder: Path) -> str:
    """The digest of a task's folder, as 64 hexadecimal digits; PackError for a file that cannot be read."""
    digest = hashlib.sha256()
    with readable(folder):
        for path in sorted(_entries(os.fsencode(folder))):
            name = os.path.relpath(path, os.fsencode(folder))
            kind, content = _content(path)
            for part in (name, kind, content):
                digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def file_digest(file: Path) -> str:
    """The digest of one file's kind and content; PackError where it cannot be read."""
    with readable(file):
        return hashlib.sha256(b"\0".join(_content(os.fsencode(file)))).hexdigest()


def pack_digest(tasks: Mapping[str, str]) -> str:
    """The digest of a pack from those of its tasks, by their names."""
    lines = "".join(f"{name} {digest}\n" for name, digest in sorted(tasks.items()))
    return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()


def _entries(folder: bytes) -> list[bytes]:
    found = []
    for parent, folders, files in os.walk(folder, onerror=_raise):
        found += [os.path.join(parent, name) for name in (*folders, *files)]
    return found


def _raise(error: OSError) -> None:
    raise error


def _content(path: bytes) -> tuple[bytes, bytes]:
    """What an entry is, and the SHA-256 of its bytes or the target of its link."""
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        return b"link", os.readlink(path)
    if stat.S_ISDIR(mode):
        return b"folder", b""
    if not stat.S_ISREG(mode):
        return b"other", b""
    with open(path, "rb") as file:
        return b"program" if mode & stat.S_IXUSR else b"file", hashlib.file_digest(file, "sha256").digest()


def differences(wanted: Mapping[str, str], found: Mapping[str, str], named: int = 3) -> str:
    """In words, which tasks differ between two maps of task → digest; '' where none does."""
    changed = []
    for task in sorted(wanted.keys() | found.keys()):
        if wanted.get(task) != found.get(task):
            how = "missing" if task not in found else "new" if task not in wanted else "changed"
            changed.append(f"{task.encode('utf-8', 'backslashreplace').decode()} is {how}")
    more = f" and {len(changed) - named} more" if len(changed) > named else ""
    return ", ".join(changed[:named]) + more
