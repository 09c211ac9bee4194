"""One supervisor a record: a lock that the kernel drops when its holder dies, with a note of who that is."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from appliance.errors import HostError


@contextmanager
def lock(home: Path, run_id: str) -> Iterator[None]:
    """Holds the record for one supervisor; HostError names the one that has it."""
    home.mkdir(parents=True, exist_ok=True)
    path = home / "supervisor.lock"
    with path.open("a+") as file:
        try:
            _take_lock(file.fileno())
        except OSError as error:
            holder = supervisor_of(home) or {}
            raise HostError(
                f"{home}: another supervisor (process {holder.get('pid')}) works on run {holder.get('run')}",
                "wait for it, stop it with `corral stop`, or set CORRAL_HOME to another folder",
            ) from error
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid(), "run": run_id, "started_at": time.time()}))
        file.flush()
        yield


def _take_lock(descriptor: int) -> None:
    """Tries for a moment: a `corral status` that looks at the lock holds it for an instant."""
    for tries_left in range(5, -1, -1):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError:
            if not tries_left:
                raise
            time.sleep(0.1)


def supervisor_of(home: Path) -> dict[str, object] | None:
    """{pid, run, started_at} of the supervisor that holds this record, or None."""
    path = home / "supervisor.lock"
    if not path.exists():
        return None
    with path.open("r") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
        except OSError:
            found: dict[str, object] = json.loads(file.read() or "{}")
            return found
