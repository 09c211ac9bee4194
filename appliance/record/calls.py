"""Calls and their tokens inside the record. Tokens are stored once a node: a call adds only what its prompt does not
share with an earlier call of the same rollout, as new nodes; nothing is ever split or rewritten (see schema.py).
Bodies are in bodies.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from appliance.errors import StoreError
from appliance.record.bodies import NEWEST, Bodies, BodyLog, Chain, Reading
from appliance.types import Call, Logprobs, Sample, StopReason, TokenIds


@dataclass(frozen=True, slots=True)
class CallDraft:
    """A call about to be committed. `sample` is None for a teacher's call: text only, never trained by RL."""

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
    template: str = ""


class Record(Protocol):
    """What this module needs of the store: prepared reads, and one write transaction."""

    def rows(self, sql: str, *arguments: object) -> list[Any]:
        """Rows, addressable by column name."""
        ...

    def write(self) -> AbstractContextManager[Any]:
        """A connection inside one immediate transaction."""
        ...


@dataclass(slots=True)
class _Attempt:
    """An attempt that is under way. `paths`: what is stored of its tokens, as (leaf node, ids from the root)."""

    chain: Chain
    paths: list[tuple[int, TokenIds]] = field(default_factory=list)

    def grow(self, leaf: int, ids: TokenIds) -> None:
        """Adds a path. When it goes on from the newest one, that and all that lie in it become parts of the new one."""
        before = self.paths[-1][1] if self.paths else ids[:0]
        if len(before) and np.array_equal(before, ids[: len(before)]):
            self.paths = [
                (node, ids[: len(path)] if path is before or path.base is before else path) for node, path in self.paths
            ]
        self.paths.append((leaf, ids))


@dataclass(frozen=True, slots=True)
class _NodeDraft:
    rollout_id: int
    attempt: int
    parent: int | None
    start: int
    ids: TokenIds
    logprobs: Logprobs | None = None


class CallLog:
    """Writes and reads the calls of a record; remembers the paths of rollouts that are under way."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._known: dict[int, _Attempt] = {}
        self._bodies = BodyLog()

    def forget(self, rollout_id: int) -> None:
        """Drops what is remembered of a rollout: it ended, or a new attempt began."""
        self._known.pop(rollout_id, None)

    def add(self, rollout_id: int, draft: CallDraft) -> int:
        """Commits one call of the rollout's current attempt in one transaction and returns its id (I1, I3)."""
        known = self._known.get(rollout_id) or self._read_attempt(rollout_id)
        stored: tuple[int, TokenIds] | None = None
        try:
            with self._record.write() as db:
                if draft.sample is not None:
                    stored = _add_nodes(db, known, draft.sample)
                call_id = _insert(db, known.chain, stored[0] if stored else None, draft)
                bodies = Bodies(call_id, draft.wire, draft.request_bytes, draft.response_bytes, draft.messages_json)
                self._bodies.add(db, known.chain, bodies)
        except BaseException:  # what is remembered may go beyond what was committed
            self.forget(rollout_id)
            raise
        if stored:
            known.grow(*stored)
        self._known[rollout_id] = known
        return call_id

    def read(self, rollout_id: int) -> list[Call]:
        """The calls of the latest attempt, in order, with their exact ids and logprobs; b"" for bodies taken out."""
        attempt = self._attempt(rollout_id)
        found = self._record.rows(
            "SELECT * FROM calls WHERE rollout_id=? AND attempt=? ORDER BY sequence", rollout_id, attempt
        )
        paths = self._paths(rollout_id, attempt, [row["leaf"] for row in found])
        reading = Reading(self._record.rows)
        return [_call(row, paths.get(row["leaf"]), reading.one(row["id"], row["wire"])) for row in found]

    def conversations(self, rollout_id: int) -> list[bytes]:
        """The neutral JSON of each call of the latest attempt, in order; b"" where retention took it out."""
        found = self._record.rows(
            "SELECT id FROM calls WHERE rollout_id=? AND attempt=? ORDER BY sequence",
            rollout_id,
            self._attempt(rollout_id),
        )
        reading = Reading(self._record.rows)
        bodies = [reading.one(row["id"]) for row in found]
        return [each.messages if each else b"" for each in bodies]

    def _attempt(self, rollout_id: int) -> int:
        found = self._record.rows("SELECT attempt FROM rollouts WHERE id=?", rollout_id)
        if not found:
            raise StoreError(f"the record holds no rollout {rollout_id}", "see `corral status`")
        return int(found[0]["attempt"])

    def _read_attempt(self, rollout_id: int) -> _Attempt:
        attempt = self._attempt(rollout_id)
        row = self._record.rows("SELECT run_id, harness FROM rollouts WHERE id=?", rollout_id)[0]
        calls = self._record.rows(
            "SELECT id, leaf, wire FROM calls WHERE rollout_id=? AND attempt=? ORDER BY id", rollout_id, attempt
        )
        reading = Reading(self._record.rows)
        newest = [reading.one(call["id"], call["wire"]) for call in calls[-NEWEST:]]
        chain = Chain(rollout_id, attempt, row["run_id"], row["harness"], [bodies for bodies in newest if bodies])
        paths = self._paths(rollout_id, attempt, [call["leaf"] for call in calls])
        return _Attempt(chain, [(leaf, ids) for leaf, (ids, _) in paths.items()])

    def _paths(
        self, rollout_id: int, attempt: int, leaves: Sequence[int | None]
    ) -> dict[int, tuple[TokenIds, bytes | None]]:
        """Leaf → (ids from the root to its end, its logprobs). A node's parent always has a smaller id.

        Only leaves are written out: a prompt's node is read through by the leaf below it.
        """
        wanted = set(leaves)
        nodes: dict[int, _Read] = {}
        whole: dict[int, TokenIds] = {}
        for row in self._record.rows(
            "SELECT id, parent, start, ids, logprobs FROM nodes WHERE rollout_id=? AND attempt=? ORDER BY id",
            rollout_id,
            attempt,
        ):
            node = _Read(row["parent"], row["start"], np.frombuffer(row["ids"], dtype="<i4"), row["logprobs"])
            nodes[row["id"]] = node
            if row["id"] in wanted:
                whole[row["id"]] = _written_out(node, nodes, whole)
        return {leaf: (ids, nodes[leaf].logprobs) for leaf, ids in whole.items()}


