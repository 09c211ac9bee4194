"""HTTP/1.1 to one server with nothing in between: kept-alive connections, JSON bodies in, whole bodies out.

General client libraries cost more processor time a call than all the rest of the proxy, and a call to the engine needs
none of what they offer. A connection that the server closed while it was idle is noticed, and the request goes out
once more on a new one.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

_LIMIT = 1 << 20
_MAX_IDLE = 256
_ERRORS = (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, ValueError)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class BrokenLine(Exception):
    """The server cannot be reached, or what it says is not HTTP."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A status and a whole body."""

    status: int
    body: bytes

    @property
    def is_success(self) -> bool:
        """Whether the server did what it was asked."""
        return 200 <= self.status < 300

    @property
    def is_server_error(self) -> bool:
        """Whether the server says that it failed."""
        return self.status >= 500


class HttpLine:
    """Requests to the server of `url`; `headers` go out with each. `close` when done.

    `uds`: the server listens on this Unix socket, and the URL's host is a mere name.
    """

    def __init__(self, url: str, headers: dict[str, str] | None = None, uds: Path | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not an http or https URL")
        self._host, self._port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self._uds = uds
        self._prefix = parts.path.rstrip("/")
        lines = {"host": parts.netloc.rpartition("@")[2], "content-type": "application/json", **(headers or {})}
        self._head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self._idle: list[Streams] = []

    async def get(self, path: str) -> Reply:
        """GET `path`, which is appended to the URL's own; raises BrokenLine."""
        return await self._request("GET", path, b"")

    async def post(self, path: str, body: bytes, headers: str = "") -> Reply:
        """POST `body`. `headers`: more header lines, each ended by CR LF."""
        return await self._request("POST", path, body, headers)

    async def close(self) -> None:
        """Closes the idle connections."""
        while self._idle:
            writer = self._idle.pop()[1]
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _request(self, method: str, path: str, body: bytes, headers: str = "") -> Reply:
        head = f"{method} {self._prefix}{path} HTTP/1.1\r\n{self._head}{headers}content-length: {len(body)}\r\n\r\n"
        data = head.encode() + body
        while self._idle:
            streams = self._idle.pop()
            if streams[0].at_eof():
                streams[1].close()
                continue
            try:
                return await self._exchange(streams, data)
            except BrokenLine:
                break
        try:
            opened = await self._open()
        except OSError as e:
            raise BrokenLine(f"{self._uds or f'{self._host}:{self._port}'}: {e}") from e
        return await self._exchange(opened, data)

    async def _open(self) -> Streams:
        if self._uds is not None:
            return await asyncio.open_unix_connection(str(self._uds), limit=_LIMIT)
        return await asyncio.open_connection(self._host, self._port, limit=_LIMIT, ssl=self._ssl)

    async def _exchange(self, streams: Streams, data: bytes) -> Reply:
        """One request and its answer; the connection is kept if all went well, and closed if anything did not."""
        reader, writer = streams
        whole = False
        try:
            writer.write(data)
            head, body = await read_message(reader)
            status = int(head.split(b" ", 2)[1])
            whole = b"connection: close" not in head.lower() and not head.startswith(b"HTTP/1.0")
            return Reply(status, body)
        except (*_ERRORS, IndexError) as e:
            raise BrokenLine(f"{self._uds or f'{self._host}:{self._port}'}: {type(e).__name__}: {e}") from e
        finally:
            if whole and len(self._idle) < _MAX_IDLE:
                self._idle.append(streams)
            else:
                writer.close()


async def read_message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """(head, body) of one HTTP message whose body has a length or comes in chunks."""
    head = await reader.readuntil(b"\r\n\r\n")
    low = head.lower()
    if b"transfer-encoding: chunked" in low:
        body = bytearray()
        while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readuntil(b"\r\n")
        return head, bytes(body)
    _, found, rest = low.partition(b"\r\ncontent-length:")
    length = int(rest.partition(b"\r\n")[0]) if found else 0
    return head, await reader.readexactly(length) if length else b""
