"""How long a record keeps what: by run, raw bodies or everything. Tokens, logprobs, rewards and metrics outlive bodies.

Deletes in short transactions, so that readers and a supervisor of another run never wait long; killed in between, the
same command goes on. The file shrinks at the next `corral db vacuum`.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

from appliance.config.sections import RecordSection
from appliance.errors import StoreError
from appliance.record.lock import supervisor_of
from appliance.record.store import Store
from appliance.types import Run, RunState

Told = Callable[[int, int], None]
CHUNK = 200
"""Rollouts a transaction."""
ENDED = (RunState.DONE, RunState.FAILED, RunState.STOPPED)
OF_CALL = "DELETE FROM {} WHERE call_id IN (SELECT id FROM calls WHERE rollout_id BETWEEN ? AND ?)"
OF_ROLLOUT = "DELETE FROM {} WHERE rollout_id BETWEEN ? AND ?"


def prune(store: Store, run_id: str, what: Literal["bodies", "all"], told: Told | None = None) -> dict[str, Any]:
    """Takes the raw bodies, or everything, of one ended run out of the record; StoreError while it may go on.

    `told` hears how many spans of rollouts are done, and of how many.
    """
    run = store.run(run_id)
    holder = supervisor_of(store.path.parent) or {}
    # Without a supervisor a run that was only created, as `corral rollout` leaves one, has nobody who could end it.
    idle = run.state is RunState.CREATED and not holder
    if holder.get("run") == run.id or not (run.state in ENDED or idle):
        end = "`corral stop`" if holder else f"`corral resume {run.id}`, then `corral stop`"
        raise StoreError(f"run {run.id} is {run.state}; only what has ended is pruned", f"end it first: {end}")
    store.rows("PRAGMA foreign_keys=OFF")  # parents and children go together; checking each would read every table
    try:
        found = _bodies(store, run, told) if what == "bodies" else _all(store, run, told)
    finally:
        store.rows("PRAGMA foreign_keys=ON")
    return {"run": run.id, "pruned": what} | found


def apply_rule(store: Store, rule: RecordSection) -> list[str]:
    """Prunes what the configuration's [record] says; returns the runs it touched. 0 days: for ever."""
    now, touched = time.time(), []
    done = {row["id"]: row["pruned"] for row in store.rows("SELECT id, pruned FROM runs")}
    for run in store.runs():
        if run.state not in ENDED or run.ended_at is None:
            continue
        days = (now - run.ended_at) / 86400
        what: Literal["bodies", "all"] | None = None
        if rule.keep_runs_days and days > rule.keep_runs_days:
            what = "all"
        elif rule.keep_bodies_days and days > rule.keep_bodies_days and not done[run.id]:
            what = "bodies"
        if what:
            prune(store, run.id, what)
            touched.append(run.id)
    return touched


def vacuum(store: Store) -> dict[str, int]:
    """Rewrites the file without its holes. StoreError while a supervisor works, or without room for the copy."""
    if holder := supervisor_of(store.path.parent):
        raise StoreError(f"{store.path}: process {holder.get('pid')} works on it", "stop it first: `corral stop`")
    store.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    before = store.path.stat().st_size
    free = shutil.disk_usage(store.path.parent).free
    if free < 2 * before:
        raise StoreError(
            f"{store.path}: vacuum needs up to {2 * before // 2**20} MiB of disk for a while, {free // 2**20} are free",
            "free disk space, or prune more first: `corral db prune RUN --all`",
        )
    store.rows("VACUUM")
    store.rows("PRAGMA optimize")
    store.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    return {"bytes_before": before, "bytes_after": store.path.stat().st_size}


def _spans(store: Store, run_id: str) -> list[tuple[int, int]]:
    """Rollout ids of a run in spans that hold no other run's; each of at most CHUNK."""
    ids = [row["id"] for row in store.rows("SELECT id FROM rollouts WHERE run_id=? ORDER BY id", run_id)]
    spans: list[tuple[int, int]] = []
    for number in ids:
        if spans and spans[-1][1] == number - 1 and number - spans[-1][0] < CHUNK:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    return spans


def _bodies(store: Store, run: Run, told: Told | None) -> dict[str, int]:
    with store.write() as db:  # first: a rollout whose bodies are half gone is known to be pruned
        db.execute("UPDATE runs SET pruned='bodies', pruned_at=? WHERE id=?", (time.time(), run.id))
        db.execute("DELETE FROM frames WHERE run_id=?", (run.id,))
    return {"calls": _delete(store, run.id, [OF_CALL.format("bodies")], told)}


def _all(store: Store, run: Run, told: Told | None) -> dict[str, int]:
    with store.write() as db:
        db.execute("UPDATE runs SET pruned='all', pruned_at=? WHERE id=?", (time.time(), run.id))
        db.execute("DELETE FROM frames WHERE run_id=?", (run.id,))
    of_call, of_rollout, of_run = (_tables(store, column) for column in ("call_id", "rollout_id", "run_id"))
    of_call = [table for table in of_call if table not in of_run]
    by_call = [OF_CALL.format(table) for table in of_call]
    deleted = _delete(store, run.id, by_call + [OF_ROLLOUT.format(table) for table in of_rollout], told)
    with store.write() as db:
        for table in of_run:
            db.execute(f"DELETE FROM {table} WHERE run_id=?", (run.id,))
        db.execute("DELETE FROM runs WHERE id=?", (run.id,))
    return {"calls": deleted}


def _tables(store: Store, column: str) -> list[str]:
    """Tables with such a column; read from the schema, so that a table of a later migration is never forgotten."""
    found = store.rows(
        "SELECT m.name FROM sqlite_master m JOIN pragma_table_info(m.name) c WHERE m.type='table' AND c.name=?"
        " ORDER BY m.name",
        column,
    )
    return [row["name"] for row in found]


def _delete(store: Store, run_id: str, statements: Sequence[str], told: Told | None) -> int:
    """Runs the statements over the run's rollouts; returns how many calls lost their bodies."""
    deleted = 0
    spans = _spans(store, run_id)
    for done, span in enumerate(spans, start=1):
        with store.write() as db:
            counts = [db.execute(statement, span).rowcount for statement in statements]
        deleted += counts[0]
        if told is not None:
            told(done, len(spans))
    return deleted
