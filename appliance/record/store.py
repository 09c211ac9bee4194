"""The record: one SQLite file (WAL, STRICT) that every process shares; kill any of them and nothing is lost.

Each process holds one writing connection and writes in short immediate transactions; readers never wait
for it. `sqlite3` is imported here and in file.py, and nowhere else.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from appliance.errors import StoreError
from appliance.record.calls import CallDraft, CallLog
from appliance.record.file import BUSY_TIMEOUT_S, explained, open_record
from appliance.record.schema import rollout_from_row, run_from_row
from appliance.system.redact import logged
from appliance.types import RUN_MOVES, Call, Purpose, Reward, Rollout, RolloutPlan, RolloutState, Run, RunState

__all__ = ["CallDraft", "Run", "Store"]
FINISHED = (RolloutState.GRADED, RolloutState.FAILED)


class Store:
    """One process's connection to the record. Open with `Store.open`; close when done."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._db = connection
        self._lock = threading.RLock()
        self._calls = CallLog(self)

    # ------------------------------------------------------------------ opening

    @classmethod
    def open(
        cls, path: Path, readonly: bool = False, damaged: bool = False, patience_s: float = BUSY_TIMEOUT_S
    ) -> Store:
        """Opens the record, creating or migrating it unless `readonly`; one that is cut short only when `damaged`.
        A record that another process holds is waited for, each time for `patience_s`.

        Raises StoreError when the file is missing (readonly), foreign, newer than this code, or not writable.
        """
        return cls(path, open_record(path, readonly, damaged, patience_s))

    def close(self) -> None:
        """Closes the connection; safe to call twice."""
        self._db.close()

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """One short immediate transaction; rolled back on any error."""
        with self._lock, explained(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                if self._db.in_transaction:  # SQLite has rolled back by itself when the disk is full
                    self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def rows(self, sql: str, *arguments: object) -> list[sqlite3.Row]:
        """Reads with a prepared statement; for the views. The SQL must not write."""
        with self._lock, explained(self.path):
            return self._db.execute(sql, arguments).fetchall()

    # ------------------------------------------------------------------ runs

    def create_run(self, run_id: str, name: str, config: dict[str, object], seed: int, code_version: str) -> None:
        """Adds a run in state `created`."""
        with self.write() as db:
            db.execute(
                "INSERT INTO runs(id, name, config, seed, code_version, state, created_at) VALUES(?,?,?,?,?,?,?)",
                (run_id, name, json.dumps(config), seed, code_version, RunState.CREATED, time.time()),
            )

    def runs(self) -> list[Run]:
        """All runs, newest first."""
        return [run_from_row(row) for row in self.rows("SELECT * FROM runs ORDER BY created_at DESC")]

    def run(self, run_id: str) -> Run:
        """The run whose id is, or uniquely starts with, `run_id`; StoreError otherwise."""
        found = self.rows("SELECT * FROM runs WHERE id = ? OR id LIKE ? || '%'", run_id, run_id)
        exact = [row for row in found if row["id"] == run_id] or found
        if len(exact) != 1:
            known = ", ".join(run.id for run in self.runs()[:5]) or "none"
            raise StoreError(f"no single run {run_id!r} in {self.path}", f"known runs: {known}")
        return run_from_row(exact[0])

    def move_run(self, run_id: str, state: RunState, message: str = "") -> None:
        """Moves a run along RUN_MOVES; StoreError for an illegal move."""
        now = time.time()
        with self.write() as db:
            old = RunState(db.execute("SELECT state FROM runs WHERE id=?", (run_id,)).fetchone()[0])
            if state is not old and state not in RUN_MOVES[old]:
                raise StoreError(f"run {run_id} cannot go from {old} to {state}")
            ended = now if state in (RunState.STOPPED, RunState.DONE, RunState.FAILED) else None
            db.execute(
                "UPDATE runs SET state=?, message=?, ended_at=?, started_at=coalesce(started_at, ?) WHERE id=?",
                (state, logged(message), ended, now if state is RunState.RUNNING else None, run_id),
            )

    def begin_phase(self, run_id: str, phase: str) -> None:
        """Says what a run does from now on; the phase before ends here."""
        now = time.time()
        with self.write() as db:
            db.execute("UPDATE phases SET ended_at=? WHERE run_id=? AND ended_at IS NULL", (now, run_id))
            db.execute("INSERT INTO phases(run_id, phase, started_at) VALUES(?,?,?)", (run_id, phase, now))
            db.execute("UPDATE runs SET phase=? WHERE id=?", (phase, run_id))

    def end_killed_phase(self, run_id: str) -> None:
        """Closes a phase that a kill left open, at the run's last sign of life. Call it before anything is logged."""
        with self.write() as db:
            db.execute(
                "UPDATE phases SET ended_at=max(started_at, coalesce((SELECT max(at) FROM events WHERE run_id=?1), 0),"
                " coalesce((SELECT max(last_event_at) FROM rollouts WHERE run_id=?1), 0))"
                " WHERE run_id=?1 AND ended_at IS NULL",
                (run_id,),
            )

    def end_phase(self, run_id: str) -> None:
        """Closes the phase the run is in."""
        with self.write() as db:
            db.execute("UPDATE phases SET ended_at=? WHERE run_id=? AND ended_at IS NULL", (time.time(), run_id))

    def phase_seconds(self, run_id: str) -> dict[str, float]:
        """Wall seconds spent in each phase, over all resumes."""
        found = self.rows(
            "SELECT phase, sum(ended_at - started_at) s FROM phases WHERE run_id=? AND ended_at IS NOT NULL"
            " GROUP BY phase",
            run_id,
        )
        return {row["phase"]: float(row["s"]) for row in found}

    # ------------------------------------------------------------------ rollouts

    def plan(self, plans: Iterable[RolloutPlan]) -> list[Rollout]:
        """Adds rollouts that are not there yet (their key is unique) and returns all of them, in order."""
        wanted = list(plans)
        now = time.time()
        with self.write() as db:
            db.executemany(
                "INSERT OR IGNORE INTO rollouts(run_id, purpose, step, harness, task, idx, grp, state, created_at)"
                " VALUES(?,?,?,?,?,?,?,?,?)",
                [
                    (p.run_id, p.purpose, p.step, p.harness, p.task, p.index, p.group, RolloutState.PLANNED, now)
                    for p in wanted
                ],
            )
        kinds = {(p.run_id, p.purpose, p.step) for p in wanted}
        by_plan = {r.plan: r for kind in kinds for r in self.rollouts(*kind)}
        return [by_plan[p] for p in wanted]

    def first_rollout(self, run_id: str) -> int:
        """The smallest rollout id of a run, 0 when it has none."""
        return int(self.rows("SELECT coalesce(min(id), 0) n FROM rollouts WHERE run_id=?", run_id)[0]["n"])

    def rollouts(self, run_id: str, purpose: Purpose | None = None, step: int | None = None) -> list[Rollout]:
        """Rollouts of a run in order of their ids, optionally of one purpose and step."""
        asked = {"run_id": run_id, "purpose": purpose, "step": step}
        known = {column: value for column, value in asked.items() if value is not None}
        where = " AND ".join(f"{column}=?" for column in known)  # only what is asked: else no index is used
        found = self.rows(f"SELECT * FROM rollouts WHERE {where} ORDER BY id", *known.values())
        return [rollout_from_row(row) for row in found]

    def begin(self, rollout_id: int, policy_version: int) -> int:
        """Starts a new attempt of a rollout and returns its number; what an earlier one recorded stays apart."""
        with self.write() as db:
            now = time.time()
            changed = db.execute(
                "UPDATE rollouts SET state=?, attempt=attempt+1, policy_version=?, failure='', failure_detail='',"
                " num_calls=0, num_sampled_tokens=0, started_at=?, last_event_at=?, ended_at=NULL"
                " WHERE id=? AND state NOT IN (?,?)",
                (RolloutState.STARTING, policy_version, now, now, rollout_id, *FINISHED),
            ).rowcount
            if changed != 1:
                raise StoreError(f"rollout {rollout_id} was finished already")
            attempt: int = db.execute("SELECT attempt FROM rollouts WHERE id=?", (rollout_id,)).fetchone()[0]
        self._calls.forget(rollout_id)
        return attempt

    def plan_again(self, rollout_id: int) -> bool:
        """Puts a failed rollout back among those that wait; False when it has not failed."""
        with self.write() as db:
            sql = "UPDATE rollouts SET state=?, failure='', failure_detail='', ended_at=NULL WHERE id=? AND state=?"
            return db.execute(sql, (RolloutState.PLANNED, rollout_id, RolloutState.FAILED)).rowcount == 1

    def move_rollout(self, rollout_id: int, state: RolloutState) -> None:
        """Says which phase an unfinished rollout is in."""
        with self.write() as db:
            db.execute("UPDATE rollouts SET state=?, last_event_at=? WHERE id=?", (state, time.time(), rollout_id))

    def grade(self, rollout_id: int, reward: Reward, output: str, timings: dict[str, float]) -> None:
        """Records the reward, once: a graded rollout is never graded again (I8)."""
        with self.write() as db:
            changed = db.execute(
                "UPDATE rollouts SET state=?, reward=?, reward_parts=?, output=?, timings=?, ended_at=?,"
                " last_event_at=?"
                " WHERE id=? AND state NOT IN (?,?)",
                (
                    RolloutState.GRADED,
                    reward.value,
                    json.dumps(reward.parts),
                    output,
                    json.dumps(timings),
                    time.time(),
                    time.time(),
                    rollout_id,
                    *FINISHED,
                ),
            ).rowcount
        if changed != 1:
            raise StoreError(f"rollout {rollout_id} was finished already")
        self._calls.forget(rollout_id)

    def fail(self, rollout_id: int, label: str, detail: str, output: str = "") -> None:
        """Marks a rollout failed, with the part and cause; its reward stays None (I5)."""
        told = logged(detail)[:4000]
        with self.write() as db:
            db.execute(
                "UPDATE rollouts SET state=?, failure=?, failure_detail=?, output=?, ended_at=?, last_event_at=?"
                " WHERE id=? AND state NOT IN (?,?)",
                (RolloutState.FAILED, label, told, output, time.time(), time.time(), rollout_id, *FINISHED),
            )
        self._calls.forget(rollout_id)

    # ------------------------------------------------------------------ calls (see calls.py)

    def add_call(self, rollout_id: int, draft: CallDraft) -> int:
        """Commits one call of the rollout's current attempt, whole, and returns its id (I1, I3)."""
        return self._calls.add(rollout_id, draft)

    def calls(self, rollout_id: int) -> list[Call]:
        """The calls of a rollout's latest attempt, in order, with their exact ids and logprobs."""
        return self._calls.read(rollout_id)

    def conversations(self, rollout_id: int) -> list[bytes]:
        """The neutral JSON (messages, tools, answer) of each call of a rollout's latest attempt, in order."""
        return self._calls.conversations(rollout_id)

    def mark_delivered(self, call_id: int, delivered: bool) -> None:
        """Says whether the harness took the whole answer; an undelivered call is kept and not trained."""
        with self.write() as db:
            db.execute("UPDATE calls SET delivered=? WHERE id=?", (int(delivered), call_id))

    # ------------------------------------------------------------------ steps and versions

    def open_step(self, run_id: str, step: int) -> None:
        """Hands a step's graded rollouts to the trainer; does nothing when the step exists."""
        with self.write() as db:
            db.execute(
                "INSERT OR IGNORE INTO steps(run_id, step, state, created_at) VALUES(?,?,'ready',?)",
                (run_id, step, time.time()),
            )

    def next_step(self, run_id: str) -> int | None:
        """The first step that waits for the trainer."""
        found = self.rows("SELECT min(step) s FROM steps WHERE run_id=? AND state='ready'", run_id)
        return None if found[0]["s"] is None else int(found[0]["s"])

    def close_step(self, run_id: str, step: int, metrics: dict[str, float], version: tuple[int, Path, str]) -> None:
        """Records in one transaction that a step was taken and which version (number, path, sha256) it made."""
        number, path, sha256 = version
        with self.write() as db:
            db.execute(
                "UPDATE steps SET state='done', metrics=?, ended_at=? WHERE run_id=? AND step=?",
                (json.dumps(metrics), time.time(), run_id, step),
            )
            _insert_version(db, run_id, number, number - 1, path, sha256)

    def steps(self, run_id: str) -> list[tuple[int, str, dict[str, float]]]:
        """(step, state, metrics) of a run in order."""
        return [
            (row["step"], row["state"], json.loads(row["metrics"]))
            for row in self.rows("SELECT * FROM steps WHERE run_id=? ORDER BY step", run_id)
        ]

    def add_version(self, run_id: str, version: int, path: Path, sha256: str) -> None:
        """Records a policy version that no step made: the cold start's."""
        with self.write() as db:
            _insert_version(db, run_id, version, None, path, sha256)

    def versions(self, run_id: str) -> list[tuple[int, Path, str]]:
        """(version, path, sha256) of a run in order."""
        return [
            (row["version"], Path(row["path"]), row["sha256"])
            for row in self.rows("SELECT * FROM versions WHERE run_id=? ORDER BY version", run_id)
        ]

    def adapter_folder(self, run_id: str, version: int) -> Path:
        """Where a version's adapter lies; StoreError when there is no such version or its folder is gone."""
        found = {number: path for number, path, _ in self.versions(run_id)}
        if version not in found:
            raise StoreError(f"run {run_id} has no policy version {version}", "resume the run: `corral resume`")
        if not found[version].is_dir():
            raise StoreError(
                f"version {version} of run {run_id}: its adapter folder {found[version]} is missing",
                "put the folder back, or start a new run; the record itself is whole (`corral db check`)",
            )
        return found[version]

    # ------------------------------------------------------------------ events and commands

    def log(
        self, level: str, part: str, message: str, run_id: str | None = None, rollout_id: int | None = None
    ) -> None:
        """Adds an event, without secrets. `part` is the process or boundary that speaks."""
        with self.write() as db:
            db.execute(
                "INSERT INTO events(run_id, rollout_id, at, level, part, message) VALUES(?,?,?,?,?,?)",
                (run_id, rollout_id, time.time(), level, part, logged(message)),
            )

    def last_event(self) -> int:
        """Id of the newest event, 0 when there is none."""
        return int(self.rows("SELECT coalesce(max(id), 0) n FROM events")[0]["n"])

    def events(self, run_id: str, after: int = 0, limit: int = 1000) -> list[dict[str, object]]:
        """Events of a run with ids above `after`, oldest first."""
        found = self.rows("SELECT * FROM events WHERE run_id=? AND id>? ORDER BY id LIMIT ?", run_id, after, limit)
        return [dict(row) for row in found]

    def command(self, run_id: str, kind: str, argument: str = "") -> None:
        """Leaves a command for the supervisor: `stop` (`now`), `pause`, `unpause`, `kill` or `retry` of a rollout."""
        with self.write() as db:
            db.execute(
                "INSERT INTO commands(run_id, kind, argument, created_at) VALUES(?,?,?,?)",
                (run_id, kind, argument, time.time()),
            )

    def take_commands(self, run_id: str) -> list[tuple[str, str]]:
        """Takes the commands that wait, oldest first; each is taken once."""
        if not self.rows("SELECT 1 FROM commands WHERE run_id=? AND taken_at IS NULL LIMIT 1", run_id):
            return []
        with self.write() as db:
            found = db.execute(
                "SELECT id, kind, argument FROM commands WHERE run_id=? AND taken_at IS NULL ORDER BY id", (run_id,)
            ).fetchall()
            db.execute("UPDATE commands SET taken_at=? WHERE run_id=? AND taken_at IS NULL", (time.time(), run_id))
        return [(row["kind"], row["argument"]) for row in found]

    def is_paused(self, run_id: str) -> bool:
        """Whether the last that was asked of the run's supervisor about pausing is to pause."""
        kinds = "kind IN ('pause', 'unpause')"
        found = self.rows(f"SELECT kind FROM commands WHERE run_id=? AND {kinds} ORDER BY id DESC LIMIT 1", run_id)
        return bool(found) and found[0]["kind"] == "pause"

    def drop_commands(self, run_id: str) -> None:
        """For a new supervisor: what was meant for an earlier one, and a pause that was, hold no longer."""
        self.take_commands(run_id)
        if self.is_paused(run_id):
            self.command(run_id, "unpause")

    def note_tasks(self, pack: str, tasks: Iterable[tuple[str, str, str, str]]) -> None:
        """Records (name, family, split, instruction) of a pack's tasks, for the views."""
        with self.write() as db:
            db.executemany(
                "INSERT OR REPLACE INTO tasks(pack, name, family, split, instruction) VALUES(?,?,?,?,?)",
                [(pack, *task) for task in tasks],
            )

    def note_pack(self, run_id: str, pack: str, digest: str, tasks: Mapping[str, str]) -> None:
        """Records the digests of a run's tasks: of all together, and of each."""
        row = (run_id, pack, digest, json.dumps(tasks))
        with self.write() as db:
            db.execute("INSERT OR REPLACE INTO run_packs(run_id, pack, digest, tasks) VALUES(?,?,?,?)", row)

    def noted_pack(self, run_id: str) -> tuple[str, str, dict[str, str]] | None:
        """(pack, digest, task → digest) of a run; None where nothing is known of its tasks.

        The digest of a run made before packs had one is empty, and its tasks' are `schema.wording_digest`s.
        """
        for row in self.rows("SELECT pack, digest, tasks FROM run_packs WHERE run_id=?", run_id):
            try:
                return row["pack"], row["digest"], {str(k): str(v) for k, v in dict(json.loads(row["tasks"])).items()}
            except (ValueError, TypeError) as error:
                raise StoreError(f"{self.path}: the digests of run {run_id} are damaged", "restore a copy") from error
        return None

    def note_engine(self, run_id: str, number: int, load: dict[str, float]) -> None:
        """Records the newest numbers of one of a run's engines; those before are dropped."""
        row = (run_id, number, time.time(), json.dumps(load))
        with self.write() as db:
            db.execute("INSERT OR REPLACE INTO engines(run_id, number, at, load) VALUES(?,?,?,?)", row)

    def note_harness(self, name: str, version: str, wire: str, image: str) -> None:
        """Records which image a harness ran from."""
        with self.write() as db:
            db.execute(
                "INSERT OR REPLACE INTO harnesses(name, version, wire, image, seen_at) VALUES(?,?,?,?,?)",
                (name, version, wire, image, time.time()),
            )


def _insert_version(
    db: sqlite3.Connection, run_id: str, version: int, parent: int | None, path: Path, sha256: str
) -> None:
    db.execute(
        "INSERT OR REPLACE INTO versions(run_id, version, parent, path, sha256, created_at) VALUES(?,?,?,?,?,?)",
        (run_id, version, parent, str(path), sha256, time.time()),
    )
