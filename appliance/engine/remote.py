"""A vLLM server that somebody else runs, called with token ids over its /v1/completions.

The same invariants as `engine`: ids and logprobs are the server's own (I1), and the prompt ids it says it was fed
are the ids it was sent (I2). A server that gives no ids, or logprobs of another temperature than it samples at, is
refused at start. What it serves is policy version 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import anyio
import msgspec
import numpy as np

from appliance.engine.http import BrokenLine, HttpLine
from appliance.engine.idtext import IdText, is_list_of
from appliance.errors import EngineError, HostError
from appliance.types import Logprobs, Sample, StopReason, TokenIds

PROBE_TEMPERATURE = 0.5
_TOLERANCE = 0.05
_VERSION = 0


class _Logprobs(msgspec.Struct):
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None


class _Choice(msgspec.Struct):
    token_ids: list[int]
    prompt_token_ids: msgspec.Raw
    logprobs: _Logprobs
    finish_reason: str | None = None
    prompt_logprobs: list[dict[str, dict[str, Any]] | None] | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]


class RemoteEngine:
    """One server behind `url` (…/v1). Async context manager: entering it asks for the model and probes it.

    `model` may be empty when the server has one only. `key` is sent as a bearer token.
    """

    def __init__(self, url: str, model: str = "", key: str = "", timeout_s: float = 300.0) -> None:
        self.url = url.rstrip("/") if url.rstrip("/").endswith("/v1") else f"{url.rstrip('/')}/v1"
        self.model = model
        self.max_model_len: int | None = None
        try:
            self._line = HttpLine(self.url, {"authorization": f"Bearer {key}"} if key else {})
        except ValueError as e:
            raise HostError(str(e), "name the URL of a running vLLM, for example http://127.0.0.1:8000/v1") from e
        self._timeout_s = timeout_s
        self._decoder = msgspec.json.Decoder(_Completion)
        self._text = IdText()

    async def __aenter__(self) -> RemoteEngine:
        try:
            await self._find_model()
        except BaseException:
            await self._line.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._line.close()

    async def _find_model(self) -> None:
        try:
            with anyio.fail_after(self._timeout_s):
                reply = await self._line.get("/models")
            served = {m["id"]: m for m in msgspec.json.decode(reply.body)["data"]}
        except (BrokenLine, TimeoutError, ValueError, LookupError, TypeError) as e:
            raise HostError(f"{self.url}/models: {type(e).__name__}: {e}", "name the URL of a running vLLM") from e
        if self.model not in served and (self.model or len(served) != 1):
            raise HostError(f"{self.url} serves no model {self.model!r}", f"it serves {', '.join(served)}")
        self.model = self.model or next(iter(served))
        length = served[self.model].get("max_model_len")
        self.max_model_len = length if isinstance(length, int) else None

    async def probe(self, prompt: Sequence[int], temperature: float = 1.0) -> None:
        """Ids and logprobs come back, at the sampling temperature; EngineError says what is not so.

        At temperature 1 all servers agree on what that is; at another, theirs must be the processed logprobs.
        """
        gaps = []
        for at in (1.0, PROBE_TEMPERATURE) if temperature != 1.0 else (1.0,):
            choice = await self._complete(
                np.asarray(prompt, np.int32), {"temperature": at, "max_tokens": 1, "logprobs": 5}
            )
            tops = choice.logprobs.top_logprobs or [{}]
            gaps.append(dict(tops[0] or {}))
        if len(gaps) == 1:
            return
        common = sorted(gaps[0].keys() & gaps[1].keys(), key=lambda key: -gaps[0][key])
        if len(common) < 2:
            raise EngineError("bad_probe", f"{self.url} gives too few logprobs to check the temperature")
        plain, scaled = (gap[common[0]] - gap[common[-1]] for gap in gaps)
        if abs(scaled * PROBE_TEMPERATURE - plain) > _TOLERANCE * max(1.0, plain):
            raise EngineError(
                "bad_probe",
                f"{self.url}: logprobs are not at the temperature; start it with --logprobs-mode processed_logprobs",
            )

    async def sample(
        self,
        prompt_ids: TokenIds,
        max_tokens: int,
        temperature: float = 1.0,
        stop_ids: tuple[int, ...] = (),
        seed: int | None = None,
        policy_version: int | None = None,
    ) -> Sample:
        """Up to `max_tokens` ids after `prompt_ids` with their logprobs; raises EngineError."""
        settings: dict[str, Any] = {
            "max_tokens": max_tokens,
            "temperature": temperature,
            "logprobs": 0,
            "stop_token_ids": list(stop_ids),
            "ignore_eos": True,
        }
        if seed is not None:
            settings["seed"] = seed
        choice = await self._complete(prompt_ids, settings)
        ids, logprobs = choice.token_ids, choice.logprobs.token_logprobs
        if len(logprobs) != len(ids) or not ids:
            raise EngineError("bad_answer", f"{self.url}: {len(ids)} sampled ids, and logprobs that are not theirs")
        if choice.finish_reason not in ("stop", "length"):
            raise EngineError("bad_answer", f"{self.url}: sampling ended with {choice.finish_reason!r}")
        return Sample(
            prompt_ids, np.asarray(ids, np.int32), _finite(logprobs), StopReason(choice.finish_reason), _VERSION
        )

    async def score(self, ids: TokenIds) -> Logprobs:
        """Logprobs of `ids[1:]`, each given all before it, at temperature 1: (len(ids) - 1,) float32."""
        choice = await self._complete(ids, {"max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0})
        rows = choice.prompt_logprobs
        if rows is None or len(rows) != len(ids):
            raise EngineError("bad_answer", f"{self.url} gave no logprobs of the prompt")
        entries = [(row or {}).get(str(token), {}) for token, row in zip(ids[1:].tolist(), rows[1:], strict=True)]
        return _finite([entry.get("logprob") for entry in entries])

    async def _complete(self, prompt: TokenIds, settings: dict[str, Any]) -> _Choice:
        """The one choice of an answer that is proven to be for `prompt`."""
        written = self._text.written(prompt)
        body = {
            "model": self.model,
            "prompt": msgspec.Raw(written),
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "logprobs": 0,
            **settings,
        }
        try:
            with anyio.fail_after(self._timeout_s):
                reply = await self._line.post("/completions", msgspec.json.encode(body))
        except (BrokenLine, TimeoutError) as e:
            raise EngineError("dead", f"{self.url}: {type(e).__name__}: {e}") from e
        if reply.status != 200:
            raise EngineError("refused", f"{self.url} answered {reply.status}: {reply.body[:300]!r}")
        try:
            (choice,) = self._decoder.decode(reply.body).choices
        except (msgspec.DecodeError, ValueError) as e:
            raise EngineError("bad_answer", f"{self.url}: an answer without token ids or logprobs: {e}") from e
        if not is_list_of(choice.prompt_token_ids, prompt, written):
            raise EngineError("bad_answer", f"{self.url} was fed other prompt ids than it was sent")
        return choice


def _finite(values: Sequence[Any]) -> Logprobs:
    """float32; vLLM writes -9999 where it has no number."""
    numbers = np.asarray(values, np.float64) if set(map(type, values)) <= {int, float} else np.full(1, np.nan)
    if not (np.isfinite(numbers) & (numbers > -9999.0)).all():
        raise EngineError("bad_answer", "a logprob is missing or not finite")
    return numbers.astype(np.float32)
