"""The HTTP side of the proxy: routes, limits of bodies, and delivering one answer to one connection.

Streams send their headers at once, a protocol-level keep-alive every few seconds, and the answer only when
the desk behind says that it is committed. A client that leaves is noticed and told to the desk.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Protocol

import anyio
import uvicorn
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from appliance.capture.wire import chat, gemini, messages, models, responses
from appliance.errors import HostError
from appliance.types import Answer, Request

WIRES: dict[str, ModuleType] = {"chat": chat, "responses": responses, "messages": messages, "gemini": gemini}
_Parse = Callable[[bytes], Request]
_JSON = {"content-type": "application/json"}
# Many clients read no answer before they have sent their body: so much of one too large is read and thrown away.
_DRAIN = 8
# An error quotes what it does not understand; that may be as long as the body.
_LONGEST_MESSAGE = 1000


class Refusal(Exception):
    """A call that gets an error instead of an answer, as its API would word it."""

    def __init__(self, status: int, message: str, kind: str, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.retry_after_s = status, message, kind, retry_after_s


@dataclass(eq=False, slots=True)
class Pending:
    """A call in flight or done. When `done` is set, exactly one of `answer` and `refusal` is."""

    call_id: str
    done: anyio.Event = field(default_factory=anyio.Event)
    answer: Answer | None = None
    refusal: Refusal | None = None
    num_waiting: int = 0


class Desk(Protocol):
    """What stands behind the routes: `proxy.Proxy`."""

    def knows(self, token: str) -> bool:
        """Whether `token` names an open rollout."""
        ...

    async def take(self, token: str, request: Request, headers: Mapping[str, str]) -> Pending:
        """Start the call, or find the one it repeats; raises Refusal."""
        ...

    async def count(self, token: str, request: Request) -> int:
        """Tokens of the prompt that `request` makes; raises Refusal."""
        ...

    def note_delivery(self, pending: Pending, delivered: bool) -> None:
        """Told once a connection: whether the whole answer was handed to a client that was still there."""
        ...


@dataclass(frozen=True, slots=True)
class WebLimits:
    """What one connection may do: body size in bytes, seconds between keep-alive events."""

    max_body_bytes: int = 32 << 20
    keep_alive_s: float = 5.0


def build_app(desk: Desk, limits: WebLimits) -> Router:
    """Every path a harness is known to ask for, with the rollout's token in the path or as API key."""
    pages = _Pages(desk, limits)
    routes: list[Route] = []
    for prefix in ("/s/{token}/v1", "/s/{token}/v1beta", "/s/{token}", "/v1", "/v1beta"):
        routes += [
            Route(f"{prefix}/chat/completions", pages.chat, methods=["POST"]),
            Route(f"{prefix}/responses", pages.responses, methods=["POST"]),
            Route(f"{prefix}/responses/input_tokens", pages.count_responses, methods=["POST"]),
            Route(f"{prefix}/responses", pages.no_websocket, methods=["GET"]),
            Route(f"{prefix}/messages", pages.messages, methods=["POST"]),
            Route(f"{prefix}/messages/count_tokens", pages.count_messages, methods=["POST"]),
            Route(f"{prefix}/{{name:path}}:{{verb}}", pages.gemini, methods=["POST"]),
            Route(f"{prefix}/models", pages.models, methods=["GET"]),
            Route(f"{prefix}/models/{{model:path}}", pages.model, methods=["GET"]),
        ]
    routes += [
        Route("/s/{token}/api/v1/models", pages.models, methods=["GET"]),
        Route("/s/{token}/api/hello", pages.hello, methods=["GET"]),
        Route("/s/{token}", pages.hello, methods=["GET"]),
        Route("/s/{token}/", pages.hello, methods=["GET"]),
        Route("/s/{token}/{rest:path}", pages.nothing, methods=["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]),
    ]
    return Router(routes)


class _Pages:
    """The endpoints. Each checks the token first."""

    def __init__(self, desk: Desk, limits: WebLimits) -> None:
        self._desk, self._limits = desk, limits

    async def chat(self, http: HttpRequest) -> Response:
        return await self._call(http, chat, chat.parse_request)

    async def responses(self, http: HttpRequest) -> Response:
        return await self._call(http, responses, responses.parse_request)

    async def count_responses(self, http: HttpRequest) -> Response:
        return await self._count(http, responses, responses.parse_request)

    async def messages(self, http: HttpRequest) -> Response:
        return await self._call(http, messages, messages.parse_request)

    async def count_messages(self, http: HttpRequest) -> Response:
        return await self._count(http, messages, messages.parse_request)

    async def gemini(self, http: HttpRequest) -> Response:
        """`models/NAME:VERB`; the model's name is recorded, the verb says what is asked."""
        model, verb = str(http.path_params["name"]).rpartition("models/")[2], http.path_params["verb"]
        if verb == "countTokens":
            return await self._count(http, gemini, partial(gemini.parse_count, model=model))
        if verb not in ("generateContent", "streamGenerateContent"):
            return await self.nothing(http)
        stream = verb == "streamGenerateContent"
        is_array = stream and http.query_params.get("alt") != "sse"
        parse = partial(gemini.parse_request, model=model, stream=stream, is_array=is_array)
        return await self._call(http, gemini, parse)

    async def _call(self, http: HttpRequest, wire: ModuleType, parse: _Parse) -> Response:
        try:
            token, request = await self._request(http, parse)
            pending = await self._desk.take(token, request, http.headers)
        except Refusal as refusal:
            if wire is responses and refusal.kind == "context_length_exceeded" and _is_codex(http):
                return _failed_stream(refusal)
            return _refused(wire, refusal)
        return _Delivery(self._desk, request, pending, self._limits.keep_alive_s)

    async def _count(self, http: HttpRequest, wire: ModuleType, parse: _Parse) -> Response:
        """How many tokens the request's prompt has; never a turn."""
        try:
            token, request = await self._request(http, parse)
            return Response(wire.count_json(await self._desk.count(token, request)), headers=_JSON)
        except Refusal as refusal:
            return _refused(wire, refusal)

    async def _request(self, http: HttpRequest, parse: _Parse) -> tuple[str, Request]:
        token = self._token(http)
        body = await _body(http, self._limits.max_body_bytes)
        try:
            return token, parse(body)
        except ValueError as e:
            raise Refusal(400, str(e)[:_LONGEST_MESSAGE], "invalid_request") from e

    def _token(self, http: HttpRequest) -> str:
        token = str(http.path_params.get("token") or _key(http))
        if not self._desk.knows(token):
            raise Refusal(401, "unknown session token", "invalid_api_key")
        return token

    async def models(self, http: HttpRequest) -> Response:
        return self._quick(http, models.LISTED[_api(http)]("corral"))

    async def model(self, http: HttpRequest) -> Response:
        return self._quick(http, models.ONE[_api(http)](str(http.path_params["model"])))

    async def hello(self, http: HttpRequest) -> Response:
        return self._quick(http, {"status": "ok"})

    async def no_websocket(self, http: HttpRequest) -> Response:
        # codex tries a websocket first; this status makes it fall back to POST at once.
        return self._quick(http, {"error": {"message": "websockets are not supported, use POST"}}, 426)

    async def nothing(self, http: HttpRequest) -> Response:
        message = f"no such path: {http.method} {http.url.path.rpartition('/')[2]}"
        try:
            self._token(http)
        except Refusal as refusal:
            return _refused(WIRES[_api(http)], refusal)
        return _refused(WIRES[_api(http)], Refusal(404, message, "not_found"))

    def _quick(self, http: HttpRequest, value: object, status: int = 200) -> Response:
        try:
            self._token(http)
        except Refusal as refusal:
            return _refused(WIRES[_api(http)], refusal)
        return JSONResponse(value, status)


def _key(http: HttpRequest) -> str:
    """The API key, where each of the clients puts it."""
    bearer = http.headers.get("authorization", "").removeprefix("Bearer ").strip()
    named = (http.headers.get(name, "") for name in ("x-api-key", "x-goog-api-key"))
    return bearer or next((key for key in named if key), http.query_params.get("key", ""))


def _api(http: HttpRequest) -> str:
    """Whose client asks, for the paths that several APIs share: chat, messages or gemini."""
    if "x-goog-api-key" in http.headers or "key" in http.query_params or "/v1beta" in http.url.path:
        return "gemini"
    return "messages" if "anthropic-version" in http.headers or "x-api-key" in http.headers else "chat"


def _is_codex(http: HttpRequest) -> bool:
    return "x-codex-turn-metadata" in http.headers or http.headers.get("originator", "").startswith("codex")


def _failed_stream(refusal: Refusal) -> Response:
    """codex fails at any status 400; on this event it knows that its context is full, also while it compacts."""
    request = Request("responses", "", (), stream=True)
    events = responses.stream_start(request, "0") + responses.stream_error(request, "0", refusal.message, refusal.kind)
    return Response(events, media_type="text/event-stream")


def _refused(wire: ModuleType, refusal: Refusal) -> Response:
    headers = dict(_JSON)
    if refusal.retry_after_s is not None:
        headers["retry-after"] = str(refusal.retry_after_s)
    return Response(wire.error_body(refusal.status, refusal.message, refusal.kind), refusal.status, headers)


async def _body(http: HttpRequest, limit: int) -> bytes:
    """The whole body; Refusal 413 when it is longer than `limit`, which a client hears once it has sent it all."""
    body = bytearray()
    num_bytes = 0
    async for chunk in http.stream():
        num_bytes += len(chunk)
        if num_bytes <= limit:
            body += chunk
        elif num_bytes > _DRAIN * limit:
            break
        else:
            body.clear()
    if num_bytes > limit:
        raise Refusal(413, f"the request body is larger than {limit} bytes", "request_too_large")
    return bytes(body)


class _Delivery(Response):
    """Hands one pending call's answer to one connection, streamed or not."""

    def __init__(self, desk: Desk, request: Request, pending: Pending, keep_alive_s: float) -> None:
        self.background = None
        self._desk, self._request, self._pending = desk, request, pending
        self._wire = WIRES[request.wire]
        self._keep_alive_s = keep_alive_s
        pending.num_waiting += 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Waits and sends; stops as soon as the client is gone. The call itself goes on without us."""
        whole = False
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(_cancel_when_gone, receive, group.cancel_scope)
                await (self._stream(send) if self._request.stream else self._send_whole(send))
                whole = self._pending.answer is not None
                group.cancel_scope.cancel()
        finally:
            self._pending.num_waiting -= 1
            self._desk.note_delivery(self._pending, whole)

    async def _send_whole(self, send: Send) -> None:
        await self._pending.done.wait()
        if self._pending.answer is None:
            assert self._pending.refusal is not None
            response = _refused(self._wire, self._pending.refusal)
            await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
            await send({"type": "http.response.body", "body": response.body})
            return
        body = self._wire.answer_json(self._request, self._pending.answer, self._pending.call_id)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _stream(self, send: Send) -> None:
        request, pending, wire = self._request, self._pending, self._wire
        kind = b"application/json" if request.is_array else b"text/event-stream; charset=utf-8"
        headers = [(b"content-type", kind), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send(_part(wire.stream_start(request, pending.call_id)))
        n = 0
        while not pending.done.is_set():
            with anyio.move_on_after(self._keep_alive_s):
                await pending.done.wait()
            if not pending.done.is_set():
                n += 1
                await send(_part(wire.keep_alive(request, pending.call_id, n)))
        if pending.answer is None:
            assert pending.refusal is not None
            end = wire.stream_error(request, pending.call_id, pending.refusal.message, pending.refusal.kind, n)
        else:
            deltas = wire.stream_answer(request, pending.answer, pending.call_id, n)
            await send(_part(b"".join(deltas)))
            end = wire.stream_end(request, pending.answer, pending.call_id, n)
        await send({"type": "http.response.body", "body": end})


def _part(body: bytes) -> dict[str, object]:
    return {"type": "http.response.body", "body": body, "more_body": True}


async def _cancel_when_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


class _Server(uvicorn.Server):
    """uvicorn inside our event loop: signals stay the supervisor's, readiness is an event."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_ready = anyio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves the process's signal handlers alone."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Sets `is_ready` once connections are accepted."""
        await super().startup(sockets)
        self.is_ready.set()


@asynccontextmanager
async def serving(app: Router, sockets: Sequence[socket.socket]) -> AsyncIterator[None]:
    """Serves `app` on bound sockets until the block ends; connections still open then are cut after two seconds."""
    # At "warning" it tells whoever tries a websocket, as codex does first, to install a library.
    config = uvicorn.Config(
        app, log_config=None, log_level="error", access_log=False, lifespan="off", ws="none", server_header=False,
        timeout_keep_alive=60, timeout_graceful_shutdown=2,
    )  # fmt: skip
    server = _Server(config)
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(server.serve, list(sockets))
            with anyio.fail_after(10):
                await server.is_ready.wait()
            try:
                yield
            finally:
                server.should_exit = True
    finally:
        for bound in sockets:  # an error out of the block cancels the server before it closes them
            bound.close()


def unix_socket(path: Path) -> socket.socket:
    """A bound socket that any user may connect to: the sandbox's user is not ours, and the token is the key."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # left behind by a killed supervisor; the record's lock keeps a living one out
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.bind(str(path))
    except OSError as e:
        bound.close()
        raise HostError(f"{path}: cannot listen: {e}", "set CORRAL_HOME to a shorter, writable path") from e
    path.chmod(0o666)
    return bound


def loopback_socket(port: int) -> socket.socket:
    """A socket bound to 127.0.0.1 only; port 0 lets the host choose."""
    # The protocol is named because asyncio sets TCP_NODELAY only then; without it each answer waits 40 ms.
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(("127.0.0.1", port))
    except OSError as e:
        bound.close()
        raise HostError(f"127.0.0.1:{port}: cannot listen: {e}", "choose another port") from e
    return bound
