"""The capture proxy: harnesses call it as their model API; it answers from an answerer and records every call.

A call runs in a task of its own, apart from the connection that asked for it, and is committed to the
record before any byte of its answer is sent (I3). So it is recorded whole or not at all: a client that
leaves early leaves a committed call marked undelivered; a rollout that is closed cancels what is in flight.
A repeated request gets the recorded answer, also from a later proxy over the same record; two at once share
one sample. The record is written by one thread, so that no call waits for another's disk.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Protocol

import anyio
import anyio.abc
import numpy as np
from anyio import to_thread

from appliance.capture.server import (
    WIRES,
    Pending,
    Refusal,
    WebLimits,
    build_app,
    loopback_socket,
    serving,
    unix_socket,
)
from appliance.capture.session import Answerer, Limits, LiveCall, Prompter, Recorded, Session, Settled
from appliance.errors import ApplianceError, CaptureError, RolloutError, StoreError
from appliance.record.calls import CallDraft
from appliance.record.conversation import from_neutral_json, neutral_json
from appliance.types import Answer, Call, Request, Sample

__all__ = ["Answerer", "Limits", "Prompter", "Proxy", "Session", "Settled"]

SOCKET_NAME = "proxy.sock"
_CLOSE_S = 5.0


class Record(Protocol):
    """What the proxy needs of the store."""

    def add_call(self, rollout_id: int, draft: CallDraft) -> int:
        """Commit one call; its id."""
        ...

    def mark_delivered(self, call_id: int, delivered: bool) -> None:
        """Note whether the harness got the answer."""
        ...

    def calls(self, rollout_id: int) -> Sequence[Call]:
        """The calls of the rollout's current attempt, in order."""
        ...

    def conversations(self, rollout_id: int) -> Sequence[bytes]:
        """The neutral JSON of each of them."""
        ...


