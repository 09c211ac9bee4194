"""Versions on disk: sealed with the hash of every file, checked before anything resumes from them, pruned by rule.

A version's folder holds the adapter and what training goes on from. It counts only once the record names it, and the
record is told last; so a kill anywhere leaves either the version before or this one whole (E14).
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from appliance.config.sections import TrainSection
from appliance.errors import ModelError
from appliance.system.files import new_file

SEAL = "checkpoint.json"
STATES = ("optimizer.pt", "critic.pt")
"""What only training needs; a version can be served without it."""


@dataclass(frozen=True, slots=True)
class Rule:
    """keep_last: newest versions that can be resumed from · keep_adapters: newest adapters kept, 0 for all ·

    best: the version that did best on held-out tasks, None where none was evaluated. Version 0 and the best stay.
    """

    keep_last: int
    keep_adapters: int
    best: int | None

    @classmethod
    def of(cls, train: TrainSection, best: int | None) -> Rule:
        """The run's rule. Rollouts that are ahead are sampled by an older version, which must not go under them."""
        return cls(train.keep_last, train.keep_adapters + train.ahead if train.keep_adapters else 0, best)


def seal(folder: Path) -> str:
    """Writes the sha256 of each file of a version beside them; returns the hash of all of them together."""
    files = {path.name: _sha256(path) for path in sorted(folder.iterdir()) if path.name != SEAL}
    with new_file(folder / SEAL) as temporary:
        temporary.write_text(json.dumps({"files": files}, indent=1))
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()


def check(folder: Path) -> None:
    """ModelError unless every sealed file that is there is as it was written; a folder from elsewhere has no seal."""
    path = folder / SEAL
    if not path.is_file():
        return
    try:
        files: Mapping[str, str] = json.loads(path.read_text(encoding="utf-8"))["files"]
    except (ValueError, KeyError) as error:
        raise ModelError(f"{path}: unreadable: {error}", "resume from an earlier version") from error
    for name, sha256 in files.items():
        file = folder / name
        if not file.is_file() and name not in STATES:  # states are pruned before adapters are
            raise ModelError(f"{file}: missing from the checkpoint", "resume from an earlier version")
        if file.is_file() and _sha256(file) != sha256:
            raise ModelError(
                f"{file}: cut short or changed since it was written ({file.stat().st_size} bytes)",
                "resume from an earlier version",
            )


def prune(adapters: Path, newest: int, rule: Rule) -> list[Path]:
    """Deletes what the rule does not keep and returns it; to be called once the record names `newest`, not before.

    What a kill leaves half deleted goes the next time.
    """
    gone: list[Path] = []
    for folder in sorted(adapters.glob("v*"), key=_number):
        number = _number(folder)
        age = newest - number
        is_kept = not rule.keep_adapters or age < rule.keep_adapters or number in (0, rule.best)
        if not is_kept and age >= rule.keep_last:
            shutil.rmtree(folder)
            gone.append(folder)
        elif age >= rule.keep_last:
            states = [folder / name for name in STATES if (folder / name).exists()]
            for path in states:
                path.unlink()
            gone += states
    return gone


def _number(folder: Path) -> int:
    return int(folder.name[1:])


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
