"""One open rollout as the proxy sees it: its calls, what they continue, and what it may still do.

A call is known by what it asks, so a retry finds the call it repeats: by the whole request, or, where the client
says that it is trying again, by the conversation alone. What an earlier proxy recorded of the rollout is known again
after `restore`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import anyio
import numpy as np
from anyio import to_thread

from appliance.capture.history import History, Place
from appliance.capture.server import WIRES, Pending, Refusal
from appliance.errors import ModelError, RolloutError
from appliance.trees.lineage import Family, Lineage, from_text, opens_window
from appliance.types import Answer, Call, CallKind, Message, Request, Sample, TokenIds, Tool

_THREAD_BYTES = 1 << 16
"""Bodies from this size on are encoded in a thread when nothing of them is recorded, so that others need not wait."""


class Prompter(Protocol):
    """Messages to prompt ids: `rendering.renderer.Renderer`. `fingerprint` names its tokenizer and template."""

    fingerprint: str

    def render(self, messages: Sequence[Message], tools: Sequence[Tool], generation: bool = True) -> TokenIds:
        """Ids of a whole conversation."""
        ...

    def graft(
        self, prompt_ids: TokenIds, sampled_ids: TokenIds, new_messages: Sequence[Message], tools: Sequence[Tool]
    ) -> TokenIds:
        """Recorded ids untouched, then the ids of what is new."""
        ...


class Answerer(Protocol):
    """What answers calls: the policy (`engine.policy_responder.EngineAnswerer`) or a teacher (no renderer, no ids)."""

    @property
    def renderer(self) -> Prompter | None:
        """None for a teacher: its calls have text and no ids."""
        ...

    @property
    def context_length(self) -> int | None:
        """Tokens of prompt and answer together; None for a teacher."""
        ...

    @property
    def grafts(self) -> bool:
        """Whether recorded ids are kept (`graft`), or every prompt is rendered anew (`template`)."""
        ...

    async def answer(
        self, session: Session, request: Request, prompt_ids: TokenIds | None
    ) -> tuple[Answer, Sample | None]:
        """The answer, and for the policy its sample; raises RolloutError."""
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
class Line:
    """The ids of calls that continue each other, held once: prompt and answer of the newest of them."""

    ids: TokenIds


@dataclass(eq=False, slots=True)
class Recorded:
    """A committed call. `arrived`: some client got the whole answer. `delivered`: what the record says.

    Its ids are the first `num_prompt` and `num_ids` of `line`; a teacher's call has no line.
    """

    call_id: int
    delivered: bool
    lineage: Lineage
    arrived: bool = False
    line: Line | None = None
    num_prompt: int = 0
    num_ids: int = 0

    def hold(self, sample: Sample, parent: Recorded | None) -> None:
        """Take over `parent`'s line where this call continues the newest of it, else begin one."""
        ids = np.concatenate([sample.prompt_ids, sample.sampled_ids])
        self.num_prompt, self.num_ids = len(sample.prompt_ids), len(ids)
        line = parent.line if parent is not None else None
        if line is not None and np.array_equal(line.ids, ids[: len(line.ids)]):
            line.ids, self.line = ids, line
        else:
            self.line = Line(ids)


@dataclass(eq=False, slots=True)
class LiveCall(Pending):
    """One call from the moment it is taken: what was asked, and what was recorded once it is done."""

    key: bytes = b""
    history: bytes = b""
    sequence: int = 0
    request: Request | None = None
    prompt_ids: TokenIds | None = None
    lineage: Lineage = field(default_factory=Lineage)
    idempotency_key: str = ""
    parent: Recorded | None = None
    recorded: Recorded | None = None


