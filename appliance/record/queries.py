"""What screens ask of a run, in queries whose cost does not grow with the calls in the record.

Each is one statement over an index; `QUERIES` holds them so that a test can ask SQLite for their plans. Lists are
pages: what is under way, the newest that ended, the next that wait.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from appliance.record.schema import rollout_from_row
from appliance.record.store import Store
from appliance.types import Purpose, Rollout

PAGE = 500
"""Rollouts of each kind on a screen."""
QUERIES = {
    "counts": "SELECT state, count(*) n FROM rollouts WHERE run_id=?1 GROUP BY state",
    "failures": "SELECT failure, count(*) n FROM rollouts WHERE run_id=?1 AND state='failed' GROUP BY failure"
    " ORDER BY min(id)",
    "live": "SELECT * FROM rollouts WHERE run_id=?1 AND state IN ('starting', 'running', 'grading') ORDER BY id",
    "ended": "SELECT * FROM rollouts WHERE run_id=?1 AND ended_at IS NOT NULL ORDER BY ended_at DESC LIMIT ?2",
    "waiting": "SELECT * FROM rollouts WHERE run_id=?1 AND state='planned' ORDER BY id LIMIT ?2",
    "page": "SELECT * FROM rollouts WHERE run_id=?1 AND id>?2 ORDER BY id LIMIT ?3",
    "one": "SELECT * FROM rollouts WHERE id=?1",
    "groups": "SELECT step, harness, task, count(*) n, count(reward) graded, sum(state='failed') failed,"
    " sum(reward) total, min(reward) lowest, max(reward) highest FROM rollouts"
    " WHERE run_id=?1 AND purpose=?2 GROUP BY step, harness, task",
    "last_graded": "SELECT step FROM rollouts WHERE run_id=?1 AND purpose='train' AND reward IS NOT NULL"
    " ORDER BY step DESC LIMIT 1",
    "mean": "SELECT avg(reward) mean FROM rollouts WHERE run_id=?1 AND purpose='train' AND step=?2",
    "steps_done": "SELECT count(*) n FROM steps WHERE run_id=?1 AND state='done'",
    "calls": "SELECT * FROM calls WHERE rollout_id=?1 AND attempt=?2 ORDER BY sequence",
    "engines": "SELECT number, at, load FROM engines WHERE run_id=?1 ORDER BY number",
    "nodes": "SELECT * FROM nodes WHERE rollout_id=?1 AND attempt=?2 ORDER BY id",
}


@dataclass(frozen=True, slots=True)
class GroupLine:
    """One group in numbers. `total`, `lowest` and `highest` are over its graded rollouts; None without any."""

    step: int
    harness: str
    task: str
    num_rollouts: int
    num_graded: int
    num_failed: int
    total: float | None
    lowest: float | None
    highest: float | None

    @property
    def has_ended(self) -> bool:
        """Whether every rollout of it has an outcome."""
        return self.num_graded + self.num_failed == self.num_rollouts

    @property
    def is_flat(self) -> bool:
        """Whether it teaches nothing: fewer than two grades, or all equal."""
        return self.lowest == self.highest


def counts(store: Store, run_id: str) -> dict[str, int]:
    """Rollouts of a run by state."""
    return {row["state"]: row["n"] for row in store.rows(QUERIES["counts"], run_id)}


def failures(store: Store, run_id: str) -> dict[str, int]:
    """Failed rollouts of a run by label, in the order in which the labels came up."""
    return {row["failure"]: row["n"] for row in store.rows(QUERIES["failures"], run_id)}


def live(store: Store, run_id: str) -> list[Rollout]:
    """The rollouts under way."""
    return _rollouts(store, "live", run_id)


def screenful(store: Store, run_id: str, limit: int = PAGE) -> list[Rollout]:
    """Under way, the newest that ended, the first that wait: at most `limit` of the latter two, in order of ids."""
    found = live(store, run_id)
    found += _rollouts(store, "ended", run_id, limit) + _rollouts(store, "waiting", run_id, limit)
    return sorted({rollout.id: rollout for rollout in found}.values(), key=lambda r: r.id)


def page(store: Store, run_id: str, after: int = 0, limit: int = PAGE) -> list[Rollout]:
    """The next rollouts of a run after the id `after`."""
    return _rollouts(store, "page", run_id, after, limit)


def one(store: Store, rollout_id: int) -> Rollout | None:
    """A rollout by its number."""
    return next(iter(_rollouts(store, "one", rollout_id)), None)


def groups(store: Store, run_id: str, purpose: Purpose = Purpose.TRAIN) -> list[GroupLine]:
    """The groups of a run in order of step, harness and task."""
    return [GroupLine(*row) for row in store.rows(QUERIES["groups"], run_id, purpose)]


def last_reward(store: Store, run_id: str) -> float | None:
    """Mean reward of the newest training step with a grade."""
    newest: Sequence[object] = [row["step"] for row in store.rows(QUERIES["last_graded"], run_id)]
    if not newest:
        return None
    return float(store.rows(QUERIES["mean"], run_id, newest[0])[0]["mean"])


def steps_done(store: Store, run_id: str) -> int:
    """Optimiser steps taken."""
    return int(store.rows(QUERIES["steps_done"], run_id)[0]["n"])


def engines(store: Store, run_id: str) -> list[tuple[int, float, dict[str, float]]]:
    """(number, Unix seconds, newest numbers) of each engine that a run has or had."""
    return [(row["number"], row["at"], json.loads(row["load"])) for row in store.rows(QUERIES["engines"], run_id)]


def _rollouts(store: Store, query: str, *arguments: object) -> list[Rollout]:
    return [rollout_from_row(row) for row in store.rows(QUERIES[query], *arguments)]
