"""A Podman host on another machine: what `local_host` does here, done there by shell commands over its ssh connection.

It needs nothing there but Podman, a shell, and the usual small programs (tar, find, mount). The folders of a rollout
lie there (`FarShop`), laid out as a `Workshop`, which stays here as their draft: filled here and sent, and the final
workspace comes back to be frozen and is sent anew to the grader. The proxy's socket goes there by the same connection.
"""

from __future__ import annotations

import shlex
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import anyio
from anyio import to_thread

from appliance.errors import SandboxError
from appliance.sandbox import seccomp
from appliance.sandbox.archive import pack, unpack
from appliance.sandbox.launch import Started
from appliance.sandbox.local_host import Machine
from appliance.sandbox.service import Gone, PodmanApi, Refused, RuntimeContainer, listed_containers
from appliance.sandbox.settings import HostTraits, PodmanPlaces, machine_key
from appliance.sandbox.spec import LAUNCH_PIPE, PROXY_SOCKET, Limits
from appliance.sandbox.ssh import Ssh
from appliance.sandbox.workspace import GRADER_BYTES, GRADER_FILES, VERDICT_BYTES, VERDICT_FILES, Workshop, delete
from appliance.system.cgroup import Counters
from appliance.system.oom import OomWatch

LOOK_EVERY_S = 5.0
SAY_S = 2
HEADER_BYTES = 4096  # of a file in a tar stream, a long name included
PROBE = """
echo uid $(id -u); echo release $(uname -r); echo home "$HOME"
echo caps $(sed -n 's/^CapEff:[[:space:]]*//p' /proc/self/status)
test -e /sys/fs/cgroup/cgroup.controllers && echo v2 1; test -d /run/systemd/system && echo systemd 1
sed -n 's/^Max open files *[^ ]* *\\([^ ]*\\).*/files \\1/p; s/^Max processes *[^ ]* *\\([^ ]*\\).*/processes \\1/p' \\
    /proc/self/limits
u=$(id -u); c=/sys/fs/cgroup/user.slice/user-$u.slice/user@$u.service/cgroup.controllers
test -r $c && echo controllers $(cat $c); exit 0
"""
# One line a runtime, empty for one that is not there.
LIST = "for r in runc crun; do command -v $r >/dev/null && $r list --format json | tr -d '\\n'; echo; done; exit 0"


