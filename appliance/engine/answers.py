"""Reads what the engine answered. Pure; whatever is missing, foreign or not finite is an `EngineError`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from appliance.engine.idtext import is_list_of
from appliance.errors import EngineError
from appliance.types import Logprobs, Sample, StopReason, TokenIds


@dataclass(frozen=True, slots=True)
class Adapter:
    """A loaded policy version: its name in the server, its folder and the sha256 of its weights."""

    version: int
    name: str
    folder: Path
    sha256: str


@dataclass(frozen=True, slots=True)
class Swap:
    """What a swap did: `shift` is the largest change of a logprob on the probe prompt, in nats."""

    version: int
    seconds: float
    shift: float


@dataclass(frozen=True, slots=True)
class Asked:
    """What the engine was asked: the prompt, as ids and as it was written, and the adapter's name."""

    prompt: TokenIds
    written: bytes
    name: str


class EngineAnswer(msgspec.Struct):
    """The engine's JSON. The prompt's ids stay text: they are only compared with what was written."""

    model: Any = None
    prompt_token_ids: msgspec.Raw = msgspec.Raw(b"null")
    choices: Any = None
    prompt_logprobs: Any = None


_decoder = msgspec.json.Decoder(EngineAnswer)


def read_answer(body: bytes) -> EngineAnswer:
    """The answer in `body`."""
    try:
        return _decoder.decode(body)
    except (msgspec.MsgspecError, ValueError) as e:
        raise EngineError("bad_answer", f"the engine's answer cannot be read ({e}): {body[:200]!r}") from e


def read_sample(answer: EngineAnswer, asked: Asked, version: int) -> Sample:
    """The sample in `answer`, proven to be for what was asked."""
    choice = _choice(answer, asked)
    ids = choice["token_ids"]
    entries = _logprob_entries(choice)
    if not ids or [entry.get("token_id") for entry in entries] != ids:
        raise EngineError("bad_answer", f"{len(ids)} sampled ids, and logprobs that are not theirs")
    reason = choice.get("finish_reason")
    if reason not in ("stop", "length"):
        raise EngineError("bad_answer", f"sampling ended with {reason!r}")
    return Sample(
        prompt_ids=asked.prompt,
        sampled_ids=np.asarray(ids, dtype=np.int32),
        logprobs=_finite([entry.get("logprob") for entry in entries]),
        stop_reason=StopReason(reason),
        policy_version=version,
    )


def read_scores(answer: EngineAnswer, asked: Asked) -> Logprobs:
    """Logprob of each prompt id but the first, given those before it: (len(prompt) - 1,) float32."""
    _choice(answer, asked)
    prompt, rows = asked.prompt.tolist(), answer.prompt_logprobs
    if not isinstance(rows, list) or len(rows) != len(prompt):
        raise EngineError("bad_answer", "the engine gave no logprobs of the prompt")
    entries = [(row or {}).get(str(token), {}) for token, row in zip(prompt[1:], rows[1:], strict=True)]
    return _finite([entry.get("logprob") for entry in entries])


def read_top(answer: EngineAnswer, asked: Asked) -> dict[int, float]:
    """Logprobs of the likeliest first ids, by id."""
    entries = _logprob_entries(_choice(answer, asked))
    tops = entries[0].get("top_logprobs") if entries else None
    if not isinstance(tops, list):
        raise EngineError("bad_answer", "the engine gave no top logprobs")
    return {int(top["token_id"]): float(top["logprob"]) for top in tops}


def _choice(answer: EngineAnswer, asked: Asked) -> dict[str, Any]:
    """The one choice of `answer`, after checking whose answer it is (I2, I6)."""
    if answer.model != asked.name:
        raise EngineError("bad_answer", f"asked {asked.name}, answered by {answer.model!r}")
    if not is_list_of(answer.prompt_token_ids, asked.prompt, asked.written):
        raise EngineError("bad_answer", "the engine was fed other prompt ids than it was sent")
    choices = answer.choices
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise EngineError("bad_answer", "the engine's answer has not exactly one choice")
    if not isinstance(choices[0].get("token_ids"), list):
        raise EngineError("bad_answer", "the engine's answer has no token ids")
    return choices[0]


def _logprob_entries(choice: dict[str, Any]) -> list[dict[str, Any]]:
    content = (choice.get("logprobs") or {}).get("content")
    if not isinstance(content, list):
        raise EngineError("bad_answer", "the engine's answer has no logprobs")
    return content


def _finite(values: list[Any]) -> Logprobs:
    """float32; the engine writes -9999 where it has no number."""
    numbers = np.asarray(values, np.float64) if set(map(type, values)) <= {int, float} else np.full(1, np.nan)
    if not (np.isfinite(numbers) & (numbers > -9999.0)).all():
        raise EngineError("bad_answer", "a logprob is missing or not finite")
    return numbers.astype(np.float32)
