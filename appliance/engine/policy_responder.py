"""The policy as an answerer: prompt ids to the engine, sampled ids back, parsed into the message they say."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Literal, Protocol

from appliance.capture.rendering.renderer import Renderer
from appliance.errors import CaptureError
from appliance.types import Answer, Request, Sample, TokenIds


class Engine(Protocol):
    """What samples: `engine.Engine`, or a scripted one in tests."""

    async def sample(
        self,
        prompt_ids: TokenIds,
        max_tokens: int,
        temperature: float = 1.0,
        stop_ids: tuple[int, ...] = (),
        seed: int | None = None,
        policy_version: int | None = None,
    ) -> Sample:
        """Up to `max_tokens` ids after `prompt_ids`, with their logprobs; raises EngineError."""
        ...


class Caller(Protocol):
    """What an answerer needs to know of the session that asks."""

    @property
    def rollout_id(self) -> int:
        """The rollout the call belongs to."""
        ...

    @property
    def tokens_left(self) -> int:
        """How many more tokens this rollout may sample."""
        ...


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample. The run's settings win over the harness's; `policy_version` None is the newest loaded.

    `first_rollout` is the run's first rollout id: seeds count from it, so that a record's history has no say.
    `rendering`: `graft` keeps recorded ids of echoed turns, `template` renders every prompt as a stock server would.
    `max_tokens` bounds one answer, `context_length` prompt and answer together, both in tokens.
    """

    temperature: float = 1.0
    max_tokens: int = 512
    context_length: int = 4096
    seed: int = 0
    policy_version: int | None = None
    first_rollout: int = 0
    rendering: Literal["graft", "template"] = "graft"


class EngineAnswerer:
    """Answers calls from the engine, token ids in and out."""

    def __init__(self, engine: Engine, renderer: Renderer, sampling: Sampling) -> None:
        self.renderer: Renderer | None = renderer
        self.context_length: int | None = sampling.context_length
        self.grafts = sampling.rendering == "graft"
        self._engine = engine
        self._parse = renderer.parse
        self._stop_ids = renderer.stop_ids
        self._sampling = sampling

    async def answer(
        self, session: Caller, request: Request, prompt_ids: TokenIds | None
    ) -> tuple[Answer, Sample | None]:
        """One sample for `prompt_ids`. The seed is of run, rollout and prompt, so a run can be repeated."""
        if prompt_ids is None:
            raise CaptureError("no_prompt", "the engine needs token ids")
        how = self._sampling
        bounds = [how.max_tokens, how.context_length - len(prompt_ids), session.tokens_left]
        if request.max_tokens is not None:
            bounds.append(request.max_tokens)
        sample = await self._engine.sample(
            prompt_ids,
            max(1, min(bounds)),
            temperature=how.temperature,
            stop_ids=self._stop_ids,
            seed=self._seed(session.rollout_id, prompt_ids),
            policy_version=how.policy_version,
        )
        message = self._parse(sample.sampled_ids, request.tools)
        return Answer(message, sample.stop_reason, len(prompt_ids), len(sample.sampled_ids)), sample

    def _seed(self, rollout_id: int, prompt_ids: TokenIds) -> int:
        """31 bits from the run's seed, the rollout's place in the run and the prompt."""
        place = f"{self._sampling.seed}/{rollout_id - self._sampling.first_rollout}"
        return zlib.crc32(prompt_ids.tobytes(), zlib.crc32(place.encode())) & 0x7FFFFFFF