class FarMachine(Machine):
    """The machine at the other end of a connection; `settle` once it is open."""

    def __init__(self, ssh: Ssh) -> None:
        self._ssh = ssh
        self._base = Path("/nowhere")
        self._api: PodmanApi | None = None
        self.shops: set[str] = set()

    async def settle(self, places: PodmanPlaces, api: PodmanApi, info: Mapping[str, Any]) -> PodmanPlaces:
        """Learn what the machine can do, lay out our folder there; the places as they are there."""
        told = dict(line.split(" ", 1) for line in (await self._ssh.run(PROBE)).decode().splitlines() if " " in line)
        self._api, self.traits = api, HostTraits.told(told)
        if info["host"]["security"]["rootless"] == self.traits.is_root:
            raise SandboxError("lost", f"the Podman at {self._ssh.url} is another user's than the one who logs in")
        # A sandbox's mapped user must be able to walk to its folders; a root's other places are closed to it.
        base = Path("/run") if self.traits.is_root else Path(told["home"]) / ".local" / "share"
        self._base = base / f"corral-{machine_key(places.run.name)}"
        settings = replace(places, settings=self._base / "podman")
        for may_nest in (False, True):
            path = settings.seccomp(may_nest)
            script = f"umask 022; mkdir -p {_q(path.parent)} && chmod 711 {_q(self._base)} && cat > {_q(path)}"
            await self._ssh.run(script, seccomp.profile(may_nest).encode())
        return settings

    def shop(self, draft: Workshop) -> FarShop:
        """The rollout's folder there, of which `draft` is the one here."""
        limits = draft.disk_bytes, draft.num_files
        return FarShop(self, self._base / "sandboxes" / draft.folder.name, draft, *limits)

    async def proxy_dir(self, here: Path) -> Path:
        """The folder there in which a socket leads to the proxy that serves in `here`."""
        there = self._base / "proxy"
        owner = self.traits.agent_host_id if self.traits.is_root else None
        await self._ssh.carry(here / PROXY_SOCKET, str(there / PROXY_SOCKET), owner)
        return there

    async def run(
        self, script: str, feed: bytes | IO[bytes] = b"", into: IO[bytes] | None = None, limit: int = 1 << 20
    ) -> bytes:
        """Run shell text there."""
        return await self._ssh.run(script, feed, into, limit)

    async def clean_shops(self) -> list[str]:
        """Remove the folders of rollouts that this process did not begin, or could not remove; their names."""
        folder = self._base / "sandboxes"
        listed = await self.run(f"ls -1 {_q(folder)} 2>/dev/null; exit 0")
        old = [name for name in listed.decode().split() if name not in self.shops]
        for name in old:
            await self.run(removal(folder / name))
        return old

    async def leave(self) -> None:
        """Remove our folder there; not while a rollout's is still in it, which the next cleaning removes."""
        base = _q(self._base)
        await self.run(f"rmdir {base}/sandboxes 2>/dev/null; test -e {base}/sandboxes || rm -rf {base}; exit 0")

    # ------------------------------------------------------------------ what `Machine` does

    async def runtime_containers(self, storage: Path) -> list[RuntimeContainer]:
        """What the OCI runtimes there have under `storage`."""
        found = []
        for runtime, line in zip(("runc", "crun"), (await self.run(LIST)).decode().splitlines(), strict=False):
            found += listed_containers(runtime, line, storage)
        return found

    async def delete(self, container: RuntimeContainer) -> None:
        """Have one that Podman forgot gone."""
        await self.run(f"{container.runtime} delete --force {shlex.quote(container.id)}; exit 0")

    async def clean(self, places: PodmanPlaces, known: Collection[str]) -> None:
        """Remove control groups of containers that are not `known`."""
        if self.traits.has_systemd_cgroups or not self.traits.is_root:
            return
        name = shlex.quote(places.cgroup)
        listed = await self.run(
            f"ls -1d /sys/fs/cgroup/{name}/libpod-* /sys/fs/cgroup/*/{name}/libpod-* 2>/dev/null; exit 0"
        )
        dead = [path for path in listed.decode().split() if path.rpartition("-")[2] not in known]
        if dead:
            await self.run(f"rmdir {shlex.join(dead)} 2>/dev/null; exit 0")

    async def say(self, pipe: Path, text: bytes) -> bool:
        """Write into a pipe that a sandbox there reads; False when nobody did for a moment."""
        told = await self.run(f"timeout {SAY_S} sh -c 'cat > \"$1\" && echo said' x {_q(pipe)}; exit 0", text)
        return b"said" in told

    def pids(self, state: Mapping[str, Any]) -> tuple[int, int]:
        """None of this machine's."""
        return 0, 0

    def counters(self, started: Started) -> Counters:
        """Its CPU time as Podman tells it, where somebody asks whether it idles."""
        idle_s = started.spec.limits.idle_s
        if not idle_s or self._api is None:
            return Counters({})
        return FarCounters({"": Path()}, api=self._api, name=started.spec.name, every_s=min(LOOK_EVERY_S, idle_s / 4))

    def watch_oom(self, started: Started) -> AbstractAsyncContextManager[OomWatch]:
        """Podman's own word must do, which is right on cgroup v2."""
        return nullcontext(OomWatch(None, -1))

    async def cancel_when_full(self, folders: Sequence[Path], limits: Limits, scope: anyio.CancelScope) -> None:
        """Cancel `scope` once the folders hold too much, where they have no file system of that size."""
        if self.traits.can_mount or not folders:
            return
        names = " ".join(_q(folder) for folder in folders)
        look = f"du -skc {names} 2>/dev/null | tail -1; find {names} 2>/dev/null | wc -l; exit 0"
        while True:
            await anyio.sleep(LOOK_EVERY_S)
            with suppress(SandboxError, ValueError, IndexError):  # one look that failed; its end is watched elsewhere
                words = (await self.run(look)).split()
                if int(words[0]) << 10 > limits.disk_bytes or int(words[-1]) > limits.num_files:
                    scope.cancel()
                    return


@dataclass(slots=True)
class FarCounters(Counters):
    """CPU time by Podman's statistics, asked for now and then."""

    api: PodmanApi = field(kw_only=True)
    name: str = field(kw_only=True)
    every_s: float = field(kw_only=True)
    looked_at: float = field(default=0.0, kw_only=True)

    def look(self) -> None:
        """Ask once more; without an answer it counts as busy."""
        if time.monotonic() - self.looked_at < self.every_s:
            return
        self.looked_at = time.monotonic()
        try:
            told = self.api.request("GET", "/containers/stats", {"containers": self.name, "stream": "false"})
            self.cpu_s = max(self.cpu_s, told["Stats"][0]["CPUNano"] / 1e9)
        except (Gone, Refused, KeyError, IndexError, TypeError):
            self.cpu_s += 1.0


