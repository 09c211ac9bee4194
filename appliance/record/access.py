"""The record of a home, opened for one purpose; what the looking commands need, without the weight of a supervisor."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from appliance.config.runconfig import CHECKOUT
from appliance.errors import StoreError
from appliance.record.lock import supervisor_of
from appliance.record.store import Store
from appliance.types import Run


def record_path(home: Path) -> Path:
    """Where the record of this home lies."""
    return home / "record.db"


@contextmanager
def reading(home: Path, damaged: bool = False) -> Iterator[Store]:
    """The record, opened for reading; with `damaged`, even one that is cut short."""
    store = Store.open(record_path(home), readonly=True, damaged=damaged)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def writing(home: Path) -> Iterator[Store]:
    """The record, opened for short writes."""
    store = Store.open(record_path(home))
    try:
        yield store
    finally:
        store.close()


@contextmanager
def changing(home: Path) -> Iterator[Store]:
    """The record that is there, opened for upkeep; StoreError when there is none to look after."""
    if not record_path(home).exists():
        raise StoreError(f"{record_path(home)}: there is no record yet", "start a run, for example `corral demo`")
    with writing(home) as store:
        yield store


def newest(store: Store) -> Run:
    """The run that a supervisor works on, or else the newest; StoreError when there is none."""
    runs = store.runs()
    holder = supervisor_of(store.path.parent) or {}
    for run in runs:
        if run.id == holder.get("run"):
            return run
    if not runs:
        raise StoreError(f"{store.path}: no run yet", "start one, for example `corral demo`")
    return runs[0]


@functools.cache
def code_version() -> str:
    """The checkout's commit, with `+` when it was changed since; `unknown` outside git."""
    try:
        told = subprocess.run(
            ["git", "-C", str(CHECKOUT), "describe", "--always", "--dirty=+"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return told.stdout.strip()
