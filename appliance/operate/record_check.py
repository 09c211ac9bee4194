"""`corral db check`: does a record keep every invariant that a record can show? It only reads, and names what breaks.

I1 calls whole · I2 prompts as fed · I3 committed in time · I4 paths and trees · I5 rewards · I6 versions · I7 steps ·
I8 rollouts ended · I9 nothing of another rollout · I10 has no trace in a record and always counts 0 checks. `file` is
SQLite's own check. Rollouts are read one at a time, so a large record needs little memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from appliance.errors import StoreError
from appliance.record.store import Store
from appliance.trees.tree import recover
from appliance.types import Call, RolloutState, RunState, StopReason

NAMES = ("file", *(f"I{n}" for n in range(1, 11)))
PAGE = 500
"""Rollouts fetched at once."""
MAX_LOGPROB = 1e-3
"""A logprob above 0 by more than rounding is none."""
MOST_NAMED = 1000
"""Broken things that are named of each invariant; the rest is counted."""


class Findings:
    """What was checked and what broke, by invariant."""

    def __init__(self) -> None:
        self.checked = dict.fromkeys(NAMES, 0)
        self.broken: dict[str, list[str]] = {name: [] for name in NAMES}
        self.unnamed = dict.fromkeys(NAMES, 0)

    def count(self, name: str, number: int = 1) -> None:
        """So many things were looked at."""
        self.checked[name] += number

    def fail(self, name: str, what: str) -> None:
        """Something breaks an invariant; `what` begins with its kind and id."""
        if len(self.broken[name]) < MOST_NAMED:
            self.broken[name].append(what)
        else:
            self.unnamed[name] += 1

    @property
    def is_sound(self) -> bool:
        """Whether nothing broke."""
        return not any(self.broken.values())

    def as_json(self) -> dict[str, Any]:
        """The promised object."""
        found = {name: {"checked": self.checked[name], "broken": self.broken[name]} for name in NAMES}
        for name, more in self.unnamed.items():
            if more:
                found[name]["more"] = more
        return {"sound": self.is_sound, "file": found.pop("file"), "invariants": found}


def check(store: Store, told: Callable[[int, int], None] | None = None) -> Findings:
    """Checks the whole record. `told` hears how many rollouts are done, and of how many."""
    found = Findings()
    _file(store, found)
    runs = {row["id"]: row for row in _safe(store, found, "SELECT * FROM runs")}
    for run_id, row in runs.items():
        _run(store, found, run_id, row["state"])
    vocabularies = {run_id: _vocabulary(store.path.parent / "runs" / run_id) for run_id in runs}
    pruned = {run_id for run_id, row in runs.items() if row["pruned"]}
    counted = _safe(store, found, "SELECT count(*) n FROM rollouts")
    for done, row in enumerate(_rollouts(store, found), start=1):
        _rollout(found, row)
        try:
            _calls(store, found, row, vocabularies.get(row["run_id"]), row["run_id"] in pruned)
        except StoreError as error:
            found.fail("I1", f"rollout {row['id']}: {error.message}")
        if told is not None and counted:
            told(done, counted[0]["n"])
    return found


def _safe(store: Store, found: Findings, sql: str, *arguments: object) -> list[Any]:
    """Rows, or a finding where the file cannot give them."""
    try:
        return store.rows(sql, *arguments)
    except StoreError as error:
        if error.message not in found.broken["file"]:  # each table that lies in the damage says the same
            found.fail("file", error.message)
        return []


def _rollouts(store: Store, found: Findings) -> Iterator[Any]:
    last = 0
    while rows := _safe(store, found, "SELECT * FROM rollouts WHERE id>? ORDER BY id LIMIT ?", last, PAGE):
        yield from rows
        last = rows[-1]["id"]


# ------------------------------------------------------------------ the file and the runs


def _file(store: Store, found: Findings) -> None:
    found.count("file")
    for row in _safe(store, found, "PRAGMA integrity_check"):
        if row[0] != "ok":
            for line in str(row[0]).splitlines():
                found.fail("file", line)
    for row in _safe(store, found, "PRAGMA foreign_key_check"):
        found.fail("file", f"{row[0]} row {row[1]}: what it refers to in {row[2]} is missing")


def _run(store: Store, found: Findings, run_id: str, state: str) -> None:
    versions = {row["version"]: row for row in _safe(store, found, "SELECT * FROM versions WHERE run_id=?", run_id)}
    found.count("I6", len(versions))
    for number, row in versions.items():
        if row["parent"] is not None and row["parent"] >= number:
            found.fail("I6", f"version {number} of run {run_id}: its parent {row['parent']} is not older (a cycle)")
    newest = versions.get(max(versions, default=-1))
    if newest is not None and not Path(newest["path"]).is_dir():
        found.fail("I6", f"version {newest['version']} of run {run_id}: its adapter folder {newest['path']} is missing")
    for row in _safe(store, found, "SELECT step, state FROM steps WHERE run_id=?", run_id):
        found.count("I7")
        if row["state"] == "done" and row["step"] not in versions:
            found.fail("I7", f"step {row['step']} of run {run_id}: taken, but the version it made is missing")
    for row in _safe(
        store,
        found,
        "SELECT l.rollout_id, l.step, r.reward, r.purpose FROM loss_inputs l LEFT JOIN rollouts r ON r.id=l.rollout_id"
        " WHERE l.run_id=? AND (r.id IS NULL OR r.reward IS NULL OR r.purpose != 'train')",
        run_id,
    ):
        found.fail("I7", f"rollout {row['rollout_id']}: trained in step {row['step']} without a grade to train on")
    if state == RunState.DONE:
        live = (RolloutState.STARTING, RolloutState.RUNNING, RolloutState.GRADING)
        for row in _safe(
            store, found, "SELECT id, state FROM rollouts WHERE run_id=? AND state IN (?,?,?)", run_id, *live
        ):
            found.fail("I8", f"rollout {row['id']}: still {row['state']} though run {run_id} is done")


def _rollout(found: Findings, row: Any) -> None:
    found.count("I5")
    found.count("I8")
    name, state = f"rollout {row['id']}", row["state"]
    is_graded = state == RolloutState.GRADED
    if is_graded != (row["reward"] is not None):
        found.fail("I5", f"{name}: {state} with reward {row['reward']}")
    elif is_graded and not np.isfinite(row["reward"]):
        found.fail("I5", f"{name}: its reward {row['reward']} is no number")
    if state == RolloutState.FAILED and not row["failure"]:
        found.fail("I5", f"{name}: failed without a named cause")
    if is_graded and row["ended_at"] is None:
        found.fail("I8", f"{name}: graded without an end")


# ------------------------------------------------------------------ calls, nodes, trees


def _calls(store: Store, found: Findings, rollout: Any, vocabulary: int | None, is_pruned: bool) -> None:
    """All attempts' rows; then the latest attempt as everyone reads it."""
    nodes = {row["id"]: row for row in store.rows("SELECT * FROM nodes WHERE rollout_id=?", rollout["id"])}
    rows = store.rows("SELECT * FROM calls WHERE rollout_id=? ORDER BY id", rollout["id"])
    sound = True
    for node in nodes.values():
        sound &= _node(store, found, node, nodes, vocabulary)
    for row in rows:
        sound &= _call(found, row, nodes)
    _counts(found, rollout, [row for row in rows if row["attempt"] == rollout["attempt"]])
    _lineage(found, rollout["id"], rows)
    if not sound:
        return  # what is broken was named; reading it back would name it again, less well
    calls = store.calls(rollout["id"])
    _tree(found, rollout["id"], [call for call in calls if call.sample is not None])
    if not is_pruned:
        for call in calls:
            if not call.request_bytes:
                found.fail("I1", f"call {call.id}: its raw request is missing")


