"""The record's one file: opened, checked to be ours and of this schema, and its errors told in our words."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from appliance.errors import RecordLocked, StoreError
from appliance.record.lock import supervisor_of
from appliance.record.schema import migrate, waiting
from appliance.system.mounts import network_filesystem

BUSY_TIMEOUT_S = 30.0


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns SQLite's errors into ours, naming the file and what to do."""
    try:
        yield
    except sqlite3.OperationalError as error:
        text = str(error)
        if "full" in text:
            raise StoreError(
                f"{path}: no space left for the record", "free disk space, then `corral resume`"
            ) from error
        if "locked" in text or "busy" in text:
            raise RecordLocked(
                f"{path}: another process has held the record for too long",
                "end the process that writes to it (`corral status` names the supervisor)",
            ) from error
        if "readonly" in text or "unable to open" in text:
            raise StoreError(
                f"{path}: {text}", "check that the folder exists and is writable, or set CORRAL_HOME"
            ) from error
        raise StoreError(f"{path}: {text}", "run `corral doctor`") from error
    except sqlite3.DatabaseError as error:
        if "malformed" in str(error):
            remedy = "`corral db check` names what is damaged; go on from a copy, or set CORRAL_HOME to another folder"
            raise StoreError(f"{path}: the record is damaged ({error})", remedy) from error
        raise StoreError(f"{path}: not a usable record ({error})", "move the file away or set CORRAL_HOME") from error


def open_record(
    path: Path, readonly: bool, damaged: bool = False, patience_s: float = BUSY_TIMEOUT_S
) -> sqlite3.Connection:
    """Opens the record, creating or migrating it unless `readonly`; one that is cut short only when `damaged`.

    Raises StoreError when the file is missing (readonly), foreign, newer than this code, or not writable.
    """
    if readonly and not path.exists():
        raise StoreError(f"{path}: there is no record yet", "start a run, for example `corral demo`")
    with explained(path):
        if not readonly:
            _make_folder(path.parent)
            _refuse_network(path)
        uri = f"{path.resolve().as_uri()}?mode={'ro' if readonly else 'rwc'}"
        db = sqlite3.connect(uri, uri=True, timeout=patience_s, isolation_level=None, check_same_thread=False)
        try:
            if damaged:  # else SQLite reads nothing of a file that is shorter than its header says
                db.execute("PRAGMA writable_schema=ON")
            _prepare(path, db, readonly)
        except BaseException:
            db.close()
            raise
    return db


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{folder}: {error.strerror}", "make it writable, or set CORRAL_HOME to another") from error


def _refuse_network(path: Path) -> None:
    """WAL needs memory that all its processes share, which no network file system gives."""
    if kind := network_filesystem(path.parent):
        raise StoreError(f"{path}: on a network file system ({kind})", "set CORRAL_HOME to a folder on a local disk")


def _prepare(path: Path, db: sqlite3.Connection, readonly: bool) -> None:
    """Sets the connection up and brings the record to this schema; a reader, and a live old supervisor, forbid that."""
    db.row_factory = sqlite3.Row
    db.execute("PRAGMA trusted_schema=OFF")  # a record may come from anywhere
    names = waiting(path, db)
    if names and readonly:
        raise StoreError(f"{path}: written by an older Corral", "run `corral db migrate`; it keeps a copy of it")
    if not readonly:
        os.chmod(path, 0o600)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        holder = (supervisor_of(path.parent) or {}).get("pid", os.getpid())
        is_new = db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is None
        if names and not is_new and holder != os.getpid():
            raise StoreError(
                f"{path}: process {holder} still runs on it with an older Corral",
                f"end it first (`kill {holder}`), then `corral resume`",
            )
        migrate(path, db)
    db.execute("PRAGMA foreign_keys=ON")
