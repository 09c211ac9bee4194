"""The records that the parts hand to each other. Plain frozen data; no I/O, no behaviour beyond names.

Words are the field's own: a *call* is one captured model request with its answer, a *rollout* one
harness launch on one task until its reward, a *group* the rollouts of one (task, harness) pair that
are compared with each other.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

TokenIds = NDArray[np.int32]
Logprobs = NDArray[np.float32]


class RunState(StrEnum):
    """Life of a run. `RUN_MOVES` lists the legal transitions."""

    CREATED = "created"
    RUNNING = "running"
    DRAINING = "draining"
    STOPPED = "stopped"
    DONE = "done"
    FAILED = "failed"


RUN_MOVES: dict[RunState, frozenset[RunState]] = {
    RunState.CREATED: frozenset({RunState.RUNNING, RunState.FAILED}),
    RunState.RUNNING: frozenset(
        {RunState.DRAINING, RunState.STOPPED, RunState.DONE, RunState.FAILED, RunState.RUNNING}
    ),
    RunState.DRAINING: frozenset({RunState.STOPPED, RunState.DONE, RunState.FAILED, RunState.RUNNING}),
    RunState.STOPPED: frozenset({RunState.RUNNING}),
    RunState.FAILED: frozenset({RunState.RUNNING}),
    RunState.DONE: frozenset(),
}


class RolloutState(StrEnum):
    """Life of a rollout. Only GRADED has a reward; FAILED has a failure label (I5)."""

    PLANNED = "planned"
    STARTING = "starting"
    RUNNING = "running"
    GRADING = "grading"
    GRADED = "graded"
    FAILED = "failed"


class Purpose(StrEnum):
    """Why a rollout was made. Only TRAIN rollouts enter a loss; TEACH ones enter the cold start."""

    TEACH = "teach"
    TRAIN = "train"
    EVAL_BEFORE = "eval_before"
    EVAL_AFTER = "eval_after"
    EVAL = "eval"
    SINGLE = "single"


class StopReason(StrEnum):
    """Why sampling ended: the model ended its turn, or the token limit cut it."""

    STOP = "stop"
    LENGTH = "length"


class CallKind(StrEnum):
    """Who made a call; `trees.branches.roles` makes a label of it, and `[branches]` says how that is trained."""

    MAIN = "main"
    SUB_AGENT = "sub-agent"
    AUXILIARY = "auxiliary"
    STRAY = "stray"


class Branch(StrEnum):
    """What a call is to its rollout's tree; `trees.branches.roles` decides it, `[branches]` how each is trained."""

    CONTINUATION = "continuation"
    COMPACTION = "compaction"
    SUB_AGENT = "sub_agent"
    PARALLEL = "parallel"
    AUXILIARY = "auxiliary"


class Credit(StrEnum):
    """How a branch is trained: with its own credit, with that of the call it came from, or not at all."""

    INCLUDE = "include"
    BROADCAST = "broadcast"
    LEAVE_OUT = "leave_out"


# ------------------------------------------------------------------ what travels over a wire


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call. `arguments` is the JSON text exactly as the model wrote it (may be malformed)."""

    id: str
    name: str
    arguments: str
    namespace: str = ""

    @property
    def full_name(self) -> str:
        """The one name by which the model knows the tool."""
        return f"{self.namespace}.{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True)
class Message:
    """One turn in wire-neutral form. `role` is system, user, assistant or tool (developer → system)."""

    role: str
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""

    def canonical(self) -> tuple[object, ...]:
        """Key under which an echo equals the turn it echoes.

        Ignores ids, reasoning (many harnesses drop it), outer white space of the content and how tool arguments
        are written down (`canonical_json`): these are what 18 harnesses were seen to change.
        """
        calls = tuple((c.name, canonical_json(c.arguments)) for c in self.tool_calls)
        return (self.role, _SURROGATE.sub("\ufffd", self.content).strip(), calls)


_SURROGATE = re.compile("[\ud800-\udfff]")
_CANONICAL_DEPTH = 100
_LONGEST_INTEGER = 1e21


def canonical_json(text: str) -> str:
    """`text` as every harness's echo of it reads: keys sorted, no optional white space, numbers as JavaScript holds
    them (1.0 is 1), lone surrogates as U+FFFD. Malformed or very deep JSON is returned stripped.
    """
    try:
        value = _canonical_value(json.loads(text), _CANONICAL_DEPTH)
    except (ValueError, RecursionError):
        return text.strip()
    plain = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return _SURROGATE.sub("\ufffd", plain)


def _canonical_value(value: object, depth: int) -> object:
    if isinstance(value, str | bool) or value is None:
        return value
    if isinstance(value, int | float):
        return _canonical_number(value)
    if not depth:
        raise ValueError("too deep")
    if isinstance(value, dict):
        return {key: _canonical_value(item, depth - 1) for key, item in value.items()}
    assert isinstance(value, list)
    return [_canonical_value(item, depth - 1) for item in value]


def _canonical_number(value: int | float) -> int | float | None:
    """The double that JavaScript makes of a number; infinities and NaN are null there."""
    try:
        number = float(value)
    except OverflowError:
        return None
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() and abs(number) < _LONGEST_INTEGER else number


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool the harness offers. `parameters` is its JSON schema as JSON text, keys in wire order.

    `kind` is function, custom (free text in, Responses and Chat) or local_shell (Responses).
    """

    name: str
    description: str = ""
    parameters: str = "{}"
    namespace: str = ""
    kind: str = "function"

    @property
    def full_name(self) -> str:
        """The one name by which the model knows the tool."""
        return f"{self.namespace}.{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True)
