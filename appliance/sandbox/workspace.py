"""The host folder of one rollout: what its sandboxes may write, and nothing that outlives it.

    agent/{workspace,home,tmp}    on a file system of their own, of a size and a number of files that cannot be passed
    verdict                       likewise, made when the grading begins
    launch/go                     the pipe that a waiting sandbox reads its command from

The file system is a tmpfs: it needs no disk to be formatted, its pages count as its sandbox's memory, and it goes
by one unmount however many files it holds. A user who cannot mount gets plain folders, which are looked at
instead (`diskuse`).
"""

from __future__ import annotations

import ctypes
import os
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

from appliance.sandbox.settings import HostTraits
from appliance.sandbox.spec import LAUNCH_PIPE

MS_NOSUID, MS_NODEV, MS_REMOUNT = 2, 4, 32
MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8
VERDICT_BYTES, VERDICT_FILES = 16 << 20, 256
# What the grader may add to a workspace that its agent has filled.
GRADER_BYTES, GRADER_FILES = 64 << 20, 10_000
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Workshop:
    """One rollout's folder. `disk_bytes` and `num_files` bound workspace and HOME together."""

    folder: Path
    traits: HostTraits
    disk_bytes: int
    num_files: int

    @property
    def workspace(self) -> Path:
        """Shown to agent and grader as /workspace."""
        return self.folder / "agent" / "workspace"

    @property
    def home(self) -> Path:
        """Shown to the agent as /home/agent."""
        return self.folder / "agent" / "home"

    @property
    def scratch(self) -> Path:
        """Shown to the agent as /tmp."""
        return self.folder / "agent" / "tmp"

    @property
    def launch(self) -> Path:
        """The folder of the launch pipe."""
        return self.folder / "launch"

    @property
    def verdict(self) -> Path:
        """Shown to the grader as /logs/verifier."""
        return self.folder / "verdict"

    def make(self) -> None:
        """Create it, empty. OSError when the host cannot hold it."""
        self.folder.mkdir(parents=True, mode=0o711)
        agent = self.folder / "agent"
        agent.mkdir(mode=0o711)
        if self.traits.can_mount:
            _mount_tmpfs(agent, self.disk_bytes, self.num_files, 0)
        for part in (self.workspace, self.home):
            part.mkdir(mode=0o755)
            self._own(part)
        self.scratch.mkdir()
        self.scratch.chmod(0o1777)
        self.launch.mkdir(mode=0o755)
        os.mkfifo(self.launch / LAUNCH_PIPE, 0o644)
        (self.launch / LAUNCH_PIPE).chmod(0o644)

    def make_verdict(self) -> None:
        """Create the grader's empty reward folder, and give the grader room beside what the agent left."""
        self.verdict.mkdir(mode=0o755)
        if self.traits.can_mount:
            _mount_tmpfs(self.verdict, VERDICT_BYTES, VERDICT_FILES, 0)
            grown = f"size={self.disk_bytes + GRADER_BYTES},nr_inodes={self.num_files + GRADER_FILES}"
            _mount(self.folder / "agent", MS_REMOUNT | MS_NOSUID | MS_NODEV, grown)
        self._own(self.verdict)

    def hand_over(self) -> None:
        """Give all that the host has put there to the agent's user, before the agent runs."""
        for top in (self.workspace, self.home):
            top.chmod(
                top.stat().st_mode | stat.S_IRWXU
            )  # an agent's next step cannot begin where the last one closed it
        todo = [self.workspace, self.home] if self.traits.is_root else []
        while todo:  # in a loop: what an agent nested in an earlier step must not exhaust our own stack
            folder = todo.pop()
            self._own(folder)
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(Path(entry.path))
                    else:
                        self._own(Path(entry.path))

    def is_full(self) -> bool:
        """Whether the agent's file system has no room left; False where it has none of its own."""
        if not self.traits.can_mount:
            return False
        state = os.statvfs(self.folder / "agent")
        return state.f_bavail == 0 or state.f_favail == 0

    def remove(self) -> None:
        """Delete it all."""
        remove(self.folder)

    def _own(self, path: Path) -> None:
        """Rootless, the sandbox maps our own uid to its user."""
        if self.traits.is_root:
            os.chown(path, self.traits.agent_host_id, self.traits.agent_host_id, follow_symlinks=False)


def remove(folder: Path) -> None:
    """Delete a rollout's folder, also one that a kill -9 left with its file systems mounted."""
    for part in ("agent", "verdict"):
        _libc.umount2(os.fsencode(folder / part), MNT_DETACH | UMOUNT_NOFOLLOW)  # not mounted is as good
    delete(folder)


def delete(folder: Path) -> None:
    """Delete a folder, whatever an agent made of it.

    By `rm`, which takes trees of any depth; what an agent nests must not exhaust our own stack.
    """
    command = ["rm", "-rf", "--one-file-system", "--", str(folder)]
    subprocess.run(command, stderr=subprocess.DEVNULL, check=False)
    if folder.is_dir():  # rootless, folders that the agent closed are closed to us too
        subprocess.run(["chmod", "-R", "u+rwX", "--", str(folder)], stderr=subprocess.DEVNULL, check=False)
        subprocess.run(command, check=False)


def _mount_tmpfs(folder: Path, size_bytes: int, num_files: int, owner: int) -> None:
    _mount(folder, MS_NOSUID | MS_NODEV, f"size={size_bytes},nr_inodes={num_files},mode=755,uid={owner},gid={owner}")


def _mount(folder: Path, flags: int, options: str) -> None:
    if _libc.mount(b"corral", os.fsencode(folder), b"tmpfs", flags, options.encode()):
        number = ctypes.get_errno()
        raise OSError(number, f"{os.strerror(number)}: mounting a file system of its own", str(folder))