def _node(store: Store, found: Findings, node: Any, nodes: Mapping[int, Any], vocabulary: int | None) -> bool:
    found.count("I2")
    name, parent = f"node {node['id']}", nodes.get(node["parent"])
    if len(node["ids"]) % 4 or (node["sampled"] and len(node["logprobs"] or b"") != len(node["ids"])):
        found.fail("I1", f"{name}: {len(node['ids'])} bytes of ids with {len(node['logprobs'] or b'')} of logprobs")
        return False
    if node["parent"] is not None and parent is None:
        other = store.rows("SELECT rollout_id FROM nodes WHERE id=?", node["parent"])
        where = f"under rollout {other[0]['rollout_id']}" if other else "missing"
        found.fail("I9", f"{name}: its parent {node['parent']} is {where}")
        return False
    if parent is not None and parent["id"] >= node["id"]:
        found.fail("I4", f"{name}: its parent {parent['id']} is not older (a cycle)")
        return False
    end = parent["start"] + len(parent["ids"]) // 4 if parent is not None else 0
    if not 0 <= node["start"] <= end:
        found.fail("I2", f"{name}: begins at token {node['start']} of a path of {end}")
        return False
    _values(found, name, node, vocabulary)
    return True


def _values(found: Findings, name: str, node: Any, vocabulary: int | None) -> None:
    ids = np.frombuffer(node["ids"], dtype="<i4")
    if len(ids) and (ids.min() < 0 or (vocabulary is not None and ids.max() >= vocabulary)):
        outside = int(ids.min() if ids.min() < 0 else ids.max())
        found.fail("I1", f"{name}: token id {outside} is outside the vocabulary of {vocabulary or 'any model'}")
    logprobs = np.frombuffer(node["logprobs"] or b"", dtype="<f4")
    if not np.isfinite(logprobs).all() or (logprobs > MAX_LOGPROB).any():
        found.fail("I1", f"{name}: a logprob that is no logarithm of a probability")


