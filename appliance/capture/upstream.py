"""A teacher model behind an OpenAI- or Anthropic-compatible API: `UpstreamTeacher` forwards each request to it.

Its answers carry no token ids. The proxy therefore records them without a sample, and RL never trains on them (I1).
"""

from __future__ import annotations

from dataclasses import dataclass

import anyio
import httpx

from appliance.capture.wire.upstream import anthropic_body, anthropic_message, openai_body, openai_message
from appliance.errors import CaptureError
from appliance.system.redact import without_secrets
from appliance.types import Answer, Request, Sample, StopReason, TokenIds

_BUSY = (429, 503, 529)
_BUSY_TRIES, _BUSY_S, _BUSY_MOST_S = 3, 2.0, 30.0


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where a teacher model answers. `api` is chat (OpenAI-compatible) or messages (Anthropic-compatible).

    `url` is the API's base as its clients take it (…/v1 for chat; without /v1 for messages). The key is held
    in memory only and never reaches the record.
    """

    api: str
    url: str
    model: str
    key: str = ""
    max_tokens: int = 4096
    timeout_s: float = 300.0

    @property
    def base(self) -> str:
        """The URL that paths follow. Anthropic's clients add /v1 themselves, so both ways of naming it are taken."""
        url = self.url.rstrip("/")
        return url if self.api == "chat" or url.endswith("/v1") else f"{url}/v1"


class UpstreamTeacher:
    """Forwards calls to `upstream`. Async context manager: it owns the HTTP client."""

    renderer = None
    context_length = None
    grafts = False

    def __init__(self, upstream: Upstream) -> None:
        if upstream.api not in ("chat", "messages"):
            raise ValueError(f"teacher api {upstream.api!r}: must be chat or messages")
        self._upstream = upstream
        self._limit = "max_tokens"  # older servers know no other; the newer name is learnt from their refusal
        self._client = httpx.AsyncClient(timeout=upstream.timeout_s, trust_env=False)

    async def __aenter__(self) -> UpstreamTeacher:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.aclose()

    async def answer(
        self, session: object, request: Request, prompt_ids: TokenIds | None
    ) -> tuple[Answer, Sample | None]:
        """The upstream model's answer; CaptureError("teacher") says what it said when it refused."""
        up = self._upstream
        reply = await self._asked(request)
        if _wants_completion_limit(reply) and self._limit == "max_tokens":
            self._limit = "max_completion_tokens"
            reply = await self._asked(request)
        if not reply.is_success:
            said = without_secrets(reply.text, [up.key] if up.key else [])  # some repeat the key that they refuse
            raise CaptureError("teacher", f"{up.url} answered {reply.status_code}: {said[:300]}")
        try:
            message, is_cut = (openai_message if up.api == "chat" else anthropic_message)(reply.content)
        except ValueError as e:
            raise CaptureError("teacher", f"{up.url}: unreadable answer: {e}") from e
        return Answer(message, StopReason.LENGTH if is_cut else StopReason.STOP), None

    async def _asked(self, request: Request) -> httpx.Response:
        """The reply; a busy upstream is asked again after the time it names, a few times."""
        for tries_left in range(_BUSY_TRIES, -1, -1):
            reply = await self._post(request)
            if reply.status_code not in _BUSY or not tries_left:
                break
            named = reply.headers.get("retry-after", "")
            await anyio.sleep(min(float(named) if named.isdigit() else _BUSY_S, _BUSY_MOST_S))
        return reply

    async def _post(self, request: Request) -> httpx.Response:
        up = self._upstream
        if up.api == "chat":
            path, headers = "/chat/completions", {"authorization": f"Bearer {up.key}"} if up.key else {}
            body = openai_body(request, up.model, up.max_tokens, self._limit)
        else:
            path, headers = "/messages", {"x-api-key": up.key, "anthropic-version": "2023-06-01"}
            body = anthropic_body(request, up.model, up.max_tokens)
        headers["content-type"] = "application/json"
        try:
            return await self._client.post(up.base + path, content=body, headers=headers)
        except httpx.HTTPError as e:
            raise CaptureError("teacher", f"{up.url}: {type(e).__name__}: {e}") from e


def _wants_completion_limit(reply: httpx.Response) -> bool:
    """Whether this is how OpenAI's reasoning models refuse `max_tokens`."""
    return reply.status_code == 400 and "max_completion_tokens" in reply.text
