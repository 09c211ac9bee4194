"""Sandboxes made before they are needed, on one or several Podman hosts.

A rollout takes a `Slot`: its own folder (`workspace`) and a sandbox that runs already and waits for its command.
How many wait follows demand (as many as are taken while one is made, and one more) and what memory is free; none waits
for a harness that nobody asked for in the last minute. Without a waiting one a slot is made on the spot, so a pool is
only ever a matter of time saved. Slots go to the host with the most memory left; a host that cannot be
reached is left out for a while and takes only its own rollouts with it.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

from appliance.errors import HostError, SandboxError
from appliance.sandbox.launch import IsBusy, Outcome, Started
from appliance.sandbox.podman import Limits, Mount, Podman, SandboxSpec
from appliance.sandbox.settings import HostTraits
from appliance.sandbox.spec import FOLDER_LABEL
from appliance.sandbox.ssh_host import FarShop
from appliance.sandbox.workspace import Workshop

DEMAND_S = 60.0
WAITS_S = 900.0
LOOK_EVERY_S = 5.0
MAKE_AT_ONCE = 2
SLOT_BYTES = 8 << 20  # of a waiting one on the host, its monitor included: 2 MB measured, the rest is margin
KEPT_FREE_BYTES = 1 << 30
LOST_S = 60.0


@dataclass(frozen=True, slots=True)
class Kind:
    """What must be known of a sandbox before its command is: slots of one kind can stand for each other."""

    image: str
    limits: Limits
    proxy_dir: Path
    may_nest: bool = False


@dataclass(eq=False, slots=True)
class Host:
    """One Podman and what is placed on it. `lost_at`: when it last failed to answer."""

    podman: Podman
    name: str = "local"
    placed_bytes: int = 0
    lost_at: float = -math.inf

    async def free_bytes(self) -> int:
        """Memory that is neither used nor promised to a sandbox; of an ill host none."""
        if time.monotonic() - self.lost_at < LOST_S:
            return -1
        try:
            free = await self.podman.free_bytes()
        except SandboxError:
            self.lost_at = time.monotonic()
            return -1
        return free - self.placed_bytes


@dataclass(eq=False, slots=True)
class Slot:
    """One rollout's place: a folder, a waiting sandbox, and the host that both are on.

    `workshop` is always on this machine; of a sandbox on another (`far`) it is the draft that is sent and fetched.
    """

    host: Host
    workshop: Workshop
    waiting: Started
    made_at: float
    is_warm: bool = False
    far: FarShop | None = None

    @property
    def folders(self) -> Workshop | FarShop:
        """The rollout's folders as the sandbox's machine knows them."""
        return self.far or self.workshop

    async def send(self) -> None:
        """What was laid out in the workshop is where the sandbox finds it."""
        if self.far is not None:
            await self.far.send()

    async def fetch(self, with_home: bool = False) -> list[str]:
        """Have the final workspace in the workshop; what of it was left out. Its processes are gone by then."""
        return await self.far.fetch(with_home) if self.far is not None else []

    async def to_grade(self, tests: Path) -> Path:
        """Have workspace, tests and an empty reward folder where a grader finds them; the place of the tests."""
        await to_thread.run_sync(self.workshop.make_verdict)
        if self.far is None:
            return tests
        await self.far.send_to_grade(tests)
        return self.far.folder / "tests"

    async def verdict(self) -> Path:
        """The reward folder, as the grader left it, on this machine."""
        if self.far is not None:
            await self.far.fetch_verdict()
        return self.workshop.verdict

    async def go(self, argv: tuple[str, ...], env: Mapping[str, str], limits: Limits) -> Started:
        """Start the command in the sandbox that waits for one."""
        return await self.host.podman.go(self.waiting, argv, env, limits)

    async def watch(self, started: Started, is_busy: IsBusy) -> Outcome:
        """Wait for the end of the command."""
        return await self.host.podman.watch(started, is_busy)

    async def end(self) -> None:
        """Have the sandbox gone with all its processes; the folder stays."""
        await self.host.podman.remove(self.waiting.spec.name)

    async def remove(self) -> None:
        """Have both gone, and what was promised to it given back."""
        with anyio.CancelScope(shield=True):
            try:
                await self.end()
                if self.far is not None:
                    await self.far.remove()
            finally:
                self.host.placed_bytes -= self.waiting.spec.limits.memory_bytes
                await to_thread.run_sync(self.workshop.remove)


@dataclass(eq=False)
class Pool:
    """`async with Pool(hosts, folder, labels) as pool`, then `async with pool.slot(kind, name) as slot`."""

    hosts: Sequence[Host]
    folder: Path
    labels: Mapping[str, str]
    at_most: int = 8
    _ready: defaultdict[Kind, deque[Slot]] = field(default_factory=lambda: defaultdict(deque))
    _taken: defaultdict[Kind, deque[float]] = field(default_factory=lambda: defaultdict(lambda: deque(maxlen=256)))
    _making: defaultdict[Kind, int] = field(default_factory=lambda: defaultdict(int))
    _make_s: float = 1.0
    _failed_at: float = -math.inf
    _wake: anyio.Event = field(default_factory=anyio.Event)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _tasks: TaskGroup | None = None
    _placing: anyio.Lock = field(default_factory=anyio.Lock)

    async def __aenter__(self) -> Pool:
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self._keep)
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._tasks is not None
        self._tasks.cancel_scope.cancel()
        with suppress(SandboxError):
            await self._tasks.__aexit__(None, None, None)
        with anyio.CancelScope(shield=True):
            await self.empty()

    @asynccontextmanager
    async def slot(self, kind: Kind, name: str) -> AsyncIterator[Slot]:
        """A slot of this kind, removed afterwards; `name` is the rollout's, for people who look at sandboxes."""
        self._taken[kind].append(time.monotonic())
        slot = self._take(kind) or await self._make(kind)
        self._wake.set()
        try:
            (slot.workshop.folder / "rollout").write_text(name)
            yield slot
        except SandboxError as error:
            self._note_lost(slot.host, error)
            raise
        finally:
            await _discard(slot)  # no failure of the rollout, which may have its grade already

    async def fill(self, kind: Kind, number: int) -> None:
        """Have so many wait, as when a run is about to begin."""
        async with anyio.create_task_group() as tasks:
            for _ in range(number - len(self._ready[kind])):
                tasks.start_soon(self._add, kind)

    def num_waiting(self, kind: Kind) -> int:
        """How many of this kind wait now."""
        return len(self._ready[kind])

    # ------------------------------------------------------------------ making

    async def _make(self, kind: Kind) -> Slot:
        """One slot on the host with the most memory left; SandboxError when none can make it."""
        async with self._placing:  # so that what one is promised counts for the next
            host = await self._choose()
            host.placed_bytes += kind.limits.memory_bytes
        name = f"{os.getpid()}-{next(self._numbers)}"
        started_at = time.monotonic()
        slot = self._draft(host, kind, name)
        try:
            await to_thread.run_sync(slot.workshop.make)
            spec = slot.waiting.spec
            if host.podman.far is not None and slot.far is not None:
                spec = replace(spec, proxy_dir=await host.podman.far.proxy_dir(kind.proxy_dir))
                await slot.far.make()
            slot.waiting = await host.podman.start(spec)
        except BaseException as error:
            if isinstance(error, SandboxError):
                self._note_lost(host, error)
            with suppress(SandboxError):
                await slot.remove()
            raise
        self._make_s = 0.8 * self._make_s + 0.2 * (time.monotonic() - started_at)
        return slot

    def _draft(self, host: Host, kind: Kind, name: str) -> Slot:
        """A slot of which nothing is made yet."""
        far = host.podman.far
        traits = host.podman.traits if far is None else HostTraits.read()
        workshop = Workshop(self.folder / name, traits, kind.limits.disk_bytes, kind.limits.num_files)
        shop = None if far is None else far.shop(workshop)
        folders = shop or workshop
        spec = SandboxSpec(
            name=f"corral-{self.labels.get('corral.owner', '')}-{name}",
            image=kind.image,
            argv=(),
            mounts=(
                Mount(folders.workspace, "/workspace"),
                Mount(folders.home, "/home/agent"),
                Mount(folders.scratch, "/tmp"),
            ),
            labels={**self.labels, FOLDER_LABEL: str(workshop.folder)},
            limits=kind.limits,
            proxy_dir=kind.proxy_dir,
            launch_dir=folders.launch,
            waits_s=WAITS_S,
            may_nest=kind.may_nest,
        )
        return Slot(host, workshop, Started(spec, 0.0, 0), time.monotonic(), far=shop)

    async def _choose(self) -> Host:
        if len(self.hosts) == 1:
            return self.hosts[0]
        free = [(await host.free_bytes(), -number) for number, host in enumerate(self.hosts)]
        return self.hosts[-max(free)[1]]

    def _note_lost(self, host: Host, error: SandboxError) -> None:
        if error.cause == "lost" and len(self.hosts) > 1:
            host.lost_at = time.monotonic()

    # ------------------------------------------------------------------ waiting

    def _take(self, kind: Kind) -> Slot | None:
        """The oldest that waits on a host that is well; one that waited too long or lost its monitor is not taken."""
        ready = self._ready[kind]
        for _ in range(len(ready)):
            slot = ready.popleft()
            is_lost = time.monotonic() - slot.host.lost_at < LOST_S
            is_fresh = time.monotonic() - slot.made_at < WAITS_S / 2
            if not is_lost and is_fresh and slot.waiting.is_monitored():
                slot.is_warm = True
                return slot
            assert self._tasks is not None
            self._tasks.start_soon(_discard, slot)
        return None

    async def _keep(self) -> None:
        """Make what demand wants, a few at once."""
        while True:
            with anyio.move_on_after(LOOK_EVERY_S):
                await self._wake.wait()
            self._wake = anyio.Event()
            room = (_available_bytes() - KEPT_FREE_BYTES) // SLOT_BYTES
            for kind, times in list(self._taken.items()):
                wanted = num_wanted(times, time.monotonic(), self._make_s, min(self.at_most, room))
                while len(self._ready[kind]) > max(wanted, 0) and not wanted:
                    await _discard(self._ready[kind].popleft())
                missing = wanted - len(self._ready[kind]) - self._making[kind]
                if time.monotonic() - self._failed_at < LOOK_EVERY_S:
                    continue
                for _ in range(min(missing, MAKE_AT_ONCE - sum(self._making.values()))):
                    assert self._tasks is not None
                    self._making[kind] += 1
                    self._tasks.start_soon(self._make_one_more, kind)

    async def _make_one_more(self, kind: Kind) -> None:
        try:
            await self._add(kind)
        except (SandboxError, HostError, OSError):
            self._failed_at = time.monotonic()  # the next rollout meets it too, and says so
        finally:
            self._making[kind] -= 1
            self._wake.set()

    async def _add(self, kind: Kind) -> None:
        self._ready[kind].append(await self._make(kind))

    async def empty(self) -> None:
        """Have none wait."""
        async with anyio.create_task_group() as tasks:
            for ready in self._ready.values():
                while ready:
                    tasks.start_soon(_discard, ready.popleft())


def num_wanted(taken: Sequence[float], now: float, make_s: float, at_most: int) -> int:
    """How many should wait: those taken while two are made, at the last minute's rate, and one more.

    None where nothing was taken for a minute, never more than `at_most`.
    """
    recent = [at for at in taken if now - at < DEMAND_S]
    if not recent or at_most <= 0:
        return 0
    rate = len(recent) / max(now - recent[0], 1.0)
    return min(at_most, 1 + math.ceil(rate * 2 * make_s))


async def _discard(slot: Slot) -> None:
    with suppress(SandboxError):  # a host that is gone: its next reconciliation finds it
        await slot.remove()


def _available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0
