"""The smallest HTTP/1.1 server that a measurement needs: what is measured is the proxy, not its ends."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable

from appliance.engine.http import read_message

Handler = Callable[[str, bytes], Awaitable[bytes]]
_LIMIT = 1 << 20


async def serve(handle: Handler) -> None:
    """Serves JSON on a free port of 127.0.0.1, prints the port, and ends when standard input closes."""

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head, body = await read_message(reader)
                answer = await handle(head.split(b" ", 2)[1].decode().partition("?")[0], body)
                start = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(answer)}\r\n\r\n"
                writer.write(start.encode() + answer)
        except (asyncio.IncompleteReadError, ConnectionError, LookupError):
            writer.close()

    server = await asyncio.start_server(connection, "127.0.0.1", 0, limit=_LIMIT)
    os.write(1, f"{server.sockets[0].getsockname()[1]}\n".encode())
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    os._exit(0)
