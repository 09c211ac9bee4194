"""What one step of a task hands to the next: the agent's workspace and HOME as they were before the step was graded.

The grader may write into the workspace it is given, so the next step begins from a copy made before. Nothing here
follows a link that the agent left: what the host lays over the agent's files would be written wherever it points.
What cannot be handed on because of what the agent left (endless folders, a full disk) is the rollout's failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from appliance.errors import HarnessError, SandboxError
from appliance.sandbox.workspace import Workshop, delete, remove


@dataclass(frozen=True, slots=True)
class Carried:
    """A folder with a copy of `workspace` and `home`; empty until something was kept."""

    folder: Path

    def keep(self, workshop: Workshop) -> None:
        """Copy both, whatever is in them; its agent's processes must be gone.

        OSError where the host's disk is full, HarnessError `bad_workspace` for what nests too deep.
        """
        self.remove()
        self.folder.mkdir(mode=0o700)
        if not workshop.traits.is_root:  # what the agent closed is closed to us as well
            closed = ["chmod", "-R", "u+rwX", "--", str(workshop.workspace), str(workshop.home)]
            subprocess.run(closed, capture_output=True, check=False)
        _copy(workshop.workspace, workshop.home, self.folder)

    def lay(self, workshop: Workshop) -> None:
        """Put both where the next step finds them; nothing before the first was kept."""
        if self.folder.is_dir():
            _copy(self.folder / "workspace", self.folder / "home", workshop.workspace.parent)

    def remove(self) -> None:
        """Delete the copy, if there is one."""
        if self.folder.is_dir():
            delete(self.folder)


def _copy(workspace: Path, home: Path, into: Path) -> None:
    """By one `cp`, which takes pipes, keeps files that have names in both, and follows no link inside them."""
    command = ["cp", "-a", "--", str(workspace), str(home), str(into)]
    ended = subprocess.run(command, capture_output=True, check=False, env={**os.environ, "LC_ALL": "C"})
    if ended.returncode:
        said = ended.stderr.decode(errors="replace").strip()
        if "File name too long" in said:
            raise HarnessError("bad_workspace", "the workspace or HOME the harness left nests folders too deep")
        raise OSError((said.splitlines() or ["cp failed"])[-1][-400:])


def carried_in(sandboxes: Path, rollout_id: int, attempt: int) -> Carried:
    """The copy of one attempt of this process, beside the folders of its sandboxes."""
    return Carried(sandboxes / f"carried-{os.getpid()}-{rollout_id}-{attempt}")


def remove_left(folder: Path) -> None:
    """Delete the folder of a sandbox whose maker was killed, and what that process carried between steps."""
    remove(folder)
    for left in folder.parent.glob(
        f"carried-{folder.name.partition('-')[0]}-*"
    ):  # slots too begin with the maker's pid
        Carried(left).remove()


@contextmanager
def laying_out(workshop: Workshop) -> Iterator[None]:
    """What does not fit in here beside what the agent left is the rollout's failure, and not the host's."""
    try:
        yield
    except OSError as error:
        if workshop.is_full():
            what = "what earlier steps left and this one brings do not fit together (rollout.disk_mb, rollout.files)"
            raise SandboxError("disk_full", what) from error
        raise


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
        delete(target)


def _open_way(top: Path, below: Path) -> None:
    """Have real folders from `top` down to `below`."""
    here = top
    for part in below.parts:
        here = here / part
        if here.is_symlink() or not here.is_dir():
            clear(here)
            here.mkdir()
