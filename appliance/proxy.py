"""The capture proxy: harnesses call it as their model API; it answers from an answerer and records every call.

A call runs in a task of its own, apart from the connection that asked for it, and is committed to the
record before any byte of its answer is sent (I3). So it is recorded whole or not at all: a client that
leaves early leaves a committed call marked undelivered; a rollout that is closed cancels what is in flight.
A repeated request gets the recorded answer; two at once share one sample.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Protocol

import anyio
import anyio.abc
import numpy as np

from appliance.calllog import CallDraft
from appliance.errors import ApplianceError, CaptureError, ModelError, RolloutError
from appliance.match import History, request_key
from appliance.types import Answer, Message, Request, Sample, StopReason, TokenIds, Tool
from appliance.web import WIRES, Pending, Refusal, WebLimits, build_app, loopback_socket, serving, unix_socket
from appliance.wire.neutral import neutral_json

SOCKET_NAME = "proxy.sock"
# Headers by which harnesses tell sub-agents and side calls from the main one; kept on the record.
_LINEAGE_HEADERS = (
    "x-openai-subagent",
    "x-codex-parent-thread-id",
    "thread-id",
    "x-codex-window-id",
    "x-claude-code-agent-id",
    "x-session-id",
    "x-parent-session-id",
)
_CLOSE_S = 5.0


class Prompter(Protocol):
    """Messages to prompt ids: `render.Renderer`."""

    def render(self, messages: Sequence[Message], tools: Sequence[Tool], generation: bool = True) -> TokenIds:
        """Ids of a whole conversation."""
        ...

    def graft(
        self, prompt_ids: TokenIds, sampled_ids: TokenIds, new_messages: Sequence[Message], tools: Sequence[Tool]
    ) -> TokenIds:
        """Recorded ids untouched, then the ids of what is new."""
        ...


class Answerer(Protocol):
    """What answers calls: the policy (`answerer.EngineAnswerer`) or a teacher (no renderer, no ids)."""

    @property
    def renderer(self) -> Prompter | None:
        """None for a teacher: its calls have text and no ids."""
        ...

    @property
    def context_length(self) -> int | None:
        """Tokens of prompt and answer together; None for a teacher."""
        ...

    async def answer(
        self, session: Session, request: Request, prompt_ids: TokenIds | None
    ) -> tuple[Answer, Sample | None]:
        """The answer, and for the policy its sample; raises RolloutError."""
        ...


class Record(Protocol):
    """What the proxy needs of the store."""

    def add_call(self, rollout_id: int, draft: CallDraft) -> int:
        """Commit one call; its id."""
        ...

    def mark_delivered(self, call_id: int, delivered: bool) -> None:
        """Note whether the harness got the answer."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """What one rollout may do. Calls and sampled tokens end it; more concurrent calls wait; replays stop loops."""

    max_calls: int = 200
    max_sampled_tokens: int = 200_000
    max_concurrent: int = 8
    max_replays: int = 50
    max_body_bytes: int = 32 << 20
    keep_alive_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Settled:
    """What a closed session saw. `error` is the first failure that was not the policy's; None when all went well.

    `limit_reached`: a limit was met (calls, tokens, context, or the last answer's length), so a harness that
    then ended with an error did so by the policy's doing.
    """

    error: RolloutError | None
    num_calls: int
    num_sampled_tokens: int
    num_replays: int
    limit_reached: bool


@dataclass(eq=False, slots=True)
class _Recorded:
    """A committed call. `arrived`: some client got the whole answer. `delivered`: what the record says."""

    call_id: int
    sample: Sample | None
    delivered: bool
    arrived: bool = False


@dataclass(eq=False, slots=True)
class _Call(Pending):
    """One call from the moment it is taken: what was asked, and what was recorded once it is done."""

    key: bytes = b""
    sequence: int = 0
    request: Request | None = None
    prompt_ids: TokenIds | None = None
    lineage: str = ""
    recorded: _Recorded | None = None


@dataclass(eq=False)
class Session:
    """One open rollout. `calls` holds every call by its request's key, in flight or done."""

    rollout_id: int
    answerer: Answerer
    limits: Limits
    gate: anyio.Semaphore
    history: History[_Recorded] = field(default_factory=History)
    calls: dict[bytes, _Call] = field(default_factory=dict)
    errors: dict[bytes, RolloutError] = field(default_factory=dict)
    scopes: set[anyio.CancelScope] = field(default_factory=set)
    idle: anyio.Event = field(default_factory=anyio.Event)
    num_taken: int = 0
    num_calls: int = 0
    num_sampled_tokens: int = 0
    num_replays: int = 0
    limit_reached: bool = False
    is_cut: bool = False

    @property
    def tokens_left(self) -> int:
        """How many more tokens this rollout may sample."""
        return max(0, self.limits.max_sampled_tokens - self.num_sampled_tokens)

    def refuse_over_limit(self) -> None:
        """Refusal once calls or tokens are used up. In words that no client takes for "compact and try again"."""
        if self.num_taken >= self.limits.max_calls:
            self.limit_reached = True
            raise Refusal(400, f"this rollout has made its {self.limits.max_calls} calls", "rollout_budget")
        if not self.tokens_left:
            self.limit_reached = True
            raise Refusal(400, "this rollout has sampled all that its budget allows", "rollout_budget")

    def prompt_ids(self, request: Request) -> TokenIds | None:
        """Grafted on the recorded call that `request` continues, else rendered; None for a teacher."""
        renderer = self.answerer.renderer
        if renderer is None:
            return None
        found = self.history.longest(request)
        try:
            if found is None or found[0].sample is None:
                ids = renderer.render(request.messages, request.tools)
            else:
                sample, new = found[0].sample, request.messages[found[1] :]
                ids = renderer.graft(sample.prompt_ids, sample.sampled_ids, new, request.tools)
        except ModelError as e:
            raise Refusal(400, e.message, "invalid_request") from e
        limit = self.answerer.context_length
        if limit is not None and len(ids) >= limit:
            self.limit_reached = True
            message = WIRES[request.wire].context_error(len(ids), limit)
            raise Refusal(400, message, "context_length_exceeded")
        return ids


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
        self._stack = AsyncExitStack()
        self._group: anyio.abc.TaskGroup | None = None

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

    def open(self, rollout_id: int, token: str, answerer: Answerer | None = None) -> Session:
        """From now on `token` names this rollout."""
        chosen = answerer or self._answerer
        if chosen is None or token in self._sessions:
            raise ValueError("a session needs an answerer and a token of its own")
        session = Session(rollout_id, chosen, self._limits, anyio.Semaphore(self._limits.max_concurrent))
        self._sessions[token] = session
        return session

    async def close(self, token: str) -> Settled:
        """`token` is unknown from now on; calls in flight are cancelled and leave nothing on the record."""
        session = self._sessions.pop(token)
        with anyio.move_on_after(_CLOSE_S, shield=True):
            while session.scopes:
                session.idle = anyio.Event()
                for scope in list(session.scopes):
                    scope.cancel()
                await session.idle.wait()
        error = next(iter(session.errors.values()), None)
        limit_reached = session.limit_reached or session.is_cut
        return Settled(error, session.num_calls, session.num_sampled_tokens, session.num_replays, limit_reached)

    # ------------------------------------------------------------------ the desk behind the routes

    def knows(self, token: str) -> bool:
        """Whether `token` names an open rollout."""
        return token in self._sessions

    def take(self, token: str, request: Request, headers: Mapping[str, str]) -> Pending:
        """Start the call, or find the one it repeats; raises Refusal."""
        session = self._sessions.get(token)
        if session is None or self._group is None:  # closed while the body was being read
            raise Refusal(401, "unknown session token", "invalid_api_key")
        key = request_key(request)
        call = session.calls.get(key)
        if call is not None:
            session.num_replays += 1
            if session.num_replays > session.limits.max_replays:
                session.limit_reached = True
                raise Refusal(400, f"this rollout repeated a request {session.num_replays} times", "rollout_budget")
            return call
        session.refuse_over_limit()
        prompt_ids = session.prompt_ids(request)
        sequence = session.num_taken
        call = _Call(
            f"{session.rollout_id}x{sequence}", key=key, sequence=sequence, request=request, prompt_ids=prompt_ids,
            lineage=_lineage(headers),
        )  # fmt: skip
        session.num_taken += 1
        session.calls[key] = call
        self._group.start_soon(self._run, session, call)
        return call

    def note_delivery(self, pending: Pending, delivered: bool) -> None:
        """Keep the record's `delivered` right; once an answer arrived anywhere, it has been delivered."""
        recorded = pending.recorded if isinstance(pending, _Call) else None
        if recorded is None:
            return
        recorded.arrived = recorded.arrived or delivered
        if not recorded.arrived and pending.num_waiting:
            return
        if recorded.delivered != recorded.arrived:
            recorded.delivered = recorded.arrived
            self._store.mark_delivered(recorded.call_id, recorded.arrived)

    # ------------------------------------------------------------------ one call

    async def _run(self, session: Session, call: _Call) -> None:
        """The call from dispatch to record, whatever becomes of the connections that wait for it."""
        scope = anyio.CancelScope()
        session.scopes.add(scope)
        try:
            with scope:
                async with session.gate:
                    await self._answer(session, call)
        except (RolloutError, ApplianceError) as error:
            part = error if isinstance(error, RolloutError) else CaptureError("not_recorded", error.message)
            session.errors[call.key] = part
            call.refusal = Refusal(503, f"{part.label}: {part.message}", "unavailable", retry_after_s=2)
        finally:
            if call.recorded is None:
                session.calls.pop(call.key, None)  # so that a retry is a new call
                call.refusal = call.refusal or Refusal(503, "this rollout is over", "cancelled")
            call.done.set()
            session.scopes.discard(scope)
            if not session.scopes:
                session.idle.set()

    async def _answer(self, session: Session, call: _Call) -> None:
        assert call.request is not None
        started_at = time.time()
        answer, sample = await session.answerer.answer(session, call.request, call.prompt_ids)
        _check_whole(call, sample)
        answer = _with_ids(answer, call.call_id)
        self._commit(session, call, answer, sample, started_at)

    def _commit(self, session: Session, call: _Call, answer: Answer, sample: Sample | None, started_at: float) -> None:
        """Write the call; only then may anyone see its answer. No await in here, so it cannot be cut in half."""
        request = call.request
        assert request is not None
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
            lineage=call.lineage,
        )
        call_id = self._store.add_call(session.rollout_id, draft)
        call.recorded = _Recorded(call_id, sample, draft.delivered)
        call.answer = answer
        session.history.add(request, answer.message, call.recorded)
        session.num_calls += 1
        session.is_cut = answer.stop_reason is StopReason.LENGTH
        session.num_sampled_tokens += len(sample.sampled_ids) if sample is not None else 0
        session.errors.pop(call.key, None)  # the harness's retry made good what had failed


def _check_whole(call: _Call, sample: Sample | None) -> None:
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


def _lineage(headers: Mapping[str, str]) -> str:
    found = {name: headers[name] for name in _LINEAGE_HEADERS if name in headers}
    return json.dumps(found, separators=(",", ":")) if found else ""
