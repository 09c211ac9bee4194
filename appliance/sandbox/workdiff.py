"""What was made, changed or removed in a workspace since its start: an answer, to be compared or laid elsewhere."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path


def changed(after: Path, before: Path) -> Iterator[Path]:
    """Relative paths of the files that were made or changed; links are none."""
    for file in sorted(after.rglob("*")):
        if file.is_file() and not file.is_symlink():
            old = before / file.relative_to(after)
            if not old.is_file() or old.read_bytes() != file.read_bytes():
                yield file.relative_to(after)


def answer_of(after: Path, before: Path) -> dict[str, str]:
    """Path → hash of every file that was made or changed, and nothing for one that was removed."""
    started = (old.relative_to(before) for old in before.rglob("*") if old.is_file())
    found = {str(path): "" for path in started if not (after / path).is_file()}
    for path in changed(after, before):
        found[str(path)] = hashlib.sha256((after / path).read_bytes()).hexdigest()
    return found


def lay_over(after: Path, before: Path, target: Path) -> None:
    """Puts what was made or changed over another workspace."""
    for path in changed(after, before):
        to = target / path
        to.parent.mkdir(parents=True, exist_ok=True)
        if not to.is_dir():
            shutil.copyfile(after / path, to)