class Proxy:
    """Async context manager: serves on `directory`/proxy.sock (and 127.0.0.1:`port`) while it is open.

    `directory` is what a sandbox mounts. `answerer` answers the sessions that were opened without their own.
    """

    def __init__(
        self,
        store: Record,
        directory: Path,
        limits: Limits | None = None,
        answerer: Answerer | None = None,
        port: int | None = None,
    ) -> None:
        self.directory = directory
        self.port = port
        self._store, self._limits, self._answerer = store, limits or Limits(), answerer
        self._sessions: dict[str, Session] = {}
        self._by_digest: dict[bytes, Session] = {}
        self._stack = AsyncExitStack()
        self._group: anyio.abc.TaskGroup | None = None
        self._writer = anyio.CapacityLimiter(1)

    async def __aenter__(self) -> Proxy:
        sockets = [unix_socket(self.directory / SOCKET_NAME)]
        if self.port is not None:
            sockets.append(loopback_socket(self.port))
            self.port = sockets[-1].getsockname()[1]
        app = build_app(self, WebLimits(self._limits.max_body_bytes, self._limits.keep_alive_s))
        async with AsyncExitStack() as stack:
            self._group = await stack.enter_async_context(anyio.create_task_group())
            await stack.enter_async_context(serving(app, sockets))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        with anyio.CancelScope(shield=True):
            for token in list(self._sessions):
                await self.close(token)
        try:
            return await self._stack.__aexit__(kind, error, trace)
        finally:
            (self.directory / SOCKET_NAME).unlink(missing_ok=True)

    # ------------------------------------------------------------------ sessions

    def open(self, rollout_id: int, token: str, answerer: Answerer | None = None, step: int = 0) -> Session:
        """From now on `token` names this rollout, in a step of its task. What is on the record of it is known again."""
        chosen = answerer or self._answerer
        if chosen is None or token in self._sessions:
            raise ValueError("a session needs an answerer and a token of its own")
        session = Session(rollout_id, chosen, self._limits, anyio.Semaphore(self._limits.max_concurrent), step=step)
        for call, text in zip(self._store.calls(rollout_id), self._store.conversations(rollout_id), strict=True):
            try:
                session.restore(call, from_neutral_json(text)[2])
            except ValueError as e:
                raise StoreError(f"call {call.id} on the record cannot be read: {e}") from e
        self._sessions[token] = self._by_digest[_digest(token)] = session
        return session

    async def close(self, token: str) -> Settled:
        """`token` is unknown from now on; calls in flight are cancelled and leave nothing on the record."""
        session = self._sessions.pop(token)
        del self._by_digest[_digest(token)]
        with anyio.move_on_after(_CLOSE_S, shield=True):
            while session.scopes:
                session.idle = anyio.Event()
                for scope in list(session.scopes):
                    scope.cancel()
                await session.idle.wait()
        return session.settled

    # ------------------------------------------------------------------ the desk behind the routes

    def knows(self, token: str) -> bool:
        """Whether `token` names an open rollout."""
        return _digest(token) in self._by_digest

    async def take(self, token: str, request: Request, headers: Mapping[str, str]) -> Pending:
        """Start the call, or find the one it repeats; raises Refusal."""
        session = self._by_digest.get(_digest(token))
        if session is None or self._group is None:  # closed while the body was being read
            raise Refusal(401, "unknown session token", "invalid_api_key")
        place = session.history.look(request)
        request = replace(request, messages=place.messages)  # what was said before is held once
        call = session.repeated(place, headers)
        if call is not None:
            return call
        call = session.admit(request, place, headers)
        try:
            call.prompt_ids = await session.prompt_ids(request, place)
        except BaseException as error:
            refusal = error if isinstance(error, Refusal) else Refusal(503, "the client left", "cancelled")
            session.drop(call, refusal)
            call.done.set()
            raise
        self._group.start_soon(self._run, session, call)
        return call

    async def count(self, token: str, request: Request) -> int:
        """Tokens of the prompt that `request` would be fed; raises Refusal."""
        session = self._by_digest.get(_digest(token))
        if session is None:
            raise Refusal(401, "unknown session token", "invalid_api_key")
        return await session.count(request)

    def note_delivery(self, pending: Pending, delivered: bool) -> None:
        """Keep the record's `delivered` right; once an answer arrived anywhere, it has been delivered."""
        recorded = pending.recorded if isinstance(pending, LiveCall) else None
        if recorded is None:
            return
        recorded.arrived = recorded.arrived or delivered
        if not recorded.arrived and pending.num_waiting:
            return
        if recorded.delivered != recorded.arrived:
            recorded.delivered = recorded.arrived
            self._store.mark_delivered(recorded.call_id, recorded.arrived)

    # ------------------------------------------------------------------ one call

    async def _run(self, session: Session, call: LiveCall) -> None:
        """The call from dispatch to record, whatever becomes of the connections that wait for it."""
        scope = anyio.CancelScope()
        session.scopes.add(scope)
        refusal = Refusal(503, "this rollout is over", "cancelled")
        try:
            with scope:
                async with session.gate:
                    await self._answer(session, call)
        except (RolloutError, ApplianceError) as error:
            part = error if isinstance(error, RolloutError) else CaptureError("not_recorded", error.message)
            session.errors[call.key] = part
            refusal = Refusal(503, f"{part.label}: {part.message}", "unavailable", retry_after_s=2)
        finally:
            if call.recorded is None:
                session.drop(call, refusal)
            call.done.set()
            session.scopes.discard(scope)
            if not session.scopes:
                session.idle.set()

    async def _answer(self, session: Session, call: LiveCall) -> None:
        assert call.request is not None
        started_at = time.time()
        answer, sample = await session.answerer.answer(session, call.request, call.prompt_ids)
        _check_whole(call, sample)
        answer = _with_ids(answer, call.call_id)
        with anyio.CancelScope(shield=True):  # from here on it is committed, whoever leaves or closes
            call_id, delivered = await to_thread.run_sync(
                self._commit, session, call, answer, sample, started_at, limiter=self._writer
            )
        session.note(call, answer, sample, Recorded(call_id, delivered, call.lineage))
        if delivered and not call.num_waiting:
            self.note_delivery(call, False)

    def _commit(
        self, session: Session, call: LiveCall, answer: Answer, sample: Sample | None, started_at: float
    ) -> tuple[int, bool]:
        """Write the call, in the record's own thread; only then may anyone see its answer. Its id, and `delivered`."""
        request = call.request
        assert request is not None
        renderer = session.answerer.renderer
        draft = CallDraft(
            sequence=call.sequence,
            wire=request.wire,
            request_bytes=request.raw,
            response_bytes=_response_bytes(request, answer, call.call_id),
            messages_json=neutral_json(request, answer.message),
            sample=sample,
            stop_reason=str(answer.stop_reason),
            started_at=started_at,
            ended_at=time.time(),
            delivered=call.num_waiting > 0,
            lineage=call.lineage.text(),
            template=renderer.fingerprint if renderer is not None else "",
        )
        return self._store.add_call(session.rollout_id, draft), draft.delivered


def _digest(token: str) -> bytes:
    """What is compared instead of a token: how long that takes then tells nothing about the token."""
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()


def _check_whole(call: LiveCall, sample: Sample | None) -> None:
    """I2: what was fed is what was rendered, and the policy never answers without ids."""
    if call.prompt_ids is None:
        return
    if sample is None:
        raise CaptureError("no_ids", f"call {call.call_id} was answered without token ids")
    if not np.array_equal(sample.prompt_ids, call.prompt_ids):
        raise CaptureError("prompt_differs", f"call {call.call_id}: the engine was fed other ids than were rendered")


def _with_ids(answer: Answer, call_id: str) -> Answer:
    """Tool-call ids that no other call of the rollout has."""
    calls = tuple(replace(c, id=f"call_{call_id}_{i}") for i, c in enumerate(answer.message.tool_calls))
    return replace(answer, message=replace(answer.message, tool_calls=calls))


def _response_bytes(request: Request, answer: Answer, call_id: str) -> bytes:
    """The answer's bytes as sent to a client that waited for no keep-alive."""
    wire = WIRES[request.wire]
    if not request.stream:
        return bytes(wire.answer_json(request, answer, call_id))
    deltas = wire.stream_answer(request, answer, call_id)
    return b"".join([wire.stream_start(request, call_id), *deltas, wire.stream_end(request, answer, call_id)])
