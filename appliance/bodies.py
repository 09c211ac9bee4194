"""Raw bodies of calls inside the record: consecutive requests share almost everything, so each is kept as what is new.

A call's request, neutral messages and response are one zstd frame, compressed with the same bytes of an earlier call
(`base`) as its dictionary: the call of the rollout whose request begins alike, or the run's `frame` for that harness,
the first call that it ever made. Decoding needs nothing but the rows that `base` leads to, all of one run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import zstandard

from appliance.errors import StoreError

LEVEL = 3
"""Of zstd. A higher level was a quarter slower and gave 2 %; see LOG.md."""
NEWEST = 4
"""Calls of a rollout that are looked at for a base: a main conversation and a few that run beside it."""


@dataclass(frozen=True, slots=True)
class Bodies:
    """What one call carried."""

    call_id: int
    wire: str
    request: bytes
    response: bytes
    messages: bytes

    @property
    def whole(self) -> bytes:
        """All three in one: new text of the request stands again in the messages, that of these in the response."""
        return self.request + self.messages + self.response


@dataclass(slots=True)
class Chain:
    """One attempt of a rollout, with the newest bodies that were written in it."""

    rollout_id: int
    attempt: int
    run_id: str
    harness: str
    newest: list[Bodies] = field(default_factory=list)


class BodyLog:
    """Writes and reads bodies; remembers the frame of each run, harness and wire."""

    def __init__(self) -> None:
        self._frames: dict[tuple[str, str, str], Bodies] = {}

    def add(self, db: Any, chain: Chain, bodies: Bodies) -> None:
        """Adds the row of one call inside the caller's transaction; `db` executes SQL."""
        frame = self._frame(db, chain, bodies)
        base = _alike([*([frame] if frame else []), *chain.newest], bodies.request)
        data = compress(bodies.whole, base.whole if base else b"")
        db.execute(
            "INSERT INTO bodies(call_id, base, request_bytes, messages_bytes, data) VALUES(?,?,?,?,?)",
            (bodies.call_id, base.call_id if base else None, len(bodies.request), len(bodies.messages), data),
        )
        chain.newest = [*chain.newest[1 - NEWEST :], bodies]

    def _frame(self, db: Any, chain: Chain, bodies: Bodies) -> Bodies | None:
        """The frame for this harness; None when `bodies` became it just now."""
        key = (chain.run_id, chain.harness, bodies.wire)
        if key not in self._frames:
            found = db.execute("SELECT call_id FROM frames WHERE run_id=? AND harness=? AND wire=?", key).fetchone()
            if found is None:
                db.execute("INSERT INTO frames(run_id, harness, wire, call_id) VALUES(?,?,?,?)", (*key, bodies.call_id))
                return None
            frame = Reading(lambda sql, *a: db.execute(sql, a).fetchall()).one(found[0], bodies.wire)
            if frame is None:
                return None
            self._frames = {**dict(list(self._frames.items())[-31:]), key: frame}
        return self._frames[key]


class Reading:
    """Bodies read back, each decoded once; `rows` reads from the record."""

    def __init__(self, rows: Callable[..., Sequence[Any]]) -> None:
        self._rows = rows
        self._known: dict[int, tuple[int, int, bytes] | None] = {}

    def one(self, call_id: int, wire: str = "") -> Bodies | None:
        """The bodies of a call; None when retention took them. StoreError names a call whose bytes are damaged."""
        self._read(call_id)
        found = self._known[call_id]
        if found is None:
            return None
        request, messages, whole = found
        return Bodies(call_id, wire, whole[:request], whole[request + messages :], whole[request : request + messages])

    def _read(self, call_id: int) -> None:
        """Walks down to a call without a base or one that is known, then decodes upwards."""
        todo: dict[int, Any] = {}
        here: int | None = call_id
        while here is not None and here not in self._known:
            if here in todo:
                raise StoreError(f"call {call_id}: its bodies build on each other in a circle", "see `corral db check`")
            found = self._rows("SELECT * FROM bodies WHERE call_id=?", here)
            todo[here] = found[0] if found else None
            here = found[0][1] if found else None
        for number, row in reversed(todo.items()):
            self._known[number] = None if row is None else self._decode(number, row)

    def _decode(self, number: int, row: Any) -> tuple[int, int, bytes]:
        _, base, request, messages, data = row
        before = self._known[base] if base is not None else (0, 0, b"")
        if before is None:
            raise StoreError(f"call {number}: call {base}, which its bodies build on, is gone", "see `corral db check`")
        try:
            return request, messages, decompress(data, before[2])
        except zstandard.ZstdError as error:
            raise StoreError(f"call {number}: its bodies are damaged ({error})", "see `corral db check`") from error


def compress(data: bytes, before: bytes) -> bytes:
    """One zstd frame of `data`, with `before` as a raw dictionary that stays in reach of the whole window."""
    reach = (len(data) + len(before)).bit_length()
    settings = zstandard.ZstdCompressionParameters.from_level(
        LEVEL,
        source_size=len(data),
        dict_size=len(before),
        window_log=max(zstandard.WINDOWLOG_MIN, min(27, reach)),
        write_checksum=True,
        write_content_size=True,
    )
    return zstandard.ZstdCompressor(compression_params=settings, dict_data=_dictionary(before)).compress(data)


def decompress(data: bytes, before: bytes) -> bytes:
    """What `compress` was given; ZstdError when a byte of it was changed."""
    return zstandard.ZstdDecompressor(dict_data=_dictionary(before)).decompress(data)


def _dictionary(before: bytes) -> zstandard.ZstdCompressionDict | None:
    return zstandard.ZstdCompressionDict(before, dict_type=zstandard.DICT_TYPE_RAWCONTENT) if len(before) >= 8 else None


def _alike(candidates: Sequence[Bodies], request: bytes) -> Bodies | None:
    """The candidate whose request shares the longest beginning; the newest of equals."""
    return max(candidates, key=lambda c: (_shared(c.request, request), c.call_id), default=None)


def _shared(a: bytes, b: bytes) -> int:
    """Length of the common beginning, by halving: comparing slices costs far less than looping over bytes."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