@dataclass(eq=False, slots=True)
class FarShop:
    """One rollout's folder on the machine; `draft` is its like here. Its folders are a `Workshop`'s, and `tests`."""

    machine: FarMachine
    folder: Path
    draft: Workshop
    disk_bytes: int
    num_files: int

    workspace = property(lambda self: self.folder / "agent" / "workspace")
    home = property(lambda self: self.folder / "agent" / "home")
    scratch = property(lambda self: self.folder / "agent" / "tmp")
    launch = property(lambda self: self.folder / "launch")
    verdict = property(lambda self: self.folder / "verdict")
    tests = property(lambda self: self.folder / "tests")

    async def make(self) -> None:
        """Create it, empty."""
        self.machine.shops.add(self.folder.name)
        await self.machine.run(
            f"set -e; umask 022; mkdir -p {_q(self.folder.parent)}; cd {_q(self.folder.parent)}; chmod 711 .\n"
            f"mkdir -m 711 {self.folder.name}; cd {self.folder.name}; mkdir -m 711 agent\n"
            f"{self._mount('agent', self.disk_bytes, self.num_files)}"
            f"cd agent; mkdir workspace home tmp; {self._own('workspace home')} chmod 1777 tmp; cd ..\n"
            f"mkdir launch; mkfifo launch/{LAUNCH_PIPE}; chmod 644 launch/{LAUNCH_PIPE}"
        )

    async def send(self) -> None:
        """Put there what the draft's workspace and HOME hold, before the agent runs."""
        await self._send([(self.draft.workspace, "workspace"), (self.draft.home, "home")], "agent", "workspace home")

    async def fetch(self, with_home: bool = False) -> list[str]:
        """Have the final workspace in the draft; the names of what a workspace may not have, left out."""
        if with_home:
            await to_thread.run_sync(_empty, self.draft.home)
            await self._fetch("agent/home", self.draft.home, self.disk_bytes, self.num_files)
        await to_thread.run_sync(_empty, self.draft.workspace)
        return await self._fetch("agent/workspace", self.draft.workspace, self.disk_bytes, self.num_files)

    async def send_to_grade(self, tests: Path) -> None:
        """The draft's workspace in the place of the agent's, the hidden tests, and an empty reward folder."""
        grown = f"size={self.disk_bytes + GRADER_BYTES},nr_inodes={self.num_files + GRADER_FILES}"
        remount = f"mount -o remount,nosuid,nodev,{grown} agent\n" if self.machine.traits.can_mount else ""
        await self.machine.run(
            f"set -e; umask 022; cd {_q(self.folder)}; rm -rf agent/workspace; {remount}mkdir verdict\n"
            f"{self._mount('verdict', VERDICT_BYTES, VERDICT_FILES)}{self._own('verdict')}"
        )
        await self._send([(self.draft.workspace, "agent/workspace")], ".", "agent/workspace")
        await self._send([(tests, "tests")], ".", "")

    async def fetch_verdict(self) -> None:
        """Have the reward folder in the draft's."""
        await self._fetch("verdict", self.draft.verdict, VERDICT_BYTES, VERDICT_FILES)

    async def remove(self) -> None:
        """Delete it all there; SandboxError `lost` where that cannot be told, and the next cleaning does it."""
        self.machine.shops.discard(self.folder.name)
        await self.machine.run(removal(self.folder))

    async def _send(self, folders: list[tuple[Path, str]], under: str, owned: str) -> None:
        with tempfile.TemporaryFile(dir=self.draft.folder.parent) as file:
            await to_thread.run_sync(pack, folders, file)
            size = file.tell()
            file.seek(0)
            script = f"set -e; cd {_q(self.folder / under)}; tar -x -p -o -f -\n{self._own(owned)}"
            await self.machine.run(script, file, limit=size)

    async def _fetch(self, name: str, into: Path, max_bytes: int, max_files: int) -> list[str]:
        opened = "" if self.machine.traits.is_root else "chmod -R u+rwX . 2>/dev/null; "
        script = f"cd {_q(self.folder / name)} && {{ {opened}tar -c -f - . ; }}"
        with tempfile.TemporaryFile(dir=self.draft.folder.parent) as file:
            await self.machine.run(script, b"", file, max_bytes + HEADER_BYTES * max_files)
            file.seek(0)
            return await to_thread.run_sync(partial(unpack, file, into, max_bytes, max_files))

    def _mount(self, name: str, size_bytes: int, num_files: int) -> str:
        if not self.machine.traits.can_mount:
            return ""
        return f"mount -t tmpfs -o nosuid,nodev,size={size_bytes},nr_inodes={num_files},mode=755 corral {name}\n"

    def _own(self, names: str) -> str:
        """Rootless, the sandbox maps the user who logs in to its own."""
        owner = self.machine.traits.agent_host_id
        return f"chown -Rh {owner}:{owner} {names}\n" if self.machine.traits.is_root and names else ""


def removal(folder: Path) -> str:
    """Shell text that deletes a rollout's folder with the file systems in it, also what its agent closed to all."""
    parts, gone = f"{_q(folder / 'agent')} {_q(folder / 'verdict')}", f"rm -rf --one-file-system {_q(folder)}"
    return (
        f"for d in {parts}; do umount -l $d 2>/dev/null; done\n"
        f"{gone} 2>/dev/null || {{ chmod -R u+rwX {_q(folder)}; {gone}; }}; exit 0"
    )


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            delete(entry)
        else:
            entry.unlink()


def _q(path: Path) -> str:
    return shlex.quote(str(path))