class Request:
    """One model request, wire-neutral. `raw` is the body as received, never edited.

    `settings` is canonical JSON of the body's other fields that could change an answer (a retry has
    the same); `include_usage` is Chat's stream option; `is_array` is Gemini's stream without `alt=sse`;
    `seals_reasoning` is Responses' client that keeps only `encrypted_content`.
    """

    wire: str
    model: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    stream: bool = False
    max_tokens: int | None = None
    raw: bytes = b""
    settings: str = ""
    include_usage: bool = False
    is_array: bool = False
    seals_reasoning: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """What the harness is told. `num_prompt_tokens`/`num_sampled_tokens` fill the wire's usage block."""

    message: Message
    stop_reason: StopReason
    num_prompt_tokens: int = 0
    num_sampled_tokens: int = 0


# ------------------------------------------------------------------ what was sampled


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """What the engine did for one call: ids in, ids out, one behaviour logprob a sampled id.

    prompt_ids (P,) int32 · sampled_ids (S,) int32 · logprobs (S,) float32, natural log, at the
    sampling temperature. `policy_version` was stamped at dispatch (I6).
    """

    prompt_ids: TokenIds
    sampled_ids: TokenIds
    logprobs: Logprobs
    stop_reason: StopReason
    policy_version: int

    def __post_init__(self) -> None:
        if len(self.sampled_ids) != len(self.logprobs):
            raise ValueError(f"{len(self.sampled_ids)} sampled ids with {len(self.logprobs)} logprobs")


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A recorded call, as read back from the store. `sample` is None for a teacher's call (no ids).

    `template` names the tokenizer and chat template that made the prompt (`Renderer.fingerprint`).
    """

    id: int
    rollout_id: int
    sequence: int
    wire: str
    sample: Sample | None
    request_bytes: bytes
    response_bytes: bytes
    started_at: float
    ended_at: float
    delivered: bool = True
    lineage: str = ""
    template: str = ""
    stop_reason: StopReason = StopReason.STOP

    @property
    def kind(self) -> CallKind:
        """Who made it, by the lineage that the proxy wrote; the main agent where it wrote none."""
        found = json.loads(self.lineage) if self.lineage else {}
        return CallKind(found.get("kind", CallKind.MAIN))

    @property
    def step(self) -> int:
        """The step of its task that it was made in, from 0; tasks without steps have one."""
        return int(json.loads(self.lineage).get("step", 0)) if '"step"' in self.lineage else 0


# ------------------------------------------------------------------ rollouts and tasks


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """One rollout to make; (run, purpose, step, harness, task, index) is unique in the record."""

    run_id: str
    purpose: Purpose
    step: int
    harness: str
    task: str
    index: int

    @property
    def group(self) -> str:
        """Key of the rollouts this one is compared with: same step, task and harness."""
        return f"{self.step}/{self.task}/{self.harness}"


@dataclass(frozen=True, slots=True)
class Reward:
    """A grade: `value` in [0, 1], and its named parts."""

    value: float
    parts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rollout:
    """A rollout as read back from the store. `reward` is None until graded, and stays None on failure."""

    id: int
    plan: RolloutPlan
    state: RolloutState
    attempt: int
    policy_version: int
    reward: float | None
    reward_parts: dict[str, float]
    failure: str
    failure_detail: str
    created_at: float
    started_at: float | None
    ended_at: float | None
    num_calls: int = 0
    num_sampled_tokens: int = 0
    last_event_at: float | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """A run as read back. `phase` is what it is doing, or was doing last."""

    id: str
    name: str
    config: dict[str, object]
    seed: int
    state: RunState
    phase: str
    message: str
    created_at: float
    started_at: float | None
    ended_at: float | None


@dataclass(frozen=True, slots=True, eq=False)
class Said:
    """A recorded call with what was said in it, wire-neutral."""

    call: Call
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    answer: Message
