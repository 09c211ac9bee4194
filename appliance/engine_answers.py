"""Reads what the engine answered. Pure; whatever is missing, foreign or not finite is an `EngineError`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from appliance.errors import EngineError
from appliance.types import Logprobs, Sample, StopReason


def read_sample(answer: dict[str, Any], prompt: list[int], name: str, version: int) -> Sample:
    """The sample in `answer`, proven to be for `prompt` and from the adapter called `name`."""
    choice = _choice(answer, prompt, name)
    ids = choice["token_ids"]
    entries = _logprob_entries(choice)
    if not ids or [entry.get("token_id") for entry in entries] != ids:
        raise EngineError("bad_answer", f"{len(ids)} sampled ids, and logprobs that are not theirs")
    reason = choice.get("finish_reason")
    if reason not in ("stop", "length"):
        raise EngineError("bad_answer", f"sampling ended with {reason!r}")
    return Sample(
        prompt_ids=np.asarray(prompt, dtype=np.int32),
        sampled_ids=np.asarray(ids, dtype=np.int32),
        logprobs=_finite([entry.get("logprob") for entry in entries]),
        stop_reason=StopReason(reason),
        policy_version=version,
    )


def read_scores(answer: dict[str, Any], prompt: list[int], name: str) -> Logprobs:
    """Logprob of each prompt id but the first, given those before it: (len(prompt) - 1,) float32."""
    _choice(answer, prompt, name)
    rows = answer.get("prompt_logprobs")
    if not isinstance(rows, list) or len(rows) != len(prompt):
        raise EngineError("bad_answer", "the engine gave no logprobs of the prompt")
    entries = [(row or {}).get(str(token), {}) for token, row in zip(prompt[1:], rows[1:], strict=True)]
    return _finite([entry.get("logprob") for entry in entries])


def read_top(answer: dict[str, Any], prompt: list[int], name: str) -> dict[int, float]:
    """Logprobs of the likeliest first ids, by id."""
    entries = _logprob_entries(_choice(answer, prompt, name))
    tops = entries[0].get("top_logprobs") if entries else None
    if not isinstance(tops, list):
        raise EngineError("bad_answer", "the engine gave no top logprobs")
    return {int(top["token_id"]): float(top["logprob"]) for top in tops}


def _choice(answer: dict[str, Any], prompt: list[int], name: str) -> dict[str, Any]:
    """The one choice of `answer`, after checking whose answer it is (I2, I6)."""
    if answer.get("model") != name:
        raise EngineError("bad_answer", f"asked {name}, answered by {answer.get('model')!r}")
    if answer.get("prompt_token_ids") != prompt:
        raise EngineError("bad_answer", "the engine was fed other prompt ids than it was sent")
    choices = answer.get("choices")
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
    if not all(isinstance(v, int | float) and math.isfinite(v) and v > -9999.0 for v in values):
        raise EngineError("bad_answer", "a logprob is missing or not finite")
    return np.asarray(values, dtype=np.float32)
