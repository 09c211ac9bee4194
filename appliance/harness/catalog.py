"""All harness files at hand: Corral's own, the user's, and those of further folders; read again when they change.

    the checkout's harnesses/  ·  $CORRAL_HOME/harnesses/  ·  the folders of $CORRAL_HARNESSES (colon between them)

A name in a later folder takes the place of the same name in an earlier one. A file that cannot be used is named,
and what was read from it before stays in force; it breaks nothing else.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from appliance.config.runconfig import CHECKOUT
from appliance.errors import HarnessFileError
from appliance.harness.harness import Harness

FOLDERS_VARIABLE = "CORRAL_HARNESSES"


def harness_folders(home: Path) -> tuple[Path, ...]:
    """The folders that are read, in order of rising precedence."""
    further = [Path(part).expanduser() for part in os.environ.get(FOLDERS_VARIABLE, "").split(":") if part]
    return (CHECKOUT / "harnesses", home / "harnesses", *further)


@dataclass(slots=True)
class Shelf:
    """The harnesses of some folders by name; `paths` says which file each came from, `problems` what is broken."""

    folders: Sequence[Path]
    harnesses: dict[str, Harness] = field(default_factory=dict)
    paths: dict[str, Path] = field(default_factory=dict)
    problems: dict[Path, HarnessFileError] = field(default_factory=dict)

    @classmethod
    def of(cls, home: Path) -> Shelf:
        """The shelf of this home, read once."""
        shelf = cls(harness_folders(home))
        shelf.read()
        return shelf

    def read(self) -> list[str]:
        """Read every file; the names that are new or changed since the last time."""
        found: dict[str, tuple[Harness, Path]] = {}
        self.problems = {}
        for path in (path for folder in self.folders for path in sorted(folder.glob("*.toml"))):
            try:
                harness = Harness.from_file(path)
            except HarnessFileError as error:
                self.problems[path] = error
                if self.paths.get(path.stem) == path:  # what it said while it was whole
                    found[path.stem] = (self.harnesses[path.stem], path)
                continue
            found[harness.name] = (harness, path)
        changed = [name for name, (harness, _) in found.items() if self.harnesses.get(name) != harness]
        self.harnesses = {name: found[name][0] for name in sorted(found)}
        self.paths = {name: path for name, (_, path) in found.items()}
        return changed

    def get(self, name: str) -> Harness:
        """The harness called `name`; the error of its file where that is broken, else what names there are."""
        if name in self.harnesses:
            return self.harnesses[name]
        for path, error in self.problems.items():
            if path.stem == name:
                raise error
        raise HarnessFileError(f"there is no harness {name!r}", f"known: {', '.join(self.harnesses)}")

    async def changes(self) -> AsyncIterator[tuple[list[str], list[HarnessFileError]]]:
        """Waits for files to change; yields the names that are new or changed, and what is newly broken."""
        from watchfiles import awatch

        places = [folder for folder in self.folders if folder.is_dir()]
        async for _ in awatch(*places, recursive=False, step=50, debounce=400):
            before = {str(error) for error in self.problems.values()}
            names = self.read()
            broken = [error for error in self.problems.values() if str(error) not in before]
            if names or broken:
                yield names, broken
