"""One launch of a sandbox: how it ended, whether it idles, how its command is given, what Podman's refusals mean."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import anyio
from anyio import to_thread

from appliance.errors import SandboxError
from appliance.sandbox.spec import SandboxSpec
from appliance.system.cgroup import Counters

IsBusy: TypeAlias = Callable[[], bool]
LOOK_EVERY_S = 1.0
IDLE_CPU_S = 0.02  # a second with less CPU than this is an idle one: a client that polls a timer uses some


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a launch ended. `out_of_memory`: the kernel killed at least one of its processes for memory.

    `exit_code` is None exactly when we ended it: `timed_out` says why, or `is_idle` where it did nothing any more.
    `limits_hit`: the limits that the kernel held it to (`memory`, `pids`). `output` is the end of stdout and stderr
    together.
    """

    exit_code: int | None
    timed_out: bool
    out_of_memory: bool
    output: str
    seconds: float
    is_idle: bool = False
    limits_hit: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Started:
    """A sandbox that runs: what it was made from, when, its first process on this host and Podman's monitor of it
    (0: unknown).
    """

    spec: SandboxSpec
    at: float
    pid: int
    monitor: int = 0

    def is_monitored(self) -> bool:
        """Whether its monitor lives: without it Podman never learns how the sandbox ended."""
        if not self.monitor:
            return True
        try:
            return Path(f"/proc/{self.monitor}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False


def not_started(spec: SandboxSpec, said: str) -> SandboxError:
    """What Podman said, under the name of what is wrong."""
    words = said.lower()
    if "image not known" in words or "no such image" in words:
        return SandboxError("no_image", f"sandbox {spec.name}: {said}; build it: corral images build")
    if "executable file" in words or "no such file or directory" in words:
        program = "/bin/sh" if spec.launch_dir or spec.proxy_dir else spec.argv[0]
        return SandboxError("no_start", f"sandbox {spec.name}: image {spec.image} lacks {program}: {said}")
    if "no space left" in words:
        return SandboxError("no_space", f"sandbox {spec.name}: {said}; free disk space: corral images prune")
    return SandboxError("no_start", f"sandbox {spec.name}: {said}")


def overflowed(spec: SandboxSpec) -> SandboxError:
    """Its folders hold too much."""
    limits = spec.limits
    message = f"sandbox {spec.name}: its folders hold more than {limits.disk_bytes} bytes or {limits.num_files} files"
    return SandboxError("disk_full", message)


async def idles(counters: Counters, idle_s: float, is_busy: IsBusy) -> bool:
    """Look once a second; True once it has done nothing for `idle_s` seconds, which 0 never comes to."""
    quiet_since, cpu_s = time.monotonic(), 0.0
    while True:
        await to_thread.run_sync(counters.look)
        if counters.cpu_s - cpu_s > IDLE_CPU_S or is_busy() or not counters.folders:
            quiet_since = time.monotonic()
        elif idle_s and time.monotonic() - quiet_since > idle_s:
            return True
        cpu_s = counters.cpu_s
        await anyio.sleep(LOOK_EVERY_S)


def say(pipe: Path, text: bytes) -> bool:
    """Write into a pipe that somebody reads; False when nobody does (yet)."""
    try:
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    os.set_blocking(descriptor, True)
    try:
        with os.fdopen(descriptor, "wb", buffering=0) as writer:
            view = memoryview(text)
            while view:
                view = view[writer.write(view) :]
    except BrokenPipeError:
        return False
    return True
