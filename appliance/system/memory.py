"""How much memory the processes of a container hold at most, read from its cgroup while it lives. v1 and v2."""

from __future__ import annotations

import re
from pathlib import Path

import anyio

CGROUPS = Path("/sys/fs/cgroup")
EVERY_S = 0.2
# What processes hold; the page cache, which the kernel takes back at need, is not counted.
FIELDS = re.compile(r"^(?:total_rss|anon) (\d+)", re.M)


async def peak_bytes(pid: int, peaks: list[int]) -> None:
    """Puts the largest reading so far into `peaks[0]`, five times a second until the cgroup is gone."""
    file = stat_file(pid)
    while file is not None:
        try:
            found = FIELDS.search(file.read_text())
        except OSError:
            return
        if found:
            peaks[0] = max(peaks[0], int(found[1]))
        await anyio.sleep(EVERY_S)


def stat_file(pid: int) -> Path | None:
    """The memory.stat of the cgroup that `pid` is in; None when the process is gone or has none of its own."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for root in (CGROUPS / "memory",) if "memory" in controllers.split(",") else (CGROUPS,):
            file = root / path.lstrip("/") / "memory.stat"
            if path != "/" and file.is_file() and (controllers in ("",) or root != CGROUPS):
                return file
    return None