@dataclass(eq=False)
class Session:
    """One open rollout, or a step of one. `calls` holds every call by its request's key, in flight or done.

    What earlier steps did counts for the rollout's limits and for the numbers of its calls, and for nothing else.
    """

    rollout_id: int
    answerer: Answerer
    limits: Limits
    gate: anyio.Semaphore
    history: History[Recorded] = field(default_factory=History)
    family: Family = field(default_factory=Family)
    calls: dict[bytes, LiveCall] = field(default_factory=dict)
    said: dict[bytes, LiveCall] = field(default_factory=dict)
    errors: dict[bytes, RolloutError] = field(default_factory=dict)
    scopes: set[anyio.CancelScope] = field(default_factory=set)
    idle: anyio.Event = field(default_factory=anyio.Event)
    step: int = 0
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

    @property
    def is_spent(self) -> bool:
        """Whether every further call would be refused."""
        return self.num_taken >= self.limits.max_calls or not self.tokens_left

    @property
    def settled(self) -> Settled:
        """What was seen until now."""
        error = next(iter(self.errors.values()), None)
        cut = self.limit_reached or self.is_cut
        return Settled(error, self.num_calls, self.num_sampled_tokens, self.num_replays, cut)

    def repeated(self, place: Place[Recorded], headers: Mapping[str, str]) -> LiveCall | None:
        """The call that a request repeats, or None; Refusal once a rollout repeats itself without end.

        A history that was compacted to the words it began with is no retry where a header tells that it is new: the
        harness would be told the same for ever.
        """
        call = self.calls.get(place.key)
        if call is not None and opens_window(headers, call.lineage):
            return None  # the same words, but no retry: another answer is wanted
        if call is None:
            alike = self.said.get(place.history)
            call = alike if alike is not None and _says_retry(headers, alike) else None
        if call is None:
            return None
        self.num_replays += 1
        if self.num_replays > self.limits.max_replays:
            self.limit_reached = True
            raise Refusal(400, f"this rollout repeated a request {self.num_replays} times", "rollout_budget")
        return call

    def admit(self, request: Request, place: Place[Recorded], headers: Mapping[str, str]) -> LiveCall:
        """A new call; Refusal once calls or tokens are used up, in words no client takes for "compact, try again"."""
        if self.num_taken >= self.limits.max_calls:
            self.limit_reached = True
            raise Refusal(400, f"this rollout has made its {self.limits.max_calls} calls", "rollout_budget")
        if not self.tokens_left:
            self.limit_reached = True
            raise Refusal(400, "this rollout has sampled all that its budget allows", "rollout_budget")
        lineage = self.family.mark(request, headers, place.call.lineage if place.call else None)
        call = LiveCall(
            f"{self.rollout_id}x{self.num_taken}", key=place.key, history=place.history, sequence=self.num_taken,
            request=request, lineage=replace(lineage, step=self.step),
            idempotency_key=headers.get("idempotency-key", ""), parent=place.call,
        )  # fmt: skip
        self.num_taken += 1
        self.calls[call.key] = self.said[call.history] = call
        return call

    def drop(self, call: LiveCall, refusal: Refusal) -> None:
        """The call came to nothing; a retry of it is a new call."""
        self.calls.pop(call.key, None)
        if self.said.get(call.history) is call:
            del self.said[call.history]
        call.refusal = call.refusal or refusal

    async def prompt_ids(self, request: Request, place: Place[Recorded]) -> TokenIds | None:
        """What the engine is fed; None for a teacher. Refusal when it does not fit the context."""
        ids = await self._encoded(request, place)
        limit = self.answerer.context_length
        if ids is not None and limit is not None and len(ids) >= limit:
            self.limit_reached = True
            message = WIRES[request.wire].context_error(len(ids), limit)
            raise Refusal(400, message, "context_length_exceeded")
        return ids

    async def count(self, request: Request) -> int:
        """Tokens of the prompt that `request` would be fed, however many; Refusal for a teacher, which has none."""
        ids = await self._encoded(request, self.history.look(request))
        if ids is None:
            raise Refusal(404, "only a policy's tokens can be counted", "not_found")
        return len(ids)

    async def _encoded(self, request: Request, place: Place[Recorded]) -> TokenIds | None:
        """Grafted on the recorded call that `request` continues, else rendered; None for a teacher."""
        renderer = self.answerer.renderer
        if renderer is None:
            return None
        known = place.call if self.answerer.grafts else None
        try:
            if known is not None and known.line is not None:
                ids, cut = known.line.ids[: known.num_ids], known.num_prompt
                return renderer.graft(ids[:cut], ids[cut:], request.messages[place.n :], request.tools)
            if len(request.raw) < _THREAD_BYTES:
                return renderer.render(request.messages, request.tools)
            return await to_thread.run_sync(renderer.render, request.messages, request.tools)
        except ModelError as e:
            raise Refusal(400, e.message, "invalid_request") from e

    def note(self, call: LiveCall, answer: Answer, sample: Sample | None, recorded: Recorded) -> None:
        """The call is on the record: from now on its answer may be seen, continued and repeated."""
        assert call.request is not None
        call.recorded, call.answer = recorded, answer
        self.history.add(call.request, call.history, answer.message, recorded)
        self.family.heard(answer)
        self.num_calls += 1
        if call.lineage.kind is CallKind.MAIN:
            self.is_cut = str(answer.stop_reason) == "length"
        if sample is not None:
            self.num_sampled_tokens += answer.num_sampled_tokens
            if self.answerer.grafts:
                recorded.hold(sample, call.parent)
        self.errors.pop(call.key, None)  # the harness's retry made good what had failed
        call.request = call.prompt_ids = call.parent = None  # the record has them

    def restore(self, recorded: Call, message: Message) -> None:
        """A call of this rollout that is on the record, with the answer it gave. Raises ValueError."""
        if recorded.step != self.step:
            self.num_taken = max(self.num_taken, recorded.sequence + 1)
            self.num_sampled_tokens += 0 if recorded.sample is None else len(recorded.sample.sampled_ids)
            return
        if not recorded.request_bytes:
            return  # retention took its bodies, and with them what it could be known by
        request = WIRES[recorded.wire].parse_request(recorded.request_bytes)
        place = self.history.look(request)
        request = replace(request, messages=place.messages)
        lineage = from_text(recorded.lineage)
        call = LiveCall(
            f"{self.rollout_id}x{recorded.sequence}", key=place.key, history=place.history,
            sequence=recorded.sequence, request=request, lineage=lineage, parent=place.call,
        )  # fmt: skip
        self.calls[call.key] = self.said[call.history] = call
        self.family.mark(request, lineage.headers, lineage)
        sample = recorded.sample
        sizes = (len(sample.prompt_ids), len(sample.sampled_ids)) if sample is not None else (0, 0)
        answer = Answer(message, recorded.stop_reason, *sizes)
        self.note(call, answer, sample, Recorded(recorded.id, recorded.delivered, lineage, recorded.delivered))
        call.done.set()
        self.num_taken = max(self.num_taken, recorded.sequence + 1)


def _says_retry(headers: Mapping[str, str], earlier: LiveCall) -> bool:
    """Whether the client says that it sends `earlier` again: by a count of retries, or by the key it sent then."""
    count = headers.get("x-stainless-retry-count", "0")
    if count.isdigit() and int(count) > 0:
        return True
    return bool(earlier.idempotency_key) and headers.get("idempotency-key") == earlier.idempotency_key
