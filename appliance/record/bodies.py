"""Raw bodies of calls inside the record: consecutive requests share almost everything, so each is kept as what is new.

A call's request, neutral messages and response build on the same bytes of an earlier call (`base`): the call of the
rollout whose request begins alike, or the run's `frame` for that harness, the first call that it ever made. Where
request and messages mostly begin as the base's do, only how far they do and what follows is kept, as a zstd frame
behind a mark; else all three are one zstd frame with the base's as dictionary. So what a call costs is what is new in
it. Decoding needs nothing but the rows that `base` leads to, all of one run.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import zstandard

from appliance.errors import StoreError

LEVEL = 3
"""Of zstd. A higher level was a quarter slower and gave 2 %; see LOG.md."""
NEWEST = 4
"""Calls of a rollout that are looked at for a base: a main conversation and a few that run beside it."""
_MARK = b"\1"
"""Before a frame that holds what follows the shared beginnings; zstd's own frames begin with another byte."""
_SHARED = struct.Struct("<II")
_NEW_SHARE = 4
"""At most one part in this many is new where only what is new is kept."""
_REACH = 1 << 13
"""Bytes of the base's ends that such a frame is compressed with: the turns before are what new ones are like."""
_TURN_BYTES = 64
"""A request that parts from an earlier one this near to its end goes on from it: only brackets and settings differ."""


@dataclass(frozen=True, slots=True)
class Bodies:
    """What one call carried."""

    call_id: int
    wire: str
    request: bytes
    response: bytes
    messages: bytes

    @property
    def ends(self) -> bytes:
        """The last of each, as a dictionary for what comes next."""
        return self.request[-_REACH:] + self.messages[-_REACH:] + self.response[-_REACH:]

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
        base, shared = _alike([*([frame] if frame else []), *chain.newest], bodies.request)
        data = _packed(bodies, base, shared)
        db.execute(
            "INSERT INTO bodies(call_id, base, request_bytes, messages_bytes, data) VALUES(?,?,?,?,?)",
            (bodies.call_id, base.call_id if base else None, len(bodies.request), len(bodies.messages), data),
        )
        if base is not None and shared + _TURN_BYTES >= len(base.request):
            chain.newest = [known for known in chain.newest if known is not base]  # the new one holds all of it
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
        self._known: dict[int, Bodies | None] = {}

    def one(self, call_id: int, wire: str = "") -> Bodies | None:
        """The bodies of a call; None when retention took them. StoreError names a call whose bytes are damaged."""
        self._read(call_id)
        found = self._known[call_id]
        return replace(found, wire=wire) if found is not None else None

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

    def _decode(self, number: int, row: Any) -> Bodies:
        _, base, request, messages, data = row
        before = self._known[base] if base is not None else Bodies(0, "", b"", b"", b"")
        if before is None:
            raise StoreError(f"call {number}: call {base}, which its bodies build on, is gone", "see `corral db check`")
        try:
            whole = _unpacked(data, before, request)
        except (zstandard.ZstdError, struct.error) as error:
            raise StoreError(f"call {number}: its bodies are damaged ({error})", "see `corral db check`") from error
        end = request + messages
        return Bodies(number, "", whole[:request], whole[end:], whole[request:end])


def _packed(bodies: Bodies, base: Bodies | None, shared: int) -> bytes:
    """What the record keeps of `bodies`; `shared`: how far its request begins as the base's."""
    if base is None:
        return compress(bodies.whole, b"")
    told = _shared(base.messages, bodies.messages)
    new = bodies.request[shared:] + bodies.messages[told:]
    if len(new) * _NEW_SHARE > shared + told:
        return compress(bodies.whole, base.whole)
    return _MARK + compress(_SHARED.pack(shared, told) + new + bodies.response, base.ends)


def _unpacked(data: bytes, base: Bodies, request_bytes: int) -> bytes:
    """Request, messages and response as one, out of what `_packed` made."""
    if data[:1] != _MARK:
        return decompress(data, base.whole)
    plain = decompress(data[1:], base.ends)
    shared, told = _SHARED.unpack_from(plain)
    new = request_bytes - shared + _SHARED.size
    return base.request[:shared] + plain[_SHARED.size : new] + base.messages[:told] + plain[new:]


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


def _alike(candidates: Sequence[Bodies], request: bytes) -> tuple[Bodies | None, int]:
    """The candidate whose request shares the longest beginning, the newest of equals; and that beginning's length."""
    best: tuple[Bodies | None, int] = (None, -1)
    for candidate in reversed(candidates):
        shared = _shared(candidate.request, request)
        if shared > best[1]:
            best = candidate, shared
        if shared + _TURN_BYTES >= len(candidate.request) and shared > _TURN_BYTES:
            break  # it goes on from this one, which is nearly every call
    return best


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
