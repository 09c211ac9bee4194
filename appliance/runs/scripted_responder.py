"""A scripted policy: what a teacher says, as the ids a model would have sampled to say it.

For trying harnesses, wires and the record without a model. Only the choice of words is scripted: the prompt is
rendered and grafted, the ids are parsed, answered and recorded with logprobs by the same code as a model's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from appliance.capture.proxy import Answerer
from appliance.capture.rendering.renderer import Renderer
from appliance.config.runconfig import CHECKOUT
from appliance.engine.policy_responder import Caller, EngineAnswerer, Sampling
from appliance.types import Answer, Request, Sample, StopReason, TokenIds

CONTEXT_LENGTH = 1_000_000  # ids are bytes here, and some harnesses send a hundred thousand of them
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LOGPROB = -0.25


@cache
def byte_renderer() -> Renderer:
    """Corral's own chat template over a tokenizer of one token a byte; needs no model."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROL_TOKENS])
    template = (CHECKOUT / "data" / "templates" / "hermes.jinja").read_text(encoding="utf-8")
    return Renderer(tokenizer.to_str(), template)


@dataclass(frozen=True, slots=True)
class _Says:
    """An engine whose next sample is known."""

    ids: TokenIds

    async def sample(
        self,
        prompt_ids: TokenIds,
        max_tokens: int,
        temperature: float = 1.0,
        stop_ids: tuple[int, ...] = (),
        seed: int | None = None,
        policy_version: int | None = None,
    ) -> Sample:
        ids = self.ids[:max_tokens]
        stop = StopReason.STOP if int(ids[-1]) in stop_ids else StopReason.LENGTH
        return Sample(prompt_ids, ids, np.full(len(ids), LOGPROB, np.float32), stop, policy_version or 0)


class ScriptedPolicy:
    """Answers as `teacher` does, with token ids. `said` holds the ids of every answer, in order."""

    def __init__(self, teacher: Answerer, renderer: Renderer | None = None) -> None:
        self.renderer = renderer or byte_renderer()
        self.context_length: int | None = CONTEXT_LENGTH
        self.grafts = True
        self.said: list[TokenIds] = []
        self._teacher = teacher

    async def answer(
        self, session: Caller, request: Request, prompt_ids: TokenIds | None
    ) -> tuple[Answer, Sample | None]:
        """The teacher's words for this request, sampled token by token."""
        told, _ = await self._teacher.answer(session, request, None)  # type: ignore[arg-type]
        ids = self.renderer.turn(told.message, request.tools)
        sampling = Sampling(max_tokens=len(ids), context_length=CONTEXT_LENGTH)
        answer, sample = await EngineAnswerer(_Says(ids), self.renderer, sampling).answer(session, request, prompt_ids)
        if sample is not None:
            self.said.append(sample.sampled_ids)
        return answer, sample