def _call(found: Findings, row: Any, nodes: Mapping[int, Any]) -> bool:
    name, leaf = f"call {row['id']}", nodes.get(row["leaf"])
    for invariant in ("I1", "I3", "I9"):
        found.count(invariant)
    if row["ended_at"] <= 0 or row["ended_at"] < row["started_at"]:
        found.fail("I3", f"{name}: without an end (started {row['started_at']}, ended {row['ended_at']})")
    if row["leaf"] is None:
        if row["num_sampled_tokens"]:
            found.fail("I1", f"{name}: {row['num_sampled_tokens']} sampled tokens without their ids")
        return True
    if leaf is None or leaf["attempt"] != row["attempt"]:
        found.fail("I9", f"{name}: its tokens (node {row['leaf']}) are not of its own rollout and attempt")
        return False
    found.count("I6")
    if row["policy_version"] is None:
        found.fail("I6", f"{name}: no policy version was stamped")
        return False
    if row["stop_reason"] not in list(StopReason):
        found.fail("I1", f"{name}: stop reason {row['stop_reason']!r}")
        return False
    if not leaf["sampled"] or len(leaf["ids"]) // 4 != row["num_sampled_tokens"]:
        found.fail("I1", f"{name}: {row['num_sampled_tokens']} sampled tokens, {len(leaf['ids']) // 4} recorded")
        return False
    if leaf["start"] != row["num_prompt_tokens"]:
        found.fail("I2", f"{name}: {row['num_prompt_tokens']} prompt tokens, {leaf['start']} recorded")
        return False
    return True


def _counts(found: Findings, rollout: Any, rows: list[Any]) -> None:
    told = (rollout["num_calls"], rollout["num_sampled_tokens"])
    real = (len(rows), sum(row["num_sampled_tokens"] for row in rows))
    if told != real:
        found.fail("I1", f"rollout {rollout['id']}: counts {told[0]} calls and {told[1]} tokens, holds {real}")


def _lineage(found: Findings, rollout_id: int, rows: list[Any]) -> None:
    """Agents by who started them: that must lead to an end."""
    parents: dict[str, str] = {}
    for row in rows:
        try:
            told = json.loads(row["lineage"] or "{}")
        except ValueError:
            found.fail("I4", f"call {row['id']}: its lineage is no JSON")
            continue
        if isinstance(told, dict) and told.get("agent") and told.get("parent"):
            parents[str(told["agent"])] = str(told["parent"])
    for agent in parents:
        here, seen = agent, {agent}
        while (here := parents.get(here, "")) and here not in seen:
            seen.add(here)
        if here == agent:
            found.fail("I4", f"rollout {rollout_id}: agent {agent!r} is its own ancestor (a cycle in the lineage)")


def _tree(found: Findings, rollout_id: int, calls: list[Call]) -> None:
    samples = [call.sample for call in calls if call.sample is not None]
    tree = recover(samples)
    found.count("I4", len(samples))
    homes = sum(len(node.ids) for node in tree.nodes if node.call >= 0)
    for call, sample, leaf in zip(calls, samples, tree.leaves, strict=True):
        if not np.array_equal(tree.ids(leaf), np.concatenate([sample.prompt_ids, sample.sampled_ids])):
            found.fail("I4", f"call {call.id}: its path in the tree is not its prompt and answer")
    if homes != sum(len(sample.sampled_ids) for sample in samples):
        found.fail("I4", f"rollout {rollout_id}: a sampled token has no home in the tree, or two")


def _vocabulary(folder: Path) -> int | None:
    """The vocabulary of the run's base model; None when its folder is not there any more."""
    try:
        told = json.loads((folder / "model" / "base" / "config.json").read_text(encoding="utf-8"))
        return int(told["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _why_unchecked(found: Findings, name: str) -> str:
    if name == NAMES[-1]:
        return "a record holds no trace of it"
    return "nothing of it could be read" if found.broken["file"] else "nothing to check"


def check_text(found: Findings) -> str:
    """The findings for a terminal."""
    lines = []
    for name in NAMES:
        broken = found.broken[name]
        mark = "✗" if broken else ("✓" if found.checked[name] else "–")
        number = f"{found.checked[name]} checked" if found.checked[name] else _why_unchecked(found, name)
        lines.append(f"{mark} {name:<5} {number}" + (f", {len(broken)} broken" if broken else ""))
        lines += [f"    {what}" for what in broken[:20]]
        if len(broken) > 20:
            lines.append(f"    … and {len(broken) - 20 + found.unnamed[name]} more; --json names them")
    return "\n".join(lines)
