"""Whether a supervisor is alive, found without touching its lock.

Taking even a shared lock for a moment could make a supervisor that starts at that moment believe another one has the
record. So this asks the kernel for the process that the lock names, and for its age: a number used again by a younger
process does not count.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

CLOCK_SLACK_S = 2.0


def attended_run(home: Path) -> str | None:
    """Id of the run that a live supervisor works on, `` when none is alive, None when this machine cannot tell."""
    try:
        found = json.loads((home / "supervisor.lock").read_text() or "{}")
        pid, run, since = int(found["pid"]), str(found["run"]), float(found["started_at"])
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError):
        return None
    try:
        born = _born_at(pid)
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, IndexError):
        return None
    return run if born <= since + CLOCK_SLACK_S else ""


def _born_at(pid: int) -> float:
    """Unix seconds at which the process began (proc(5), field 22 of stat, after the name in brackets)."""
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    boot = next(float(line.split()[1]) for line in Path("/proc/stat").read_text().splitlines() if "btime" in line)
    return boot + ticks / os.sysconf("SC_CLK_TCK")
