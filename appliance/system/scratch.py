"""What killed processes leave outside the record: scratch folders of children, logs that grew, drafts of files.

Invariant: nothing is removed that a living process may still use; a scratch folder says in `pid` whose it is.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from appliance.system.files import new_file

DAY_S = 86_400.0
SCRATCH = {"corral-engine-*": 3600.0, "corral-trainer-*": 3600.0, "corral-probe-*": DAY_S}
SCRATCH |= {"corral-build-*": DAY_S, "corral-base-*": DAY_S, "corral-host-*": DAY_S}
"""Age in seconds from which a folder without a living owner is nobody's: a child may not have noted itself yet."""
LOG_BYTES = 16 << 20
LOG_KEPT_BYTES = 4 << 20


def stale_scratch(folder: Path | None = None, now: float | None = None) -> list[Path]:
    """Scratch folders of ours under `folder` (the system's own by default) that nothing alive uses."""
    base = folder or Path(tempfile.gettempdir())
    found = []
    for path, age_s in sorted((p, age_s) for pattern, age_s in SCRATCH.items() for p in base.glob(pattern)):
        try:
            status = path.lstat()
        except OSError:
            continue
        is_ours = status.st_uid == os.geteuid() and path.is_dir() and not path.is_symlink()
        if is_ours and not _is_used(path) and (now or time.time()) - status.st_mtime > age_s:
            found.append(path)
    return found


def _is_used(folder: Path) -> bool:
    try:
        return Path(f"/proc/{int((folder / 'pid').read_text())}").exists()
    except (OSError, ValueError):
        return False


def remove(paths: Iterable[Path]) -> list[str]:
    """Removes them; those that went."""
    gone = []
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)
        if path.is_file() or path.is_symlink():
            path.unlink()
        if not path.exists():
            gone.append(str(path))
    return gone


def cut_log(path: Path) -> bool:
    """Keeps the end of a log that has grown too large; to be called before its writer starts."""
    try:
        size = path.stat().st_size
        if size <= LOG_BYTES:
            return False
        with path.open("rb") as log:
            log.seek(size - LOG_KEPT_BYTES)
            log.readline()
            kept = log.read()
        with new_file(path) as draft:
            draft.write_bytes(b"(earlier lines were cut)\n" + kept)
    except OSError:
        return False  # a log is never worth a run
    return True


def remove_logs(runs: Path, keep_days: float, alive: str, now: float | None = None) -> list[Path]:
    """Removes logs of runs that are untouched for longer than that; not those of the run `alive`, none with 0 days."""
    if not keep_days:
        return []
    oldest = (now or time.time()) - keep_days * DAY_S
    old = [p for p in sorted(runs.glob("*/*.log")) if p.parent.name != alive and p.stat().st_mtime < oldest]
    for path in old:
        path.unlink(missing_ok=True)
    return old
