"""The record's tables, as ordered migrations. Append a migration; never edit one that was released.

A record of an earlier schema is copied to `record.db.before-<migration>` before it is changed, then all migrations
that wait are one transaction: a kill in between leaves the old schema.

All tables are STRICT. Times are Unix seconds. Token ids are int32 and logprobs float32, little endian.
A node's tokens continue its parent's path *cut to* `start` tokens, so a fork in the middle of a node
needs no split: nodes are only ever added.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Any, Protocol

from zstandard import ZstdDecompressor, ZstdError

from appliance.errors import StoreError
from appliance.record.bodies import Bodies, BodyLog, Chain
from appliance.types import Purpose, Rollout, RolloutPlan, RolloutState, Run, RunState

APPLIED_TABLE = "_sqlite_migrations"
APPLIED = """
CREATE TABLE IF NOT EXISTS _sqlite_migrations(id INTEGER PRIMARY KEY, migration_set TEXT, name TEXT, applied_at TEXT);
CREATE UNIQUE INDEX IF NOT EXISTS "idx__sqlite_migrations_migration_set_name"
  ON _sqlite_migrations(migration_set, name)
"""
"""The table in which sqlite-utils keeps count; the first records were made with it."""


class Database(Protocol):
    """What a migration is given: a connection inside the transaction of all migrations."""

    def execute(self, sql: str, parameters: Any = (), /) -> Any:
        """Runs one statement."""
        ...


Migration = Callable[[Database], None]
_migrations: list[Migration] = []


def migrations() -> Callable[[Migration], Migration]:
    """Appends a function to the migrations, in the order of this file; its name is its name in the record."""

    def append(migration: Migration) -> Migration:
        _migrations.append(migration)
        return migration

    return append


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
    _script(db, FIRST_SCHEMA)


CHAINED_BODIES = """
CREATE TABLE bodies(
  call_id INTEGER PRIMARY KEY REFERENCES calls(id), base INTEGER REFERENCES calls(id), request_bytes INTEGER NOT NULL,
  messages_bytes INTEGER NOT NULL, data BLOB NOT NULL) STRICT;
CREATE TABLE frames(
  run_id TEXT NOT NULL REFERENCES runs(id), harness TEXT NOT NULL, wire TEXT NOT NULL,
  call_id INTEGER NOT NULL REFERENCES calls(id), PRIMARY KEY(run_id, harness, wire)) STRICT
"""


@migrations()
def chained_bodies(db: Database) -> None:
    """Raw bodies in a table of their own, each compressed against `base`; the first of a run's harness is its frame."""
    _script(db, CHAINED_BODIES)
    found = db.execute(
        "SELECT c.id, c.attempt, c.rollout_id, r.run_id, r.harness, c.wire, c.request, c.response, c.messages"
        " FROM calls c JOIN rollouts r ON r.id = c.rollout_id ORDER BY c.rollout_id, c.attempt, c.sequence"
    )
    log, unzip, chain = BodyLog(), ZstdDecompressor(), Chain(0, 0, "", "")
    for call_id, attempt, rollout_id, run_id, harness, wire, *bodies in found:
        try:
            request, response, messages = (unzip.decompress(body) for body in bodies)
        except ZstdError:  # kept as it is; whoever reads it is told which call is damaged
            db.execute("INSERT INTO bodies VALUES(?, NULL, 0, 0, ?)", (call_id, b"\0" + b"".join(bodies)))
            continue
        if (chain.rollout_id, chain.attempt) != (rollout_id, attempt):
            chain = Chain(rollout_id, attempt, run_id, harness)
        log.add(db, chain, Bodies(call_id, wire, request, response, messages))
    _script(db, "".join(f"ALTER TABLE calls DROP COLUMN {name};" for name in ("request", "response", "messages")))


COUNTED_ROLLOUTS = """
ALTER TABLE rollouts ADD COLUMN num_calls INTEGER NOT NULL DEFAULT 0;
ALTER TABLE rollouts ADD COLUMN num_sampled_tokens INTEGER NOT NULL DEFAULT 0;
UPDATE rollouts SET num_calls = c.n, num_sampled_tokens = c.s FROM (
  SELECT rollout_id, attempt, count(*) n, sum(num_sampled_tokens) s FROM calls GROUP BY 1, 2) c
  WHERE c.rollout_id = rollouts.id AND c.attempt = rollouts.attempt;
CREATE INDEX rollouts_by_run ON rollouts(run_id, id);
CREATE INDEX rollouts_by_end ON rollouts(run_id, ended_at);
CREATE INDEX rollouts_by_group ON rollouts(run_id, purpose, step, harness, task, state, reward);
"""


@migrations()
def counted_rollouts(db: Database) -> None:
    """Each rollout knows its calls and tokens, so that a list of rollouts never reads calls."""
    _script(db, COUNTED_ROLLOUTS)


