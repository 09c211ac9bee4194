"""A folder of wheels for one lock: fetched or built by pip, each checked whole, and a lock with their hashes.

Invariant: a wheel appears under its name only when it is whole, so a wheelhouse that was interrupted is simply gone on
with. `wheels.lock` is written last and names exactly the wheels that the lock asks for.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from appliance.errors import HostError

BATCH = 12
"""Packages a call of pip: an interruption loses at most so many."""
LOCK_NAME = "wheels.lock"
OnLine = Callable[[str], None]


def pins(lock: Path) -> list[str]:
    """The `name==version` lines of a lock."""
    lines = (line.split("#")[0].strip() for line in lock.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line]


def recorded_hashes(lock: Path) -> dict[str, str]:
    """File name → sha256, as it is kept beside the lock; empty where there is no such list."""
    path = lock.with_suffix(".sha256")
    if not path.exists():
        return {}
    lines = (line.split() for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    return {name: sha256 for sha256, name in lines}


def normalised(name: str) -> str:
    """A package's name as wheels' file names write it."""
    return re.sub(r"[-_.]+", "_", name.strip()).lower()


def wheel_of(pin: str, folder: Path) -> Path | None:
    """The whole wheel in `folder` that satisfies `name==version`; None when there is none."""
    name, _, version = pin.partition(";")[0].partition("==")
    for path in sorted(folder.glob("*.whl")):
        parts = path.name.split("-")
        if normalised(parts[0]) == normalised(name) and parts[1] == version.strip():
            return path
    return None


def is_whole(wheel: Path) -> bool:
    """Whether its archive can be read to the end of its table; a download that was cut short cannot."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            return bool(archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


def fill(lock: Path, folder: Path, on_line: OnLine) -> None:
    """Brings every package of `lock` into `folder`; HostError with pip's last words. May be called again."""
    folder.mkdir(parents=True, exist_ok=True)
    for wheel in folder.glob("*.whl"):
        if not is_whole(wheel):
            wheel.unlink()
    wanted = pins(lock)
    missing = [pin for pin in wanted if wheel_of(pin, folder) is None]
    started = time.monotonic()
    for first in range(0, len(missing), BATCH):
        batch = missing[first : first + BATCH]
        took = time.monotonic() - started
        left = f", about {took / first * (len(missing) - first):.0f} s left" if first else ""
        on_line(f"wheels: {len(wanted) - len(missing) + first} of {len(wanted)}, fetching {batch[0]} …{left}")
        _fetch(batch, folder)
    _write_lock(wanted, folder, recorded_hashes(lock))
    on_line(f"wheels: {len(wanted)} of {len(wanted)}")


def _fetch(batch: Sequence[str], folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", scratch, *batch]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            last = "\n".join(done.stderr.strip().splitlines()[-4:])
            remedy = "check that pip's index can be reached; the command goes on from where it was"
            if "no space" in last.lower():
                remedy = "free disk space, then run it again; it goes on from where it was"
            raise HostError(f"packages could not be fetched: {last}", remedy)
        for wheel in Path(scratch).glob("*.whl"):
            wheel.chmod(0o644)
            wheel.rename(folder / wheel.name)


def _write_lock(wanted: Sequence[str], folder: Path, recorded: Mapping[str, str]) -> None:
    """The lock with hashes; HostError for a wheel that differs from the one of that name which is on record."""
    lines = ["# Every package with the sha256 of its wheel beside this file; pip install --require-hashes reads it."]
    kept = set()
    for pin in wanted:
        wheel = wheel_of(pin, folder)
        if wheel is None:
            raise HostError(f"{pin}: pip brought no wheel of that version", "see the lock; run the command again")
        kept.add(wheel)
        sha256 = sha256_of(wheel)
        if recorded.get(wheel.name, sha256) != sha256:
            wheel.unlink()
            raise HostError(
                f"{wheel.name}: its sha256 is {sha256}, on record is {recorded[wheel.name]}",
                "it was removed; do not use that index before you know why (a mirror that builds its own?)",
            )
        lines.append(f"{pin} --hash=sha256:{sha256}")
    for stray in set(folder.glob("*.whl")) - kept:  # of an earlier lock
        stray.unlink()
    draft = folder / f".{LOCK_NAME}"
    draft.write_text("\n".join(lines) + "\n", encoding="utf-8")
    draft.replace(folder / LOCK_NAME)


def sha256_of(path: Path) -> str:
    """sha256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def installed_bytes(lock: Path) -> int:
    """What the lock's packages take installed here: a bound from above of what their wheels will."""
    total = 0
    for pin in pins(lock):
        try:
            total += sum(file.size or 0 for file in files(pin.partition("==")[0]) or ())
        except PackageNotFoundError:
            continue
    return total
