"""Teacher mode against upstreams on real sockets: what they refuse, and how their calls stand on the record."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse
from starlette.routing import Route

from appliance.capture.server import loopback_socket, serving
from appliance.capture.upstream import Upstream, UpstreamTeacher
from appliance.types import Message, Request, Tool

pytestmark = pytest.mark.anyio
ASKED = Request("chat", "m", (Message("system", "Be brief."), Message("user", "hi")), (Tool("bash"),))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Reasoner:
    """An upstream that is busy at first, then takes only the newer name of the limit."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, object]] = []
        self.app = Starlette(routes=[Route("/v1/chat/completions", self.chat, methods=["POST"])])

    async def chat(self, http: HttpRequest) -> JSONResponse:
        body = json.loads(await http.body())
        self.bodies.append(body)
        if len(self.bodies) == 1:
            return JSONResponse({"error": {"message": "slow down"}}, 429, {"retry-after": "0"})
        if "max_tokens" in body:
            message = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
            return JSONResponse({"error": {"message": message, "code": "unsupported_parameter"}}, 400)
        return JSONResponse({"choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}]})


@asynccontextmanager
async def upstream() -> AsyncIterator[tuple[Reasoner, str]]:
    reasoner, socket = Reasoner(), loopback_socket(0)
    async with serving(reasoner.app, [socket]):
        yield reasoner, f"http://127.0.0.1:{socket.getsockname()[1]}/v1"


async def test_a_reasoning_model_is_asked_again_with_the_limit_it_knows_and_a_busy_one_after_a_while() -> None:
    async with upstream() as (reasoner, url), UpstreamTeacher(Upstream("chat", url, "o9", key="k")) as teacher:
        for _ in range(2):
            answer, sample = await teacher.answer(None, ASKED, None)
            assert (answer.message.content, sample) == ("hello", None)
        limits = [{"max_tokens", "max_completion_tokens"} & body.keys() for body in reasoner.bodies]
        assert limits == [{"max_tokens"}, {"max_tokens"}, {"max_completion_tokens"}, {"max_completion_tokens"}]