@migrations()
def retention(db: Database) -> None:
    """What was taken out of a run: `` (nothing), `bodies` or `all`, and when."""
    _script(
        db, "ALTER TABLE runs ADD COLUMN pruned TEXT NOT NULL DEFAULT '';ALTER TABLE runs ADD COLUMN pruned_at REAL"
    )


def _script(db: Database, text: str) -> None:
    for statement in text.split(";"):
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


@migrations()
def verdicts(db: Database) -> None:
    """What the trainer found of each call: its branch, and why it is left out."""
    db.execute(
        "CREATE TABLE verdicts(rollout_id INTEGER NOT NULL REFERENCES rollouts(id), sequence INTEGER NOT NULL,"
        " branch TEXT NOT NULL, parent INTEGER, reentered INTEGER, kept INTEGER NOT NULL, left_out TEXT NOT NULL,"
        " PRIMARY KEY(rollout_id, sequence)) STRICT"
    )


@migrations()
def templates(db: Database) -> None:
    """Which tokenizer and chat template made a call's prompt, so that a parity gap can be traced to one of them."""
    db.execute("ALTER TABLE calls ADD COLUMN template TEXT NOT NULL DEFAULT ''")


@migrations()
def engine_loads(db: Database) -> None:
    """The newest numbers of each of a run's engines: its queue, its cache."""
    db.execute(
        "CREATE TABLE engines(run_id TEXT NOT NULL REFERENCES runs(id), number INTEGER NOT NULL, at REAL NOT NULL,"
        " load TEXT NOT NULL, PRIMARY KEY(run_id, number)) STRICT"
    )


@migrations()
def run_packs(db: Database) -> None:
    """What the tasks of each run were: one digest of all of them, and one of each task as JSON.

    Of the runs that are there already only the wording of their tasks is known: their digest stays empty.
    """
    db.execute(
        "CREATE TABLE run_packs(run_id TEXT PRIMARY KEY REFERENCES runs(id), pack TEXT NOT NULL, digest TEXT NOT NULL,"
        " tasks TEXT NOT NULL) STRICT"
    )
    for run_id, config in db.execute("SELECT id, config FROM runs").fetchall():
        pack = PurePath(json.loads(config).get("tasks", {}).get("pack", "pocket")).name
        rows = db.execute("SELECT name, family, split, instruction FROM tasks WHERE pack=?", (pack,)).fetchall()
        if rows:
            tasks = json.dumps({row[0]: wording_digest(*row[1:]) for row in rows})
            db.execute("INSERT INTO run_packs VALUES(?, ?, '', ?)", (run_id, pack, tasks))


def wording_digest(family: str, split: str, instruction: str) -> str:
    """What the record of an earlier Corral can tell of a task, as a digest."""
    return hashlib.sha256("\n".join((family, split, instruction)).encode("utf-8", "surrogatepass")).hexdigest()


def waiting(path: Path, connection: Database) -> list[str]:
    """The migrations that this record still needs; StoreError when it is a foreign or a newer one."""
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")}
    if tables and APPLIED_TABLE not in tables:
        raise StoreError(f"{path}: an SQLite file that is not Corral's record", "set CORRAL_HOME to another folder")
    rows = connection.execute("SELECT name FROM _sqlite_migrations WHERE migration_set='corral'") if tables else ()
    applied = [row[0] for row in rows]
    ours = [migration.__name__ for migration in _migrations]
    if newer := [name for name in applied if name not in ours]:
        raise StoreError(
            f"{path}: written by a newer Corral ({newer[0]})", "update Corral, or set CORRAL_HOME to another folder"
        )
    return [name for name in ours if name not in applied]


def migrate(path: Path, connection: Database) -> None:
    """Brings the record at `path` to this schema, after a copy of what is there."""
    names = waiting(path, connection)
    if not names:
        return
    if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        _back_up(path, connection, names[0])
    connection.execute("BEGIN IMMEDIATE")
    try:
        _script(connection, APPLIED)
        names = waiting(path, connection)  # a second process that waited for the first finds nothing left to do
        for migration in _migrations:
            if migration.__name__ in names:
                migration(connection)
                row = ("corral", migration.__name__, datetime.now(UTC).isoformat(sep=" "))
                connection.execute("INSERT INTO _sqlite_migrations(migration_set, name, applied_at) VALUES(?,?,?)", row)
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _back_up(path: Path, connection: Database, migration: str) -> None:
    """A whole copy beside the record, once; it appears under its name only when it is complete."""
    copy = path.with_name(f"{path.name}.before-{migration}")
    if copy.exists():
        return
    with tempfile.TemporaryDirectory(prefix=f"{path.name}.", dir=path.parent) as folder:
        temporary = Path(folder) / "copy.db"
        connection.execute("VACUUM INTO ?", (str(temporary),))
        temporary.chmod(0o600)
        temporary.replace(copy)


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
    """A rollout from a row of `rollouts`."""
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
        num_calls=row["num_calls"],
        num_sampled_tokens=row["num_sampled_tokens"],
        last_event_at=row["last_event_at"],
    )
