"""The record: one SQLite file (WAL, STRICT) that every process shares; kill any of them and nothing is lost.

Each process holds one writing connection and writes in short immediate transactions; readers never wait
for it. `sqlite3` is imported here and nowhere else. Tokens are stored once a node: a call adds only what
its prompt does not share with an earlier call of the same rollout (see schema.py).
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import zstandard
from sqlite_utils import Database

from appliance.errors import StoreError
from appliance.schema import migrations
from appliance.types import (
    RUN_MOVES,
    Call,
    Logprobs,
    Purpose,
    Reward,
    Rollout,
    RolloutPlan,
    RolloutState,
    RunState,
    Sample,
    StopReason,
    TokenIds,
)

BUSY_TIMEOUT_S = 30.0
FINISHED = (RolloutState.GRADED, RolloutState.FAILED)


@dataclass(frozen=True, slots=True)
class CallDraft:
    """A call about to be committed. `sample` is None for a teacher's call: text only, no ids (never trained by RL)."""

    sequence: int
    wire: str
    request_bytes: bytes
    response_bytes: bytes
    messages_json: bytes
    sample: Sample | None
    stop_reason: str
    started_at: float
    ended_at: float
    delivered: bool = True
    lineage: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """A run as read back. `active_s` sums the wall time it was really running, over all resumes."""

    id: str
    name: str
    config: dict[str, object]
    seed: int
    state: RunState
    phase: str
    message: str
    created_at: float
    started_at: float | None
    ended_at: float | None
    active_s: float


@dataclass(slots=True)
class _Paths:
    """Token paths of one rollout attempt that are already stored: (leaf node, ids from the root)."""

    attempt: int
    paths: list[tuple[int, TokenIds]] = field(default_factory=list)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turns SQLite's errors into ours, naming the file and what to do."""
    try:
        yield
    except sqlite3.OperationalError as error:
        text = str(error)
        if "full" in text:
            raise StoreError(f"{path}: no space left for the record", "free disk space, then `corral resume`") from error
        if "locked" in text or "busy" in text:
            raise StoreError(f"{path}: another process has held the record for over {BUSY_TIMEOUT_S:.0f} s",
                             "end the process that writes to it (`corral status` names the supervisor)") from error
        if "readonly" in text or "unable to open" in text:
            raise StoreError(f"{path}: {text}", "check that the folder exists and is writable, or set CORRAL_HOME") from error
        raise StoreError(f"{path}: {text}", "run `corral doctor`") from error
    except sqlite3.DatabaseError as error:
        raise StoreError(f"{path}: not a usable record ({error})", "move the file away or set CORRAL_HOME") from error


