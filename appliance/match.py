"""Which recorded call a request continues. Pure.

Histories are compared in canonical form (`Message.canonical`), so an echoed turn is found again whatever
the harness did to ids, reasoning, outer white space or the white space of arguments. Each prefix of a
conversation has one running digest; looking one up costs the same however long it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from appliance.types import Message, Request, Tool

T = TypeVar("T")


class History(Generic[T]):
    """The calls of one rollout by what they said: `add` one, then find the longest that a request continues."""

    def __init__(self) -> None:
        self._calls: dict[bytes, T] = {}

    def add(self, request: Request, answer: Message, call: T) -> None:
        """Remember `call`: its messages and its answer. Of two calls that read alike, the later one counts."""
        *_, key = _digests(request.tools, (*request.messages, answer))
        self._calls[key] = call

    def longest(self, request: Request) -> tuple[T, int] | None:
        """(call, n): the call whose messages and answer are canonically the first n of the request's; or None.

        Only calls with the same tools count: tools stand at the head of the prompt.
        """
        digests = list(_digests(request.tools, request.messages))
        for n in range(len(digests), 0, -1):
            call = self._calls.get(digests[n - 1])
            if call is not None:
                return call, n
        return None


def request_key(request: Request) -> bytes:
    """Digest under which a retry equals the request it repeats, streamed or not."""
    *_, history = _digests(request.tools, request.messages)
    return _digest(history, (request.wire, request.max_tokens, request.settings))


def _digests(tools: Iterable[Tool], messages: Iterable[Message]) -> Iterator[bytes]:
    """The running digest after each message."""
    digest = _digest(b"", tuple((t.namespace, t.name, t.description, t.parameters, t.kind) for t in tools))
    for message in messages:
        digest = _digest(digest, message.canonical())
        yield digest


def _digest(before: bytes, value: object) -> bytes:
    return hashlib.blake2b(before + repr(value).encode("utf-8", "surrogatepass"), digest_size=16).digest()
