"""`corral doctor --report`: one JSON file for a bug report. Versions, checks, runs, last events and log ends.

Invariant: no call's body, no file of a task, no key and no token; everything passes `redact`. A failure's message may
quote the last words of a harness or grader, which is why the command asks to look through it.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from appliance.errors import ExportError, StoreError
from appliance.record.access import code_version, reading, record_path
from appliance.record.store import Store
from appliance.system.redact import redacted, redacted_value

NUM_RUNS, NUM_EVENTS, LOG_BYTES = 5, 200, 8000
LOGS = ("supervisor.log", "engine.log", "trainer.log")


def write(home: Path, checks: Sequence[dict[str, Any]], target: Path) -> Path:
    """Writes the report, readable by its owner alone; ExportError when it cannot be written or is there already."""
    found = {
        "made_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "corral": code_version(),
        "system": {"kernel": platform.release(), "python": platform.python_version(), "machine": platform.machine()},
        "checks": list(checks),
        "packages": dict(sorted((d.name, d.version) for d in distributions())),
        "record": _record(home),
    }
    text = json.dumps(redacted_value("", found), indent=1, ensure_ascii=False) + "\n"
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ExportError(f"{target}: {error.strerror}", "name a new file in a folder you can write to") from error
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    return target


def _record(home: Path) -> dict[str, Any]:
    if not record_path(home).exists():
        return {"runs": []}
    try:
        with reading(home) as store:
            return {"runs": [_run(home, store, run.id) for run in store.runs()[:NUM_RUNS]]}
    except StoreError as error:
        return {"error": str(error)}


def _run(home: Path, store: Store, run_id: str) -> dict[str, Any]:
    run = store.run(run_id)
    events = store.rows(
        "SELECT at, level, part, message FROM events WHERE run_id=? ORDER BY id DESC LIMIT ?", run_id, NUM_EVENTS
    )
    failures = store.rows(
        "SELECT failure, count(*) n FROM rollouts WHERE run_id=? AND failure != '' GROUP BY failure", run_id
    )
    return {
        "run": run.id,
        "state": str(run.state),
        "phase": run.phase,
        "message": run.message,
        "config": run.config,
        "failures": {row["failure"]: row["n"] for row in failures},
        "events": [dict(row) for row in reversed(events)],
        "logs": {name: _end_of(home / "runs" / run_id / name) for name in LOGS},
    }


def _end_of(log: Path) -> list[str]:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_BYTES))
            return [redacted(line) for line in file.read().decode(errors="replace").splitlines()]
    except OSError:
        return []
