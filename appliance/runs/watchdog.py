"""What a supervisor looks at while a run goes on, besides its children: room on the disk, and the clock.

A disk that fills up would fail rollouts one by one; instead no new ones are taken while there is still room for
those under way to end and be recorded. A clock that jumps makes times on the record wrong, and is told.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import anyio

from appliance.config.runconfig import podman_home
from appliance.config.sections import RecordSection
from appliance.errors import HostError

LOOK_EVERY_S = 2.0
JUMP_S = 5.0
"""A clock set by so much, forwards or backwards, is told; less is how time services slew it."""

Clock = Callable[[], float]


async def watch(
    rule: RecordSection, home: Path, drain: Callable[[str], None], log: Callable[[str, str, str], None]
) -> None:
    """Looks at both until cancelled: `drain` is told once of a full disk, `log` of each jump of the clock."""

    def jumped(what: str) -> None:
        log("warning", "supervisor", what)

    async with anyio.create_task_group() as group:
        group.start_soon(watch_disk, disks(home), rule.min_free_gib, drain)
        group.start_soon(watch_clock, jumped)
        group.start_soon(tell_alive, os.environ)


def disks(home: Path) -> list[Path]:
    """Where a run writes: the record's folder, and the containers' storage, which may lie elsewhere."""
    return list(dict.fromkeys((home, podman_home(home))))


def shortage(folders: Sequence[Path], min_free_gib: float) -> str:
    """Which disk has less than that left, in words; '' while all have room, or with 0 as the limit."""
    for folder in folders:
        place = next(p for p in (folder, *folder.parents) if p.exists())
        free = shutil.disk_usage(place).free / 2**30
        if free < min_free_gib:
            return f"{place} has only {free:.2f} GiB free (record.min_free_gib = {min_free_gib:g})"
    return ""


def check_disk(rule: RecordSection, home: Path) -> None:
    """HostError when a run should not even begin."""
    if short := shortage(disks(home), rule.min_free_gib):
        raise HostError(short, "free disk space (`corral db prune`, `corral images prune`), or lower that limit")


async def watch_disk(folders: Sequence[Path], min_free_gib: float, on_short: Callable[[str], None]) -> None:
    """Returns after telling once that a disk is short."""
    while not (short := shortage(folders, min_free_gib)):
        await anyio.sleep(LOOK_EVERY_S)
    on_short(f"{short}; free some space")


async def watch_clock(
    on_jump: Callable[[str], None], clock: Clock = time.time, steady: Clock = time.monotonic, every_s: float = 2.0
) -> None:
    """Tells each time the wall clock moved against the steady one."""
    offset = clock() - steady()
    while True:
        await anyio.sleep(every_s)
        jump = clock() - steady() - offset
        if abs(jump) >= JUMP_S:
            way = "forwards" if jump > 0 else "backwards"
            on_jump(f"the clock jumped {abs(jump):.0f} s {way}; times on the record differ by so much from here on")
            offset += jump


async def tell_alive(environment: Mapping[str, str]) -> None:
    """Tells a systemd that started us that we are ready, then that the event loop turns; returns without one."""
    address = environment.get("NOTIFY_SOCKET", "")
    if not address:
        return
    _notify(address, "READY=1")
    every_s = int(environment.get("WATCHDOG_USEC") or 0) / 1e6 / 3
    while every_s:
        _notify(address, "WATCHDOG=1")
        await anyio.sleep(every_s)


def _notify(address: str, message: str) -> None:
    """One datagram; systemd's absence is no reason to fail."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out, suppress(OSError):
        out.setblocking(False)
        out.sendto(message.encode(), "\0" + address[1:] if address.startswith("@") else address)
