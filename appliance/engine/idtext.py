"""Token ids as JSON text, written and compared without making a Python number of each. Pure.

A prompt goes to the engine and comes back as proof with every call, so what an id costs here is paid for the whole
length of a conversation, call after call.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from appliance.types import TokenIds

_WIDTH = 8
"""Bytes of an id in a written list: JSON lets it stand right-aligned behind spaces, before its comma."""
_LARGEST = (1 << 20) - 1
"""No vocabulary is that large; a list with a larger id is written number by number."""
_SPACE = b" \t\r\n"
_ids = msgspec.json.Decoder(list[int])


class IdText:
    """Writes lists of ids; keeps one table of what each id is written as, which grows with the largest id seen."""

    def __init__(self) -> None:
        self._table: NDArray[np.uint64] = np.zeros(0, np.uint64)

    def written(self, ids: TokenIds) -> bytes:
        """`ids`, none negative, as a JSON list."""
        if not len(ids):
            return b"[]"
        largest = int(ids.max())
        if largest > _LARGEST or int(ids.min()) < 0:
            return msgspec.json.encode(ids.tolist())
        if largest >= len(self._table):
            self._table = _table(1 << largest.bit_length())
        return b"[%b]" % self._table[ids].tobytes()[:-1]


def is_list_of(text: bytes | memoryview, ids: TokenIds, written: bytes) -> bool:
    """Whether the JSON in `text` is exactly `ids`; `written` is one spelling of them.

    No white space can stand inside a number, so two lists are the same when they are without it.
    """
    if bytes(text).translate(None, _SPACE) == written.translate(None, _SPACE):
        return True
    try:
        known: list[int] = ids.tolist()
        return _ids.decode(text) == known
    except msgspec.DecodeError:
        return False


def _table(size: int) -> NDArray[np.uint64]:
    """What each id below `size` is written as."""
    numbers = np.arange(size)
    text = np.full((size, _WIDTH), ord(","), np.uint8)
    for place in range(_WIDTH - 1):
        power = 10 ** (_WIDTH - 2 - place)
        digits = (numbers // power % 10 + ord("0")).astype(np.uint8)
        text[:, place] = np.where((numbers >= power) | (power == 1), digits, ord(" "))
    table: NDArray[np.uint64] = text.view(np.uint64).reshape(size)
    return table