@dataclass(frozen=True, slots=True)
class _Read:
    parent: int | None
    start: int
    ids: TokenIds
    logprobs: bytes | None


def _written_out(node: _Read, nodes: dict[int, _Read], whole: dict[int, TokenIds]) -> TokenIds:
    """All ids from the root to the end of `node`, down from the nearest path that is written out already."""
    pieces, end, here = [node.ids], node.start, node.parent
    while here is not None and here not in whole and end:
        above = nodes[here]
        if above.start < end:
            pieces.append(above.ids[: end - above.start])
            end = above.start
        here = above.parent
    if here is not None and end:
        pieces.append(whole[here][:end])
    return np.concatenate(pieces[::-1]).astype(np.int32, copy=False)


def _insert(db: Any, chain: Chain, leaf: int | None, draft: CallDraft) -> int:
    sample = draft.sample
    values = {
        "rollout_id": chain.rollout_id,
        "attempt": chain.attempt,
        "sequence": draft.sequence,
        "wire": draft.wire,
        "leaf": leaf,
        "num_prompt_tokens": len(sample.prompt_ids) if sample else 0,
        "num_sampled_tokens": len(sample.sampled_ids) if sample else 0,
        "stop_reason": draft.stop_reason,
        "policy_version": sample.policy_version if sample else None,
        "started_at": draft.started_at,
        "ended_at": draft.ended_at,
        "delivered": int(draft.delivered),
        "lineage": draft.lineage,
        "template": draft.template,
    }
    names = ", ".join(values)
    marks = ", ".join(f":{name}" for name in values)
    call_id = int(db.execute(f"INSERT INTO calls({names}) VALUES({marks})", values).lastrowid)
    db.execute(
        "UPDATE rollouts SET last_event_at=?, num_calls=num_calls+1, num_sampled_tokens=num_sampled_tokens+?"
        " WHERE id=?",
        (draft.ended_at, values["num_sampled_tokens"], chain.rollout_id),
    )
    return call_id


def _call(row: Any, path: tuple[TokenIds, bytes | None] | None, bodies: Bodies | None) -> Call:
    sample = None
    if path is not None:
        ids, logprobs = path
        cut = row["num_prompt_tokens"]
        behaviour: Logprobs = np.frombuffer(logprobs or b"", dtype="<f4").astype(np.float32)
        sample = Sample(ids[:cut], ids[cut:], behaviour, StopReason(row["stop_reason"]), row["policy_version"])
    return Call(
        id=row["id"],
        rollout_id=row["rollout_id"],
        sequence=row["sequence"],
        wire=row["wire"],
        sample=sample,
        request_bytes=bodies.request if bodies else b"",
        response_bytes=bodies.response if bodies else b"",
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        delivered=bool(row["delivered"]),
        lineage=row["lineage"],
        template=row["template"],
        stop_reason=StopReason(row["stop_reason"]),
    )


def _add_nodes(db: Any, known: _Attempt, sample: Sample) -> tuple[int, TokenIds]:
    """Adds the new part of the prompt, if any, then the sampled ids; returns (leaf, ids from the root)."""
    rollout_id, attempt = known.chain.rollout_id, known.chain.attempt
    parent, shared = _longest_shared(known.paths, sample.prompt_ids)
    if shared < len(sample.prompt_ids) or parent is None:
        parent = _insert_node(db, _NodeDraft(rollout_id, attempt, parent, shared, sample.prompt_ids[shared:]))
    leaf = _insert_node(
        db, _NodeDraft(rollout_id, attempt, parent, len(sample.prompt_ids), sample.sampled_ids, sample.logprobs)
    )
    return leaf, np.concatenate([sample.prompt_ids, sample.sampled_ids]).astype(np.int32)


def _insert_node(db: Any, node: _NodeDraft) -> int:
    cursor = db.execute(
        "INSERT INTO nodes(rollout_id, attempt, parent, start, sampled, ids, logprobs) VALUES(?,?,?,?,?,?,?)",
        (
            node.rollout_id,
            node.attempt,
            node.parent,
            node.start,
            int(node.logprobs is not None),
            node.ids.astype("<i4").tobytes(),
            None if node.logprobs is None else node.logprobs.astype("<f4").tobytes(),
        ),
    )
    return int(cursor.lastrowid)


def _longest_shared(paths: Sequence[tuple[int, TokenIds]], prompt: TokenIds) -> tuple[int | None, int]:
    """The stored path that shares the longest prefix with `prompt`, and that prefix's length."""
    best: tuple[int | None, int] = (None, 0)
    longest = max((len(ids) for _, ids in paths), default=0)
    for node, ids in reversed(paths):
        if best[1] == longest:
            break  # a conversation that just goes on, which is nearly every call
        length = min(len(ids), len(prompt))
        differing = np.flatnonzero(ids[:length] != prompt[:length])
        shared = int(differing[0]) if len(differing) else length
        if shared > best[1]:
            best = (node, shared)
    return best
