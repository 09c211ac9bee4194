"""The record's tables, as ordered migrations. Append a migration; never edit one that was released.

All tables are STRICT. Times are Unix seconds. Token ids are int32 and logprobs float32, little endian.
A node's tokens continue its parent's path *cut to* `start` tokens, so a fork in the middle of a node
needs no split: nodes are only ever added.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sqlite_utils import Database, Migrations

from appliance.errors import StoreError
from appliance.types import Purpose, Rollout, RolloutPlan, RolloutState, Run, RunState

migrations = Migrations("corral")

FIRST_SCHEMA = """
CREATE TABLE runs(
  id TEXT PRIMARY KEY, name TEXT NOT NULL, config TEXT NOT NULL, seed INTEGER NOT NULL,
  code_version TEXT NOT NULL, state TEXT NOT NULL, phase TEXT NOT NULL DEFAULT '', message TEXT NOT NULL DEFAULT '',
  created_at REAL NOT NULL, started_at REAL, ended_at REAL) STRICT;
CREATE TABLE phases(
  id INTEGER PRIMARY KEY, run_id TEXT NOT NULL REFERENCES runs(id), phase TEXT NOT NULL, started_at REAL NOT NULL,
  ended_at REAL) STRICT;
CREATE TABLE tasks(
  pack TEXT NOT NULL, name TEXT NOT NULL, family TEXT NOT NULL, split TEXT NOT NULL, instruction TEXT NOT NULL,
  PRIMARY KEY(pack, name)) STRICT;
CREATE TABLE harnesses(
  name TEXT NOT NULL, version TEXT NOT NULL, wire TEXT NOT NULL, image TEXT NOT NULL, seen_at REAL NOT NULL,
  PRIMARY KEY(name, image)) STRICT;
CREATE TABLE rollouts(
  id INTEGER PRIMARY KEY, run_id TEXT NOT NULL REFERENCES runs(id), purpose TEXT NOT NULL, step INTEGER NOT NULL,
  harness TEXT NOT NULL, task TEXT NOT NULL, idx INTEGER NOT NULL, grp TEXT NOT NULL, state TEXT NOT NULL,
  attempt INTEGER NOT NULL DEFAULT 0, policy_version INTEGER NOT NULL DEFAULT 0, reward REAL,
  reward_parts TEXT NOT NULL DEFAULT '{}', failure TEXT NOT NULL DEFAULT '', failure_detail TEXT NOT NULL DEFAULT '',
  output TEXT NOT NULL DEFAULT '', timings TEXT NOT NULL DEFAULT '{}', created_at REAL NOT NULL, started_at REAL,
  ended_at REAL, last_event_at REAL, UNIQUE(run_id, purpose, step, harness, task, idx)) STRICT;
CREATE INDEX rollouts_by_state ON rollouts(run_id, state);
CREATE TABLE nodes(
  id INTEGER PRIMARY KEY, rollout_id INTEGER NOT NULL REFERENCES rollouts(id), attempt INTEGER NOT NULL,
  parent INTEGER REFERENCES nodes(id), start INTEGER NOT NULL, sampled INTEGER NOT NULL, ids BLOB NOT NULL,
  logprobs BLOB) STRICT;
CREATE INDEX nodes_by_rollout ON nodes(rollout_id, attempt);
CREATE TABLE calls(
  id INTEGER PRIMARY KEY, rollout_id INTEGER NOT NULL REFERENCES rollouts(id), attempt INTEGER NOT NULL,
  sequence INTEGER NOT NULL, wire TEXT NOT NULL, leaf INTEGER REFERENCES nodes(id), num_prompt_tokens INTEGER NOT NULL,
  num_sampled_tokens INTEGER NOT NULL, request BLOB NOT NULL, response BLOB NOT NULL, messages BLOB NOT NULL,
  stop_reason TEXT NOT NULL, policy_version INTEGER, started_at REAL NOT NULL, ended_at REAL NOT NULL,
  delivered INTEGER NOT NULL, lineage TEXT NOT NULL DEFAULT '', UNIQUE(rollout_id, attempt, sequence)) STRICT;