class Store:
    """One process's connection to the record. Open with `Store.open`; close when done."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._db = connection
        self._lock = threading.RLock()
        self._known: dict[int, _Paths] = {}
        self._zip = zstandard.ZstdCompressor(level=3)
        self._unzip = zstandard.ZstdDecompressor()

    # ------------------------------------------------------------------ opening

    @classmethod
    def open(cls, path: Path, readonly: bool = False) -> Store:
        """Opens the record, creating or migrating it unless `readonly`.

        Raises StoreError when the file is missing (readonly), foreign, newer than this code, or not writable.
        """
        if readonly and not path.exists():
            raise StoreError(f"{path}: there is no record yet", "start a run, for example `corral demo`")
        with _explained(path):
            if not readonly:
                path.parent.mkdir(parents=True, exist_ok=True)
            uri = f"{path.resolve().as_uri()}?mode={'ro' if readonly else 'rwc'}"
            db = sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
            db.row_factory = sqlite3.Row
            if not readonly:
                os.chmod(path, 0o600)
                db.execute("PRAGMA journal_mode=WAL")
                db.execute("PRAGMA synchronous=NORMAL")
            db.execute("PRAGMA foreign_keys=ON")
            cls._migrate(path, db, readonly)
        return cls(path, db)

    @staticmethod
    def _migrate(path: Path, db: sqlite3.Connection, readonly: bool) -> None:
        tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type='table'")}
        if tables and "_sqlite_migrations" not in tables:
            raise StoreError(f"{path}: an SQLite file that is not Corral's record", "set CORRAL_HOME to another folder")
        wrapped = Database(db)
        applied = {m.name for m in migrations.applied(wrapped)} if tables else set()
        known = applied | {m.name for m in migrations.pending(wrapped)} if tables else applied
        ours = {m.name for m in migrations.pending(Database(memory=True))}
        if applied - ours or known - ours:
            raise StoreError(f"{path}: written by a newer Corral", "update Corral, or set CORRAL_HOME to another folder")
        if not readonly:
            migrations.apply(wrapped)

    def close(self) -> None:
        """Closes the connection; safe to call twice."""
        self._db.close()

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        with self._lock, _explained(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def rows(self, sql: str, *arguments: object) -> list[sqlite3.Row]:
        """Reads with a prepared statement; for the views. The SQL must not write."""
        with self._lock, _explained(self.path):
            return self._db.execute(sql, arguments).fetchall()

    # ------------------------------------------------------------------ runs

    def create_run(self, run_id: str, name: str, config: dict[str, object], seed: int, code_version: str) -> None:
        """Adds a run in state `created`."""
        with self._write() as db:
            db.execute(
                "INSERT INTO runs(id, name, config, seed, code_version, state, created_at) VALUES(?,?,?,?,?,?,?)",
                (run_id, name, json.dumps(config), seed, code_version, RunState.CREATED, time.time()),
            )

    def runs(self) -> list[Run]:
        """All runs, newest first."""
        return [_run(row) for row in self.rows("SELECT * FROM runs ORDER BY created_at DESC")]

    def run(self, run_id: str) -> Run:
        """The run whose id is, or uniquely starts with, `run_id`; StoreError otherwise."""
        found = self.rows("SELECT * FROM runs WHERE id = ? OR id LIKE ? || '%'", run_id, run_id)
        exact = [row for row in found if row["id"] == run_id] or found
        if len(exact) != 1:
            known = ", ".join(run.id for run in self.runs()[:5]) or "none"
            raise StoreError(f"no single run {run_id!r} in {self.path}", f"known runs: {known}")
        return _run(exact[0])

    def move_run(self, run_id: str, state: RunState, message: str = "") -> None:
        """Moves a run along RUN_MOVES; StoreError for an illegal move."""
        now = time.time()
        with self._write() as db:
            old = RunState(db.execute("SELECT state FROM runs WHERE id=?", (run_id,)).fetchone()[0])
            if state is not old and state not in RUN_MOVES[old]:
                raise StoreError(f"run {run_id} cannot go from {old} to {state}")
            ended = now if state in (RunState.STOPPED, RunState.DONE, RunState.FAILED) else None
            db.execute(
                "UPDATE runs SET state=?, message=?, ended_at=?, started_at=coalesce(started_at, ?) WHERE id=?",
                (state, message, ended, now if state is RunState.RUNNING else None, run_id),
            )

    def set_phase(self, run_id: str, phase: str) -> None:
        """Says what a run is doing now; shown by status and the TUI."""
        with self._write() as db:
            db.execute("UPDATE runs SET phase=? WHERE id=?", (phase, run_id))

    def add_active(self, run_id: str, seconds: float) -> None:
        """Adds to the wall time the run was really running."""
        with self._write() as db:
            db.execute("UPDATE runs SET active_s=active_s+? WHERE id=?", (seconds, run_id))

    # ------------------------------------------------------------------ rollouts

    def plan(self, plans: Iterable[RolloutPlan]) -> list[Rollout]:
        """Adds rollouts that are not there yet (their key is unique) and returns all of them, in order."""
        wanted = list(plans)
        now = time.time()
        with self._write() as db:
            db.executemany(
                "INSERT OR IGNORE INTO rollouts(run_id, purpose, step, harness, task, idx, grp, state, created_at)"
                " VALUES(?,?,?,?,?,?,?,?,?)",
                [(p.run_id, p.purpose, p.step, p.harness, p.task, p.index, p.group, RolloutState.PLANNED, now)
                 for p in wanted],
            )
        by_plan = {r.plan: r for run_id in {p.run_id for p in wanted} for r in self.rollouts(run_id)}
        return [by_plan[p] for p in wanted]

    def rollouts(self, run_id: str, purpose: Purpose | None = None, step: int | None = None) -> list[Rollout]:
        """Rollouts of a run in order of their ids, optionally of one purpose and step."""
        return [
            _rollout(row)
            for row in self.rows(
                "SELECT r.*, c.n AS num_calls, c.s AS num_sampled_tokens FROM rollouts r LEFT JOIN"
                " (SELECT rollout_id, attempt, count(*) n, sum(num_sampled_tokens) s FROM calls GROUP BY 1, 2) c"
                " ON c.rollout_id = r.id AND c.attempt = r.attempt"
                " WHERE run_id=? AND (?2 IS NULL OR purpose=?2) AND (?3 IS NULL OR step=?3) ORDER BY r.id",
                run_id, purpose, step,
            )
        ]

    def begin(self, rollout_id: int, policy_version: int) -> int:
        """Starts a new attempt of a rollout and returns its number; what an earlier one recorded stays, apart."""
        with self._write() as db:
            now = time.time()
            db.execute(
                "UPDATE rollouts SET state=?, attempt=attempt+1, policy_version=?, failure='', failure_detail='',"
                " started_at=?, last_event_at=?, ended_at=NULL WHERE id=?",
                (RolloutState.STARTING, policy_version, now, now, rollout_id),
            )
            attempt: int = db.execute("SELECT attempt FROM rollouts WHERE id=?", (rollout_id,)).fetchone()[0]
        self._known[rollout_id] = _Paths(attempt)
        return attempt

    def move_rollout(self, rollout_id: int, state: RolloutState) -> None:
        """Says which phase an unfinished rollout is in."""
        with self._write() as db:
            db.execute("UPDATE rollouts SET state=?, last_event_at=? WHERE id=?", (state, time.time(), rollout_id))

    def grade(self, rollout_id: int, reward: Reward, output: str, timings: dict[str, float]) -> None:
        """Records the reward, once: a graded rollout is never graded again (I8)."""
        with self._write() as db:
            changed = db.execute(
                "UPDATE rollouts SET state=?, reward=?, reward_parts=?, output=?, timings=?, ended_at=?, last_event_at=?"
                " WHERE id=? AND state NOT IN (?,?)",
                (RolloutState.GRADED, reward.value, json.dumps(reward.parts), output, json.dumps(timings),
                 time.time(), time.time(), rollout_id, *FINISHED),
            ).rowcount
        if changed != 1:
            raise StoreError(f"rollout {rollout_id} was finished already")
        self._known.pop(rollout_id, None)

    def fail(self, rollout_id: int, label: str, detail: str, output: str = "") -> None:
        """Marks a rollout failed, with the part and cause; its reward stays None (I5)."""
        with self._write() as db:
            db.execute(
                "UPDATE rollouts SET state=?, failure=?, failure_detail=?, output=?, ended_at=?, last_event_at=?"
                " WHERE id=? AND state NOT IN (?,?)",
                (RolloutState.FAILED, label, detail[:4000], output, time.time(), time.time(), rollout_id, *FINISHED),
            )
        self._known.pop(rollout_id, None)

    # ------------------------------------------------------------------ calls

    def add_call(self, rollout_id: int, draft: CallDraft) -> int:
        """Commits one call of the rollout's current attempt, whole, and returns its id (I1, I3)."""
        with self._lock:
            known = self._paths(rollout_id)
            with self._write() as db:
                leaf, new_path = (None, None)
                if draft.sample is not None:
                    leaf, new_path = self._add_nodes(db, rollout_id, known, draft.sample)
                call_id = self._insert_call(db, rollout_id, known.attempt, leaf, draft)
                db.execute("UPDATE rollouts SET last_event_at=? WHERE id=?", (draft.ended_at, rollout_id))
            if leaf is not None and new_path is not None:
                known.paths.append((leaf, new_path))
        return call_id

    def _insert_call(self, db: sqlite3.Connection, rollout_id: int, attempt: int, leaf: int | None, d: CallDraft) -> int:
        sample = d.sample
        cursor = db.execute(
            "INSERT INTO calls(rollout_id, attempt, sequence, wire, leaf, num_prompt_tokens, num_sampled_tokens, request,"
            " response, messages, stop_reason, policy_version, started_at, ended_at, delivered, lineage)"
            " VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
            (rollout_id, attempt, d.sequence, d.wire, leaf,
             len(sample.prompt_ids) if sample else 0, len(sample.sampled_ids) if sample else 0,
             self._zip.compress(d.request_bytes), self._zip.compress(d.response_bytes), self._zip.compress(d.messages_json),
             d.stop_reason, sample.policy_version if sample else None, d.started_at, d.ended_at, int(d.delivered), d.lineage),
        )
        return int(cursor.lastrowid or 0)

    def _add_nodes(
        self, db: sqlite3.Connection, rollout_id: int, known: _Paths, sample: Sample
    ) -> tuple[int, TokenIds]:
        parent, shared = _longest_shared(known.paths, sample.prompt_ids)
        if shared < len(sample.prompt_ids) or parent is None:
            parent = _insert_node(db, rollout_id, known.attempt, parent, shared, sample.prompt_ids[shared:], None)
        leaf = _insert_node(
            db, rollout_id, known.attempt, parent, len(sample.prompt_ids), sample.sampled_ids, sample.logprobs
        )
        return leaf, np.concatenate([sample.prompt_ids, sample.sampled_ids]).astype(np.int32)

    def _paths(self, rollout_id: int) -> _Paths:
        if rollout_id not in self._known:
            row = self.rows("SELECT attempt FROM rollouts WHERE id=?", rollout_id)
            if not row:
                raise StoreError(f"there is no rollout {rollout_id} in {self.path}")
            paths = self._node_paths(rollout_id, row[0]["attempt"])
            leaves = {c["leaf"] for c in self.rows("SELECT leaf FROM calls WHERE rollout_id=? AND attempt=?",
                                                   rollout_id, row[0]["attempt"])}
            self._known[rollout_id] = _Paths(
                row[0]["attempt"], [(node, ids) for node, (ids, _) in paths.items() if node in leaves]
            )
        return self._known[rollout_id]

    def _node_paths(self, rollout_id: int, attempt: int) -> dict[int, tuple[TokenIds, sqlite3.Row]]:
        paths: dict[int, tuple[TokenIds, sqlite3.Row]] = {}
        for row in self.rows("SELECT * FROM nodes WHERE rollout_id=? AND attempt=? ORDER BY id", rollout_id, attempt):
            own = np.frombuffer(row["ids"], dtype="<i4").astype(np.int32)
            above = paths[row["parent"]][0][: row["start"]] if row["parent"] is not None else own[:0]
            paths[row["id"]] = (np.concatenate([above, own]), row)
        return paths

    def mark_delivered(self, call_id: int, delivered: bool) -> None:
        """Says whether the harness took the whole answer; an undelivered call is kept and not trained."""
        with self._write() as db:
            db.execute("UPDATE calls SET delivered=? WHERE id=?", (int(delivered), call_id))

    def calls(self, rollout_id: int) -> list[Call]:
        """The calls of a rollout's latest attempt, in order, with their exact ids and logprobs."""
        attempt = self.rows("SELECT attempt FROM rollouts WHERE id=?", rollout_id)
        if not attempt:
            raise StoreError(f"there is no rollout {rollout_id} in {self.path}")
        paths = self._node_paths(rollout_id, attempt[0]["attempt"])
        found = self.rows("SELECT * FROM calls WHERE rollout_id=? AND attempt=? ORDER BY sequence",
                          rollout_id, attempt[0]["attempt"])
        return [self._call(row, paths) for row in found]

    def _call(self, row: sqlite3.Row, paths: dict[int, tuple[TokenIds, sqlite3.Row]]) -> Call:
        sample = None
        if row["leaf"] is not None:
            ids, leaf = paths[row["leaf"]]
            cut = row["num_prompt_tokens"]
            logprobs: Logprobs = np.frombuffer(leaf["logprobs"], dtype="<f4").astype(np.float32)
            sample = Sample(ids[:cut], ids[cut:], logprobs, StopReason(row["stop_reason"]), row["policy_version"])
        return Call(
            id=row["id"], rollout_id=row["rollout_id"], sequence=row["sequence"], wire=row["wire"], sample=sample,
            request_bytes=self._unzip.decompress(row["request"]), response_bytes=self._unzip.decompress(row["response"]),
            started_at=row["started_at"], ended_at=row["ended_at"], delivered=bool(row["delivered"]), lineage=row["lineage"],
        )

    def conversations(self, rollout_id: int) -> list[bytes]:
        """The neutral JSON (messages, tools, answer) of each call of a rollout's latest attempt, in order."""
        found = self.rows(
            "SELECT c.messages FROM calls c JOIN rollouts r ON r.id=c.rollout_id AND r.attempt=c.attempt"
            " WHERE c.rollout_id=? ORDER BY c.sequence", rollout_id)
        return [self._unzip.decompress(row["messages"]) for row in found]

    # ------------------------------------------------------------------ steps and versions

    def open_step(self, run_id: str, step: int) -> None:
        """Hands a step's graded rollouts to the trainer; does nothing when the step exists."""
        with self._write() as db:
            db.execute("INSERT OR IGNORE INTO steps(run_id, step, state, created_at) VALUES(?,?,'ready',?)",
                       (run_id, step, time.time()))

    def next_step(self, run_id: str) -> int | None:
        """The first step that waits for the trainer."""
        found = self.rows("SELECT min(step) s FROM steps WHERE run_id=? AND state='ready'", run_id)
        return None if found[0]["s"] is None else int(found[0]["s"])

    def close_step(
        self, run_id: str, step: int, metrics: dict[str, float], version: tuple[int, Path, str]
    ) -> None:
        """Records in one transaction that a step was taken and which version (number, path, sha256) it made."""
        number, path, sha256 = version
        with self._write() as db:
            db.execute("UPDATE steps SET state='done', metrics=?, ended_at=? WHERE run_id=? AND step=?",
                       (json.dumps(metrics), time.time(), run_id, step))
            _insert_version(db, run_id, number, number - 1, path, sha256)

    def steps(self, run_id: str) -> list[tuple[int, str, dict[str, float]]]:
        """(step, state, metrics) of a run in order."""
        return [(row["step"], row["state"], json.loads(row["metrics"]))
                for row in self.rows("SELECT * FROM steps WHERE run_id=? ORDER BY step", run_id)]

    def add_version(self, run_id: str, version: int, path: Path, sha256: str) -> None:
        """Records a policy version that no step made: the cold start's."""
        with self._write() as db:
            _insert_version(db, run_id, version, None, path, sha256)

    def versions(self, run_id: str) -> list[tuple[int, Path, str]]:
        """(version, path, sha256) of a run in order."""
        return [(row["version"], Path(row["path"]), row["sha256"])
                for row in self.rows("SELECT * FROM versions WHERE run_id=? ORDER BY version", run_id)]

    # ------------------------------------------------------------------ events and commands

    def log(self, level: str, part: str, message: str, run_id: str | None = None, rollout_id: int | None = None) -> None:
        """Adds an event. `part` is the process or boundary that speaks."""
        with self._write() as db:
            db.execute("INSERT INTO events(run_id, rollout_id, at, level, part, message) VALUES(?,?,?,?,?,?)",
                       (run_id, rollout_id, time.time(), level, part, message))

    def command(self, run_id: str, kind: str, argument: str = "") -> None:
        """Leaves a command for the supervisor: `stop`."""
        with self._write() as db:
            db.execute("INSERT INTO commands(run_id, kind, argument, created_at) VALUES(?,?,?,?)",
                       (run_id, kind, argument, time.time()))

    def take_commands(self, run_id: str) -> list[tuple[str, str]]:
        """Takes the commands that wait, oldest first; each is taken once."""
        if not self.rows("SELECT 1 FROM commands WHERE run_id=? AND taken_at IS NULL LIMIT 1", run_id):
            return []
        with self._write() as db:
            found = db.execute(
                "SELECT id, kind, argument FROM commands WHERE run_id=? AND taken_at IS NULL ORDER BY id", (run_id,)
            ).fetchall()
            db.execute("UPDATE commands SET taken_at=? WHERE run_id=? AND taken_at IS NULL", (time.time(), run_id))
        return [(row["kind"], row["argument"]) for row in found]

    def note_tasks(self, pack: str, tasks: Iterable[tuple[str, str, str, str]]) -> None:
        """Records (name, family, split, instruction) of a pack's tasks, for the views."""
        with self._write() as db:
            db.executemany("INSERT OR REPLACE INTO tasks(pack, name, family, split, instruction) VALUES(?,?,?,?,?)",
                           [(pack, *task) for task in tasks])

    def note_harness(self, name: str, version: str, wire: str, image: str) -> None:
        """Records which image a harness ran from."""
        with self._write() as db:
            db.execute("INSERT OR REPLACE INTO harnesses(name, version, wire, image, seen_at) VALUES(?,?,?,?,?)",
                       (name, version, wire, image, time.time()))


