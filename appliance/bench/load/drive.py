"""Drives one proxy with conversations and says how long each call took and what the proxy's process used."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import median

from appliance.bench.load.model import bodies
from appliance.engine.http import HttpLine
from appliance.errors import HostError

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_WARM = 2
_SETTLE_S = 0.01
"""What the proxy does after its answer is a call's cost too."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Target:
    """What is called: a port, the path of a client's session, headers, and the processes that are measured."""

    port: int
    path: Callable[[int], str]
    headers: str = ""
    pids: tuple[int, ...] = ()


@dataclass(slots=True)
class Found:
    """What one load found. Times in seconds, memory in bytes; `failed` calls were not answered with 200."""

    latencies: list[float] = field(default_factory=list)
    failed: int = 0
    failure: str = ""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    rss_before: int = 0
    rss_after: int = 0

    @property
    def calls_per_s(self) -> float:
        """Calls answered in a second."""
        return len(self.latencies) / self.wall_s if self.wall_s else 0.0

    def percentile(self, share: float) -> float:
        """The latency that `share` of the calls did not exceed, in ms."""
        ordered = sorted(self.latencies)
        return 1e3 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


@dataclass(frozen=True, slots=True)
class Size:
    """`num_clients` conversations at once, calls `first` to `last` of each; starts are spread over `stagger_s`."""

    num_clients: int
    num_tokens: int
    first: int
    last: int
    stagger_s: float = 0.0


def load(target: Target, size: Size) -> Found:
    """Makes the calls and says how it went."""
    return asyncio.run(_load(target, size))


async def _load(target: Target, size: Size) -> Found:
    found = Found(rss_before=rss(target.pids))
    cpu, started = cpu_s(target.pids), time.perf_counter()

    async def converse(number: int) -> None:
        client = HttpLine(f"http://127.0.0.1:{target.port}", {"user-agent": "bench/1"})
        await asyncio.sleep(size.stagger_s * number / size.num_clients)
        for body in islice(bodies(number, size.num_tokens), size.first, size.last):
            asked = time.perf_counter()
            reply = await client.post(target.path(number), body, target.headers)
            if reply.status == 200:
                found.latencies.append(time.perf_counter() - asked)
            else:
                found.failed += 1
                found.failure = found.failure or f"{reply.status} {reply.body[:300]!r}"
        await client.close()

    await asyncio.gather(*(converse(number) for number in range(size.num_clients)))
    found.wall_s = time.perf_counter() - started
    found.cpu_s, found.rss_after = cpu_s(target.pids) - cpu, rss(target.pids)
    return found


def cpu_by_size(target: Target, sizes: Sequence[int], num_rounds: int) -> list[float]:
    """Median seconds of processor time of one call that goes on with a conversation, for each size in tokens.

    One call at a time, and the sizes take turns, so that what else the machine does falls on all of them alike.
    """
    return asyncio.run(_cpu_by_size(target, sizes, num_rounds))


async def _cpu_by_size(target: Target, sizes: Sequence[int], num_rounds: int) -> list[float]:
    client = HttpLine(f"http://127.0.0.1:{target.port}", {"user-agent": "bench/1"})
    conversations = [bodies(number, num_tokens) for number, num_tokens in enumerate(sizes)]
    used: list[list[float]] = [[] for _ in sizes]
    for _ in range(_WARM + num_rounds):
        for number, conversation in enumerate(conversations):
            body, before = next(conversation), _fine_cpu_s(target.pids)
            reply = await client.post(target.path(number), body, target.headers)
            if reply.status != 200:
                raise HostError(f"the proxy under load answered {reply.status}: {reply.body[:200]!r}")
            await asyncio.sleep(_SETTLE_S)
            used[number].append(_fine_cpu_s(target.pids) - before)
    await client.close()
    return [median(found[_WARM:]) for found in used]


@contextmanager
def process(arguments: Sequence[str], log: Path) -> Iterator[tuple[int, int]]:
    """(port, pid) of a process that prints its port and ends when its stdin closes."""
    with log.open("ab") as errors:
        child = subprocess.Popen(
            [sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        )
    assert child.stdin is not None and child.stdout is not None
    try:
        line = child.stdout.readline()
        if not line.strip().isdigit():
            raise HostError(f"{' '.join(arguments)} did not start", f"see {log}")
        yield int(line), child.pid
    finally:
        child.stdin.close()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        child.stdout.close()


def rss(pids: Sequence[int]) -> int:
    """Resident bytes of processes."""
    return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES for pid in pids)


def cpu_s(pids: Sequence[int]) -> float:
    """Seconds of processor time that processes have used, in steps of a hundredth."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / _TICKS_PER_S


def _fine_cpu_s(pids: Sequence[int]) -> float:
    """The same of their living threads, exactly."""
    found = (file for pid in pids for file in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return sum(int(file.read_text().split()[0]) for file in found) / 1e9
