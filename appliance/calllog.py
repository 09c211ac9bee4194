"""Calls and their tokens inside the record. Tokens are stored once a node: a call adds only what its prompt does not
share with an earlier call of the same rollout, as new nodes; nothing is ever split or rewritten (see schema.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import zstandard

from appliance.errors import StoreError
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


class Record(Protocol):
    """What this module needs of the store: prepared reads, and one write transaction."""

    def rows(self, sql: str, *arguments: object) -> list[Any]:
        """Rows, addressable by column name."""
        ...

    def write(self) -> AbstractContextManager[Any]:
        """A connection inside one immediate transaction."""
        ...


@dataclass(slots=True)
class _Paths:
    """Token paths of one rollout attempt that are already stored: (leaf node, ids from the root)."""

    attempt: int
    paths: list[tuple[int, TokenIds]] = field(default_factory=list)


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
        self._known: dict[int, _Paths] = {}
        self._zip = zstandard.ZstdCompressor(level=3)
        self._unzip = zstandard.ZstdDecompressor()

    def forget(self, rollout_id: int) -> None:
        """Drops what is remembered of a rollout: it ended, or a new attempt began."""
        self._known.pop(rollout_id, None)

    def add(self, rollout_id: int, draft: CallDraft) -> int:
        """Commits one call of the rollout's current attempt in one transaction and returns its id (I1, I3)."""
        if rollout_id not in self._known:
            self._known[rollout_id] = self._read_paths(rollout_id)
        known = self._known[rollout_id]
        stored: tuple[int, TokenIds] | None = None
        with self._record.write() as db:
            if draft.sample is not None:
                stored = _add_nodes(db, rollout_id, known, draft.sample)
            call_id = self._insert(db, rollout_id, known.attempt, stored[0] if stored else None, draft)
            db.execute("UPDATE rollouts SET last_event_at=? WHERE id=?", (draft.ended_at, rollout_id))
        if stored:
            known.paths.append(stored)
        return call_id

    def read(self, rollout_id: int) -> list[Call]:
        """The calls of the latest attempt, in order, with their exact ids and logprobs."""
        attempt = self._attempt(rollout_id)
        paths = self._node_paths(rollout_id, attempt)
        found = self._record.rows(
            "SELECT * FROM calls WHERE rollout_id=? AND attempt=? ORDER BY sequence", rollout_id, attempt
        )
        return [self._call(row, paths) for row in found]

    def conversations(self, rollout_id: int) -> list[bytes]:
        """The neutral JSON of each call of the latest attempt, in order."""
        found = self._record.rows(
            "SELECT messages FROM calls WHERE rollout_id=? AND attempt=? ORDER BY sequence",
            rollout_id,
            self._attempt(rollout_id),
        )
        return [self._unzip.decompress(row["messages"]) for row in found]

    def _attempt(self, rollout_id: int) -> int:
        found = self._record.rows("SELECT attempt FROM rollouts WHERE id=?", rollout_id)
        if not found:
            raise StoreError(f"the record holds no rollout {rollout_id}", "see `corral status`")
        return int(found[0]["attempt"])

    def _read_paths(self, rollout_id: int) -> _Paths:
        attempt = self._attempt(rollout_id)
        leaves = {
            row["leaf"]
            for row in self._record.rows("SELECT leaf FROM calls WHERE rollout_id=? AND attempt=?", rollout_id, attempt)
        }
        paths = self._node_paths(rollout_id, attempt)
        return _Paths(attempt, [(node, ids) for node, (ids, _) in paths.items() if node in leaves])

    def _node_paths(self, rollout_id: int, attempt: int) -> dict[int, tuple[TokenIds, bytes | None]]:
        """Node → (ids from the root to its end, its logprobs). A node's parent always has a smaller id."""
        paths: dict[int, tuple[TokenIds, bytes | None]] = {}
        found = self._record.rows(
            "SELECT * FROM nodes WHERE rollout_id=? AND attempt=? ORDER BY id", rollout_id, attempt
        )
        for row in found:
            own = np.frombuffer(row["ids"], dtype="<i4").astype(np.int32)
            above = paths[row["parent"]][0][: row["start"]] if row["parent"] is not None else own[:0]
            paths[row["id"]] = (np.concatenate([above, own]), row["logprobs"])
        return paths

    def _insert(self, db: Any, rollout_id: int, attempt: int, leaf: int | None, draft: CallDraft) -> int:
        sample = draft.sample
        values = {
            "rollout_id": rollout_id,
            "attempt": attempt,
            "sequence": draft.sequence,
            "wire": draft.wire,
            "leaf": leaf,
            "num_prompt_tokens": len(sample.prompt_ids) if sample else 0,
            "num_sampled_tokens": len(sample.sampled_ids) if sample else 0,
            "request": self._zip.compress(draft.request_bytes),
            "response": self._zip.compress(draft.response_bytes),
            "messages": self._zip.compress(draft.messages_json),
            "stop_reason": draft.stop_reason,
            "policy_version": sample.policy_version if sample else None,
            "started_at": draft.started_at,
            "ended_at": draft.ended_at,
            "delivered": int(draft.delivered),
            "lineage": draft.lineage,
        }
        names = ", ".join(values)
        marks = ", ".join(f":{name}" for name in values)
        return int(db.execute(f"INSERT INTO calls({names}) VALUES({marks})", values).lastrowid)

    def _call(self, row: Any, paths: dict[int, tuple[TokenIds, bytes | None]]) -> Call:
        sample = None
        if row["leaf"] is not None:
            ids, logprobs = paths[row["leaf"]]
            cut = row["num_prompt_tokens"]
            behaviour: Logprobs = np.frombuffer(logprobs or b"", dtype="<f4").astype(np.float32)
            sample = Sample(ids[:cut], ids[cut:], behaviour, StopReason(row["stop_reason"]), row["policy_version"])
        return Call(
            id=row["id"],
            rollout_id=row["rollout_id"],
            sequence=row["sequence"],
            wire=row["wire"],
            sample=sample,
            request_bytes=self._unzip.decompress(row["request"]),
            response_bytes=self._unzip.decompress(row["response"]),
            started_at=row["started_at"],
            ended_at=row["ended_at"],
            delivered=bool(row["delivered"]),
            lineage=row["lineage"],
            stop_reason=StopReason(row["stop_reason"]),
        )


def _add_nodes(db: Any, rollout_id: int, known: _Paths, sample: Sample) -> tuple[int, TokenIds]:
    """Adds the new part of the prompt, if any, then the sampled ids; returns (leaf, ids from the root)."""
    parent, shared = _longest_shared(known.paths, sample.prompt_ids)
    if shared < len(sample.prompt_ids) or parent is None:
        parent = _insert_node(db, _NodeDraft(rollout_id, known.attempt, parent, shared, sample.prompt_ids[shared:]))
    leaf = _insert_node(
        db, _NodeDraft(rollout_id, known.attempt, parent, len(sample.prompt_ids), sample.sampled_ids, sample.logprobs)
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
    for node, ids in paths:
        length = min(len(ids), len(prompt))
        differing = np.flatnonzero(ids[:length] != prompt[:length])
        shared = int(differing[0]) if len(differing) else length
        if shared > best[1]:
            best = (node, shared)
    return best
