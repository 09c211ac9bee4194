"""What one step of a task hands to the next: the agent's workspace and HOME as they were before the step was graded.

The grader may write into the workspace it is given, so the next step begins from a copy made before. Nothing here
follows a link that the agent left: what the host lays over the agent's files would be written wherever it points.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from appliance.workshop import Workshop, remove


@dataclass(frozen=True, slots=True)
class Carried:
    """A folder with a copy of `workspace` and `home`; empty until something was kept."""

    folder: Path

    def keep(self, workshop: Workshop) -> None:
        """Copy both, whatever is in them; its agent's processes must be gone. OSError where the disk is full."""
        self.remove()
        self.folder.mkdir(mode=0o700)
        _copy(workshop.workspace, self.folder / "workspace")
        _copy(workshop.home, self.folder / "home")

    def lay(self, workshop: Workshop) -> None:
        """Put both where the next step finds them; nothing before the first was kept."""
        if self.folder.is_dir():
            _copy(self.folder / "workspace", workshop.workspace)
            _copy(self.folder / "home", workshop.home)

    def remove(self) -> None:
        """Delete the copy, if there is one."""
        if self.folder.is_dir():
            remove(self.folder)


def _copy(source: Path, target: Path) -> None:
    """By `cp`, which takes pipes and trees of any depth, and never follows a link inside `source`."""
    target.mkdir(exist_ok=True)
    command = ["cp", "-a", "--", f"{source}/.", str(target)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise OSError((ended.stderr.strip().splitlines() or ["cp failed"])[-1])


def place_over(start: Path, top: Path) -> None:
    """Copy the files of a task over an agent's; where the agent put a link or a file in the way, that goes."""
    for folder, _, names in os.walk(start):
        below = Path(folder).relative_to(start)
        _open_way(top, below)
        for name in names:
            target = top / below / name
            clear(target)
            shutil.copy2(Path(folder, name), target, follow_symlinks=False)


def clear_way(top: Path, below: Path) -> Path:
    """The place of file `below` in folder `top`: its folders are there and real, and nothing is in its place."""
    _open_way(top, below.parent)
    clear(top / below)
    return top / below


def clear(target: Path) -> None:
    """Have nothing at `target`, whatever it was; a link goes, and not what it points to."""
    if target.is_symlink() or target.is_file():
        target.unlink()
    elif target.exists():
        remove(target)


def _open_way(top: Path, below: Path) -> None:
    """Have real folders from `top` down to `below`."""
    here = top
    for part in below.parts:
        here = here / part
        if here.is_symlink() or not here.is_dir():
            clear(here)
            here.mkdir()
