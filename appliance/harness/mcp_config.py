"""How a harness is told of a task's MCP servers: the `[mcp]` table of its file, and the configuration it makes. Pure.

    [mcp]   file             which file under HOME holds the servers: .json, .toml, .yaml; made where [files] has none
            key              where they stand in it; dots part tables in tables
            stdio            how one server looks, a table for each transport that the harness has:
            sse              {name}, {command}, {url} are its texts; {args} the list of its arguments, {argv} of
            streamable-http  command and arguments. A table with {name} stands in a list, any other under its name
            arguments        words put at the end of launch.argv where there are servers

What the file holds besides stays as it is in TOML and YAML, where servers are written at its end; JSON is written anew.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TypeAlias

from appliance.tasks.mcp import McpServer, Transport, quoted

Value: TypeAlias = object  # what TOML and JSON both have, but dates
Table: TypeAlias = dict[str, Value]
Servers: TypeAlias = list[Table] | dict[str, Table]

KEY = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")
_WORD = re.compile(r"\{[a-z_]+\}")
_WORDS = {
    Transport.STDIO: ("{name}", "{command}", "{args}", "{argv}"),
    Transport.SSE: ("{name}", "{url}"),
    Transport.HTTP: ("{name}", "{url}"),
}


@dataclass(frozen=True, slots=True)
class Registration:
    """The `[mcp]` table of a harness file. `entries` has how a server of each transport that it takes looks."""

    file: str
    key: str
    entries: dict[Transport, Table]
    arguments: tuple[str, ...] = ()

    @property
    def is_list(self) -> bool:
        """Whether the servers stand in a list, each saying its own name."""
        return any("{name}" in _words_in(entry) for entry in self.entries.values())

    def lacks(self, servers: Sequence[McpServer]) -> tuple[McpServer, ...]:
        """The servers whose transport the harness cannot use."""
        return tuple(server for server in servers if server.transport not in self.entries)

    def registered(self, files: Mapping[str, str], servers: Sequence[McpServer]) -> dict[str, str]:
        """The harness's files with the servers in them; ValueError where its own configuration leaves no room."""
        text = files.get(self.file, "")
        filled = {server.name: _filled(self.entries[server.transport], server) for server in servers}
        listed: Servers = list(filled.values()) if self.is_list else filled
        try:
            merged = _WRITERS[PurePosixPath(self.file).suffix](text, self.key.split("."), listed)
        except ValueError as error:
            raise ValueError(f"{self.file}: {error}") from error
        return {**files, self.file: merged}

    def check(self, files: Mapping[str, str]) -> None:
        """Try it on the harness's own files; ValueError says what is wrong, beginning with the key."""
        path = PurePosixPath(self.file)
        if path.is_absolute() or ".." in path.parts or self.file != str(path):
            raise ValueError(f"file {self.file!r} is not a plain path under HOME")
        if path.suffix not in _WRITERS:
            raise ValueError(f"file {self.file!r} is none of {', '.join(_WRITERS)}")
        if not KEY.fullmatch(self.key):
            raise ValueError(f"key {self.key!r} is not a key, or several with dots between them")
        if not self.entries:
            raise ValueError(f"names no transport: add one of {', '.join(Transport)}")
        if path.suffix in (".yaml", ".yml") and "." in self.key:
            raise ValueError(f"key {self.key!r} is not at the top, where alone YAML is written")
        for transport, entry in self.entries.items():
            if self.is_list and "{name}" not in _words_in(entry):
                raise ValueError(f"{transport} lacks {{name}}, which another transport has")
            for word in sorted(set(_words_in(entry)) - set(_WORDS[transport])):
                raise ValueError(f"{transport} uses {word}; it may use {', '.join(_WORDS[transport])}")
        self.registered(files, [McpServer("x", transport) for transport in self.entries][:1])


def _words_in(value: Value) -> list[str]:
    if isinstance(value, dict):
        return [word for item in value.values() for word in _words_in(item)]
    if isinstance(value, list):
        return [word for item in value for word in _words_in(item)]
    return _WORD.findall(value) if isinstance(value, str) else []


def _filled(entry: Table, server: McpServer) -> Table:
    """One server as the harness wants it. A text that is one word of ours becomes its value, any other stays."""
    values: dict[str, Value] = {
        "{name}": server.name,
        "{command}": server.command,
        "{args}": list(server.args),
        "{argv}": [server.command, *server.args],
        "{url}": server.url,
    }

    def fill(value: Value) -> Value:
        if isinstance(value, dict):
            return {key: fill(item) for key, item in value.items()}
        if isinstance(value, list):
            return [fill(item) for item in value]
        return values.get(value, value) if isinstance(value, str) else value

    return {key: fill(value) for key, value in entry.items()}


# ------------------------------------------------------------------ the three file forms


def _as_json(text: str, key: list[str], servers: Servers) -> str:
    document: Value = json.loads(text) if text.strip() else {}
    table = document
    for part in key[:-1]:
        table = table.setdefault(part, {}) if isinstance(table, dict) else None
    if not isinstance(table, dict) or key[-1] in table:
        raise ValueError(f"{'.'.join(key)} is taken already")
    table[key[-1]] = servers
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _as_toml(text: str, key: list[str], servers: Servers) -> str:
    path = ".".join(key)
    named = servers.items() if isinstance(servers, dict) else [("", server) for server in servers]
    lines = [text.rstrip("\n")] if text.strip() else []
    for name, server in named:
        lines.append(f"[{path}.{name}]" if name else f"[[{path}]]")
        lines += [f"{name_of} = {_inline(value, ' = ')}" for name_of, value in server.items()]
    merged = "\n".join(lines) + "\n"
    tomllib.loads(merged)  # a key that is taken already is an error of its own
    return merged


def _as_yaml(text: str, key: list[str], servers: Servers) -> str:
    (name,) = key
    if re.search(rf"^['\"]?{re.escape(name)}['\"]?\s*:", text, re.M):
        raise ValueError(f"{name} is taken already")
    lines = [text.rstrip("\n")] if text.strip() else []
    return "\n".join([*lines, f"{name}: {_inline(servers, ': ')}"]) + "\n"


_WRITERS = {".json": _as_json, ".toml": _as_toml, ".yaml": _as_yaml, ".yml": _as_yaml}


def _inline(value: Value, colon: str) -> str:
    """A value on one line, as TOML (` = `) and as YAML (`: `) have it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{quoted(key)}{colon}{_inline(item, colon)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_inline(item, colon) for item in value) + "]"
    return quoted(value) if isinstance(value, str) else json.dumps(value)
