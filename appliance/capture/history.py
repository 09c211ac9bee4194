"""Which recorded call a request continues. Pure.

Histories are compared in canonical form (`Message.canonical`), so an echoed turn is found again whatever
the harness did to ids, reasoning, outer white space or the white space of arguments. Each prefix of a
conversation has one running digest. A request that begins word for word as a recorded call did is digested
only from there on, so that a call costs what is new in it and one comparison of what is old.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from appliance.types import Message, Request, Tool

T = TypeVar("T")
_RECENT = 16
"""Recorded conversations a request is compared with word for word; all others are found by digest."""


@dataclass(frozen=True, slots=True)
class Place(Generic[T]):
    """Where a request stands among the recorded calls.

    `key` is equal for a retry, streamed or not; `history` for a request that says the same, whatever its settings.
    `call` is the recorded call whose messages and answer are canonically the first `n` of the request's, or None.
    `messages` are the request's, those that are recorded already by the objects that are kept.
    """

    key: bytes
    history: bytes
    call: T | None = None
    n: int = 0
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class _Conversation:
    """What a recorded call said with its answer, and the digest of it all."""

    tools: tuple[Tool, ...]
    messages: tuple[Message, ...]
    digest: bytes

    def begins(self, request: Request) -> bool:
        """Whether `request` begins so word for word.

        The last message is the recorded answer, which comes back as an echo: it is compared in canonical form.
        """
        n, known, messages = len(self.messages), self.messages, request.messages
        if n > len(messages) or self.tools != request.tools or known[:-1] != messages[: n - 1]:
            return False
        return known[-1].canonical() == messages[n - 1].canonical()


class History(Generic[T]):
    """The calls of one rollout by what they said: `look` where a request stands, `add` the call it became."""

    def __init__(self) -> None:
        self._calls: dict[bytes, list[tuple[Message, T]]] = {}
        self._recent: list[_Conversation] = []

    def look(self, request: Request) -> Place[T]:
        """The longest recorded call that `request` continues, and the digests of what it says.

        Only calls with the same tools count: tools stand at the head of the prompt.
        """
        begun = self._begins(request)
        start, digest = (len(begun.messages), begun.digest) if begun else (0, tools_digest(request.tools))
        messages = begun.messages[:-1] + request.messages[start - 1 :] if begun else request.messages
        found, n = self._calls.get(digest) if start else None, start
        for i, message in enumerate(request.messages[start:], start + 1):
            digest = _digest(digest, message.canonical())
            calls = self._calls.get(digest)
            if calls is not None:
                found, n = calls, i
        key = _digest(digest, (request.wire, request.max_tokens, request.settings))
        if found is None:
            return Place(key, digest, messages=messages)
        return Place(key, digest, _echoed(found, request.messages[n - 1]), n, messages)

    def add(self, request: Request, history: bytes, answer: Message, call: T) -> None:
        """Remember `call`; `history` is its place's. Several may read alike: see `_echoed`.

        A conversation that goes on is remembered by its newest call: earlier ones are found by digest.
        """
        digest = _digest(history, answer.canonical())
        self._calls.setdefault(digest, []).append((answer, call))
        before = self._begins(request)
        said = _Conversation(request.tools, (*request.messages, answer), digest)
        self._recent = [*(known for known in self._recent if known is not before), said][-_RECENT:]

    def _begins(self, request: Request) -> _Conversation | None:
        """The longest recent conversation that `request` begins with."""
        best: _Conversation | None = None
        for known in reversed(self._recent):
            if (best is None or len(known.messages) > len(best.messages)) and known.begins(request):
                best = known
        return best


def _echoed(calls: Sequence[tuple[Message, T]], echo: Message) -> T:
    """Of calls whose answers read alike, the one whose tool-call ids came back, then whose reasoning, then the last."""

    def likeness(answer: Message) -> tuple[bool, bool]:
        ids = [call.id for call in answer.tool_calls]
        return bool(ids) and ids == [call.id for call in echo.tool_calls], answer.reasoning == echo.reasoning

    return max(reversed(calls), key=lambda known: likeness(known[0]))[1]


def request_key(request: Request) -> bytes:
    """Digest under which a retry equals the request it repeats, streamed or not."""
    return History[None]().look(request).key


def tools_digest(tools: Iterable[Tool]) -> bytes:
    """Digest of the offered tools, from which the digests of conversations run on."""
    return _digest(b"", tuple((t.namespace, t.name, t.description, t.parameters, t.kind) for t in tools))


def _digest(before: bytes, value: object) -> bytes:
    return hashlib.blake2b(before + repr(value).encode("utf-8", "surrogatepass"), digest_size=16).digest()
