"""MCP servers that a task brings: `[[environment.mcp_servers]]` of a task.toml, read strictly and written back. Pure.

name        what the harness calls it; its tools are named after it
transport   stdio, sse or streamable-http (also http); sse where none is named, as in Harbor
command     stdio: the program, which the harness starts inside its own sandbox, in /workspace
args        stdio: its arguments
url         the others: where the sandbox's own loopback has it. A sandbox has no network, so no other host is there.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from appliance.errors import PackError

KEY = "environment.mcp_servers"
KNOWN = ("name", "transport", "command", "args", "url", "headers")
LOOPBACK = ("127.0.0.1", "localhost")
# Harnesses make tool names of it, parted by two underscores, and keys of their configuration.
_NAME = re.compile(r"[A-Za-z0-9]+(?:[_-][A-Za-z0-9]+)*")
_MAX_NAME = 40


class Transport(StrEnum):
    """How a harness talks to a server."""

    STDIO = "stdio"
    SSE = "sse"
    HTTP = "streamable-http"


@dataclass(frozen=True, slots=True)
class McpServer:
    """One server. `command` and `args` belong to stdio, `url` to the other transports; what does not is empty."""

    name: str
    transport: Transport
    command: str = ""
    args: tuple[str, ...] = ()
    url: str = ""


def read_servers(file: Path, value: object) -> tuple[McpServer, ...]:
    """The servers of a task.toml's `environment.mcp_servers`; PackError names `file`, the key and the remedy."""
    if not isinstance(value, list):
        raise PackError(f"{file}: key {KEY}: is not a list of tables", f"write each server as [[{KEY}]]")
    servers: dict[str, McpServer] = {}
    for n, entry in enumerate(value):
        server = _Entry(file, f"{KEY}[{n}]", entry).server()
        if server.name in servers:
            raise PackError(f"{file}: key {KEY}[{n}].name: {server.name!r} is there twice", "give one another name")
        servers[server.name] = server
    return tuple(servers.values())


class _Entry:
    """One server's table while it is read."""

    def __init__(self, file: Path, place: str, entry: object) -> None:
        self.file, self.place = file, place
        if not isinstance(entry, dict):
            raise PackError(f"{file}: key {place}: is not a table", f"write each server as [[{KEY}]]")
        self.entry: dict[str, object] = entry

    def server(self) -> McpServer:
        for key in self.entry:
            if key not in KNOWN:
                near = difflib.get_close_matches(key, KNOWN, n=1)
                self.fail(key, "unknown", f"did you mean {near[0]}?" if near else f"known keys: {', '.join(KNOWN)}")
        name, transport = self.name(), self.transport()
        if self.entry.get("headers"):
            self.fail("headers", "nothing that a sandbox can reach wants headers, and no secret enters one", "drop it")
        if transport is Transport.STDIO:
            self.foreign("url", transport)
            return McpServer(name, transport, self.text("command", "the program to start"), self.args())
        self.foreign("command", transport)
        self.foreign("args", transport)
        return McpServer(name, transport, url=self.url())

    def name(self) -> str:
        name = self.text("name", "a name for its tools")
        if not _NAME.fullmatch(name) or len(name) > _MAX_NAME:
            self.fail(
                "name",
                f"{name!r} cannot stand in a harness's configuration and in tool names",
                f"use letters and digits, parted by single dashes or underscores, at most {_MAX_NAME} in all",
            )
        return name

    def transport(self) -> Transport:
        value = self.entry.get("transport", Transport.SSE)
        if value == "http":
            return Transport.HTTP
        if value not in tuple(Transport):
            self.fail("transport", f"{value!r} is unknown", f"use one of: {', '.join(Transport)}")
        return Transport(str(value))

    def args(self) -> tuple[str, ...]:
        values = self.entry.get("args", [])
        if not isinstance(values, list) or not all(isinstance(v, str) and "\0" not in v for v in values):
            self.fail("args", "is not a list of strings without NUL bytes", 'write it as ["-m", "server"]')
        return tuple(values)

    def url(self) -> str:
        url = self.text("url", f"where the sandbox has it: http://{LOOPBACK[0]}:PORT/…")
        try:
            parts = urlsplit(url)
            is_sound = parts.scheme in ("http", "https") and parts.port != 0 and url.isascii() and " " not in url
        except ValueError:
            is_sound = False
        if not is_sound or not url.isprintable():
            self.fail("url", f"{url!r} is not a URL", f"write http://{LOOPBACK[0]}:PORT/…")
        if parts.hostname not in LOOPBACK or "@" in parts.netloc:
            self.fail(
                "url",
                f"{url} is another machine or service, and a sandbox has no network",
                f"serve it inside the sandbox, at {' or '.join(LOOPBACK)}, or make it a stdio server",
            )
        return url

    def text(self, key: str, purpose: str) -> str:
        value = self.entry.get(key)
        if value is None:
            self.fail(key, "missing", f"add it: {purpose}")
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            self.fail(key, f"{value!r} is not text without NUL bytes", f"write {purpose}")
        return value

    def foreign(self, key: str, transport: Transport) -> None:
        if self.entry.get(key):
            self.fail(key, f"stands beside transport {str(transport)!r}, which has none", "keep one of the two")

    def fail(self, key: str, problem: str, remedy: str) -> NoReturn:
        raise PackError(f"{self.file}: key {self.place}.{key}: {problem}", remedy)


def servers_toml(servers: Sequence[McpServer]) -> str:
    """The servers as text of a task.toml; '' for none."""
    return "".join(f"\n[[{KEY}]]\n" + "".join(f"{line}\n" for line in _lines(server)) for server in servers)


def _lines(server: McpServer) -> list[str]:
    lines = [f"name = {quoted(server.name)}", f"transport = {quoted(server.transport)}"]
    if server.transport is not Transport.STDIO:
        return [*lines, f"url = {quoted(server.url)}"]
    return [*lines, f"command = {quoted(server.command)}", f"args = [{', '.join(map(quoted, server.args))}]"]


def quoted(text: str) -> str:
    """The text between double quotes as both TOML and YAML read it."""
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(letter: str) -> str:
    if letter in '"\\':
        return f"\\{letter}"
    if letter.isprintable():
        return letter
    return f"\\u{ord(letter):04x}" if ord(letter) < 0x10000 else f"\\U{ord(letter):08x}"