CREATE TABLE steps(
  run_id TEXT NOT NULL REFERENCES runs(id), step INTEGER NOT NULL, state TEXT NOT NULL,
  metrics TEXT NOT NULL DEFAULT '{}', created_at REAL NOT NULL, ended_at REAL, PRIMARY KEY(run_id, step)) STRICT;
CREATE TABLE versions(
  run_id TEXT NOT NULL REFERENCES runs(id), version INTEGER NOT NULL, parent INTEGER, path TEXT NOT NULL,
  sha256 TEXT NOT NULL, created_at REAL NOT NULL, PRIMARY KEY(run_id, version)) STRICT;
CREATE TABLE events(
  id INTEGER PRIMARY KEY, run_id TEXT, rollout_id INTEGER, at REAL NOT NULL, level TEXT NOT NULL, part TEXT NOT NULL,
  message TEXT NOT NULL) STRICT;
CREATE INDEX events_by_run ON events(run_id, id);
CREATE TABLE commands(
  id INTEGER PRIMARY KEY, run_id TEXT NOT NULL, kind TEXT NOT NULL, argument TEXT NOT NULL DEFAULT '',
  created_at REAL NOT NULL, taken_at REAL) STRICT;
"""


@migrations()
def first_schema(db: Database) -> None:
    """Runs, tasks, harnesses, rollouts, nodes, calls, steps, versions, events, commands."""
    for statement in FIRST_SCHEMA.split(";"):
        if statement.strip():
            db.execute(statement)


@migrations()
def loss_inputs(db: Database) -> None:
    """What each step was trained on, as one digest a rollout, for `corral replay`."""
    db.execute(
        "CREATE TABLE loss_inputs(run_id TEXT NOT NULL REFERENCES runs(id), step INTEGER NOT NULL,"
        " rollout_id INTEGER NOT NULL REFERENCES rollouts(id), digest TEXT NOT NULL,"
        " PRIMARY KEY(run_id, step, rollout_id)) STRICT"
    )


def migrate(path: Path, connection: Any, readonly: bool) -> None:
    """Brings the record at `path` to this schema unless `readonly`; StoreError for a foreign or newer one."""
    db = Database(connection)
    tables = set(db.table_names())
    if tables and migrations.migrations_table not in tables:
        raise StoreError(f"{path}: an SQLite file that is not Corral's record", "set CORRAL_HOME to another folder")
    applied = {m.name for m in migrations.applied(db)} if tables else set()
    ours = {m.name for m in migrations.pending(Database(memory=True))}
    if applied - ours:
        raise StoreError(f"{path}: written by a newer Corral", "update Corral, or set CORRAL_HOME to another folder")
    if not readonly:
        migrations.apply(db)


def run_from_row(row: Any) -> Run:
    """A run from a row of `runs`."""
    return Run(
        id=row["id"],
        name=row["name"],
        config=json.loads(row["config"]),
        seed=row["seed"],
        state=RunState(row["state"]),
        phase=row["phase"],
        message=row["message"],
        created_at=row["created_at"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
    )


def rollout_from_row(row: Any) -> Rollout:
    """A rollout from a row of `rollouts` joined with the counts of its calls."""
    plan = RolloutPlan(row["run_id"], Purpose(row["purpose"]), row["step"], row["harness"], row["task"], row["idx"])
    return Rollout(
        id=row["id"],
        plan=plan,
        state=RolloutState(row["state"]),
        attempt=row["attempt"],
        policy_version=row["policy_version"],
        reward=row["reward"],
        reward_parts=json.loads(row["reward_parts"]),
        failure=row["failure"],
        failure_detail=row["failure_detail"],
        created_at=row["created_at"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        num_calls=row["num_calls"] or 0,
        num_sampled_tokens=row["num_sampled_tokens"] or 0,
        last_event_at=row["last_event_at"],
    )