def _insert_version(
    db: sqlite3.Connection, run_id: str, version: int, parent: int | None, path: Path, sha256: str
) -> None:
    db.execute("INSERT OR REPLACE INTO versions(run_id, version, parent, path, sha256, created_at) VALUES(?,?,?,?,?,?)",
               (run_id, version, parent, str(path), sha256, time.time()))


def _insert_node(
    db: sqlite3.Connection, rollout_id: int, attempt: int, parent: int | None, start: int, ids: TokenIds,
    logprobs: Logprobs | None,
) -> int:
    cursor = db.execute(
        "INSERT INTO nodes(rollout_id, attempt, parent, start, sampled, ids, logprobs) VALUES(?,?,?,?,?,?,?)",
        (rollout_id, attempt, parent, start, int(logprobs is not None), ids.astype("<i4").tobytes(),
         None if logprobs is None else logprobs.astype("<f4").tobytes()),
    )
    return int(cursor.lastrowid or 0)


def _longest_shared(paths: list[tuple[int, TokenIds]], prompt: TokenIds) -> tuple[int | None, int]:
    """The stored path that shares the longest prefix with `prompt`, and that prefix's length."""
    best: tuple[int | None, int] = (None, 0)
    for node, ids in paths:
        length = min(len(ids), len(prompt))
        differing = np.flatnonzero(ids[:length] != prompt[:length])
        shared = int(differing[0]) if len(differing) else length
        if shared > best[1]:
            best = (node, shared)
    return best


def _run(row: sqlite3.Row) -> Run:
    return Run(
        id=row["id"], name=row["name"], config=json.loads(row["config"]), seed=row["seed"], state=RunState(row["state"]),
        phase=row["phase"], message=row["message"], created_at=row["created_at"], started_at=row["started_at"],
        ended_at=row["ended_at"], active_s=row["active_s"],
    )


def _rollout(row: sqlite3.Row) -> Rollout:
    plan = RolloutPlan(row["run_id"], Purpose(row["purpose"]), row["step"], row["harness"], row["task"], row["idx"])
    return Rollout(
        id=row["id"], plan=plan, state=RolloutState(row["state"]), attempt=row["attempt"],
        policy_version=row["policy_version"], reward=row["reward"], reward_parts=json.loads(row["reward_parts"]),
        failure=row["failure"], failure_detail=row["failure_detail"], created_at=row["created_at"],
        started_at=row["started_at"], ended_at=row["ended_at"], num_calls=row["num_calls"] or 0,
        num_sampled_tokens=row["num_sampled_tokens"] or 0, last_event_at=row["last_event_at"],
    )
