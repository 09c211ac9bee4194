"""Agent harnesses as data: one TOML file a harness, read strictly, turned into a command line.

A harness is a black box: an image layer, a command, environment, files under its HOME, and the wire
format it speaks. No code here or anywhere knows a harness by name; adding one adds one file.

    name, version, wire          words
    [image]   check, layer       a command that must print the version; Containerfile text
              same_as            instead of both: the name of the harness file whose image this one uses too
              terms              whose terms bind the user who installs it: built only when named, never saved
    [launch]  argv, env          the command, run in /workspace with HOME=/home/agent and no input
    [files]   path = text        written under HOME before each start
    [limits]  memory_mb, pids    what one sandbox of it needs; may_nest = true where it sandboxes its own commands
    [mcp]     file, key, …       how it is told of a task's MCP servers (`mcp_config.py`); else it takes no such task
    [teacher] final_command        what the scripted teacher runs last, where the harness ends only by a command
              command_text         what it says to run `{command}` (JSON-quoted `{command_json}`) without a tool
              final_text           what it says at the end of such a conversation
              helper               the tool by which it hands every second task over to an agent of its own
    [quirks]  name = sentence    where it departs from its wire format; for readers of records

`{prompt}`, `{base_url}`, `{token}`, `{model}` and `{max_tokens}` are filled in at launch in argv, env
and files ({prompt} not in files). The layer text may use `{base}`, `{node}` and `{trixie}`, the images of that
name; its package installs start with `. /run/host/env` so that the host's mirror settings apply during the build.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from typing import NoReturn, TypeAlias

from appliance.errors import HarnessFileError
from appliance.harness.mcp_config import Registration
from appliance.tasks.mcp import McpServer, Transport

WIRES = ("chat", "responses", "messages", "gemini")
WORDS = ("prompt", "base_url", "token", "model", "max_tokens")
PLACEHOLDER = re.compile(r"\{(" + "|".join(WORDS) + r")\}")
# What is written into JSON, TOML and URLs must need no quoting in any of them.
PLAIN_VALUE = re.compile(r"[A-Za-z0-9._:/@+\-]{1,200}")
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,40}")

Table: TypeAlias = dict[str, object]  # one TOML table before it is checked

KEYS: dict[str, dict[str, type]] = {
    "": {"name": str, "version": str, "wire": str, "image": dict, "launch": dict, "files": dict, "limits": dict,
         "mcp": dict, "teacher": dict, "quirks": dict},
    "image": {"check": list, "layer": str, "same_as": str, "terms": str},
    "launch": {"argv": list, "env": dict},
    "limits": {"memory_mb": int, "pids": int, "may_nest": bool},
    "mcp": {"file": str, "key": str, "stdio": dict, "sse": dict, "streamable-http": dict, "arguments": list},
    "teacher": {"final_command": str, "command_text": str, "final_text": str, "helper": str},
}  # fmt: skip
OPTIONAL = {
    "files", "teacher", "final_command", "command_text", "final_text", "helper", "quirks", "check", "layer", "same_as",
    "terms", "may_nest", "mcp", "stdio", "sse", "streamable-http", "arguments",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Launch:
    """One concrete start: command, environment, and files (path under HOME → text)."""

    argv: tuple[str, ...]
    env: dict[str, str]
    files: dict[str, str]


@dataclass(frozen=True, slots=True)
class Harness:
    """One harness file, checked. `layer` is Containerfile text; `check` must print `version`.

    `image` names the image, which variants of one program share. `terms` is empty for what anyone may hand on.
    """

    name: str
    version: str
    wire: str
    check: tuple[str, ...]
    layer: str
    argv: tuple[str, ...]
    env: dict[str, str]
    files: dict[str, str]
    memory_bytes: int
    pids: int
    quirks: dict[str, str]
    final_command: str = ""
    command_text: str = ""
    final_text: str = ""
    helper: str = ""
    image: str = ""
    terms: str = ""
    may_nest: bool = False
    mcp: Registration | None = None

    @classmethod
    def from_file(cls, path: Path) -> Harness:
        """Read one file; HarnessFileError names it and the offending key."""
        try:
            with path.open("rb") as handle:
                table = tomllib.load(handle)
        except (OSError, ValueError) as error:
            raise HarnessFileError(f"{path}: cannot be read: {error}", "correct the file") from error
        return _Reader(path).harness(table)

    def launch(
        self, prompt: str, base_url: str, token: str, model: str, max_tokens: int, servers: Sequence[McpServer] = ()
    ) -> Launch:
        """Fill in the placeholders for one rollout, and tell the harness of the task's MCP servers.

        Raises ValueError for a base_url, token or model that cannot stand unquoted in a file or URL, HarnessFileError
        where the harness cannot be told of these servers.
        """
        values = {"base_url": base_url, "token": token, "model": model, "max_tokens": str(max_tokens)}
        for word, value in values.items():
            if not PLAIN_VALUE.fullmatch(value):
                raise ValueError(f"harness {self.name}: {word} {value!r} holds a character that is not allowed there")
        values["prompt"] = prompt
        files = {key: _fill(text, values) for key, text in self.files.items()}
        argv = self.argv
        if servers:
            files, argv = self._registered(files, servers)
        return Launch(
            argv=tuple(_fill(text, values) for text in argv),
            env={key: _fill(text, values) for key, text in self.env.items()},
            files=files,
        )

    def why_not(self, servers: Sequence[McpServer]) -> str:
        """Why the harness cannot be told of these MCP servers; '' when it can."""
        if not servers or (self.mcp is not None and not self.mcp.lacks(servers)):
            return ""
        if self.mcp is None:
            return "its file has no [mcp] table"
        return "; ".join(f"its file has no mcp.{s.transport}, which {s.name} is" for s in self.mcp.lacks(servers))

    def _registered(
        self, files: dict[str, str], servers: Sequence[McpServer]
    ) -> tuple[dict[str, str], tuple[str, ...]]:
        """Files with the servers in them, and the command that has them read."""
        why = self.why_not(servers)
        try:
            if self.mcp is None or why:
                raise ValueError(why)
            return self.mcp.registered(files, servers), (*self.argv, *self.mcp.arguments)
        except ValueError as error:
            names = ", ".join(server.name for server in servers)
            raise HarnessFileError(
                f"harness {self.name} cannot be told of the MCP server {names}: {error}", "see [mcp] in its file"
            ) from error


def load_harnesses(folder: Path) -> dict[str, Harness]:
    """Every *.toml of `folder` by harness name, sorted. The file's name must be the harness's name."""
    paths = sorted(folder.glob("*.toml"))
    if not paths:
        raise HarnessFileError(f"{folder}: no harness files there", "name the folder that holds the *.toml files")
    return {harness.name: harness for harness in map(Harness.from_file, paths)}


@dataclass(frozen=True, slots=True)
class _Program:
    """What an image holds; `version` is empty where the file that is being read says it."""

    image: str
    version: str
    check: tuple[str, ...]
    layer: str
    terms: str


class _Reader:
    """Checks one file's tables; every error names the file and the key."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def harness(self, table: Table) -> Harness:
        self.check_keys("", table)
        tables = {name: self.table(table, name) for name in KEYS[""] if KEYS[""][name] is dict}
        for name in ("image", "launch", "limits", "teacher", *(["mcp"] if "mcp" in table else [])):
            self.check_keys(name, tables[name])
        image, teacher = tables["image"], tables["teacher"]
        name = self.text(table, "name", NAME)
        program = self.program(image, name)
        harness = Harness(
            name=name,
            version=self.text(table, "version"),
            wire=self.text(table, "wire"),
            check=program.check,
            layer=program.layer,
            argv=self.texts(tables["launch"], "launch.argv"),
            env=self.text_table(self.table(tables["launch"], "env"), "launch.env"),
            files=self.text_table(tables["files"], "files"),
            memory_bytes=self.positive(tables["limits"], "limits.memory_mb") * 1_000_000,
            pids=self.positive(tables["limits"], "limits.pids"),
            quirks=self.text_table(tables["quirks"], "quirks"),
            final_command=self.optional(teacher, "teacher.final_command"),
            command_text=self.optional(teacher, "teacher.command_text"),
            final_text=self.optional(teacher, "teacher.final_text"),
            helper=self.optional(teacher, "teacher.helper"),
            image=program.image,
            terms=program.terms,
            may_nest=bool(tables["limits"].get("may_nest", False)),
            mcp=self.registration(tables["mcp"]) if "mcp" in table else None,
        )
        self.check_meaning(harness)
        if harness.version != (program.version or harness.version):
            self.fail("version", f"is not that of {program.image}, {program.version}", "make the two equal")
        return harness

    def registration(self, mcp: Table) -> Registration:
        """How the harness is told of MCP servers."""
        entries = {transport: self.table(mcp, transport) for transport in Transport if transport in mcp}
        arguments = self.texts(mcp, "mcp.arguments") if "arguments" in mcp else ()
        return Registration(self.text(mcp, "mcp.file"), self.text(mcp, "mcp.key"), entries, arguments)

    def program(self, image: Table, name: str) -> _Program:
        """What the image holds: this file's own, or that of the file named by `same_as`."""
        if "same_as" not in image:
            for key in ("check", "layer"):
                if key not in image:
                    self.fail(f"image.{key}", "is missing", "add it, or same_as")
            check, layer = self.texts(image, "image.check"), self.text(image, "image.layer")
            return _Program(name, "", check, layer, self.optional(image, "image.terms"))
        for key in ("check", "layer", "terms"):
            if key in image:
                self.fail(f"image.{key}", "stands beside same_as", "keep one of the two")
        other = self.text(image, "image.same_as", NAME)
        path = self.path.with_name(f"{other}.toml")
        if not path.is_file() or path == self.path:
            self.fail("image.same_as", f"is {other!r}, and there is no {path}", "name another harness file beside this")
        found = Harness.from_file(path)
        if found.image != other:
            self.fail("image.same_as", f"is {other!r}, which has no image of its own", f"write {found.image!r}")
        return _Program(other, found.version, found.check, found.layer, found.terms)

    def check_meaning(self, harness: Harness) -> None:
        if harness.name != self.path.stem:
            self.fail("name", f"is {harness.name!r}, but the file is called {self.path.name}", "make the two equal")
        if harness.wire not in WIRES:
            self.fail("wire", f"is {harness.wire!r}", f"use one of: {', '.join(WIRES)}")
        if not any("{prompt}" in text for text in harness.argv):
            self.fail("launch.argv", "does not use {prompt}", "pass the task's instruction as {prompt}")
        used = " ".join((*harness.argv, *harness.env.values(), *harness.files.values()))
        if "{base_url}" not in used:
            self.fail("launch", "does not use {base_url} anywhere", "point the harness's API base at {base_url}")
        for path, text in harness.files.items():
            parts = PurePosixPath(path)
            if parts.is_absolute() or ".." in parts.parts or path != str(parts):
                self.fail(f"files.{path}", "is not a plain path under HOME", "write it as .folder/file")
            if "{prompt}" in text:
                self.fail(f"files.{path}", "uses {prompt}", "pass the prompt in launch.argv")
        if harness.mcp is not None:
            try:
                harness.mcp.check({path: PLACEHOLDER.sub("1", text) for path, text in harness.files.items()})
            except ValueError as error:
                self.fail("mcp", str(error), "see docs/harnesses.md")

    def check_keys(self, name: str, table: Table) -> None:
        known = KEYS[name]
        prefix = f"{name}." if name else ""
        for key, value in table.items():
            if key not in known:
                near = get_close_matches(key, known, n=1)
                remedy = f"did you mean {prefix}{near[0]}?" if near else f"known keys: {', '.join(known)}"
                self.fail(prefix + key, "is not a known key", remedy)
            if not isinstance(value, known[key]) or (isinstance(value, bool) and known[key] is not bool):
                self.fail(prefix + key, f"must be a {known[key].__name__}", "correct its type")
        for key in known:
            if key not in table and key not in OPTIONAL:
                self.fail(prefix + key, "is missing", "add it")

    def table(self, table: Table, key: str) -> Table:
        value = table.get(key, {})
        assert isinstance(value, dict)  # check_keys has seen it
        return value

    def text(self, table: Table, key: str, pattern: re.Pattern[str] | None = None) -> str:
        value = table[key.rpartition(".")[2]]
        assert isinstance(value, str)
        if not value.strip() or (pattern and not pattern.fullmatch(value)):
            self.fail(key, f"is {value!r}", f"must match {pattern.pattern}" if pattern else "must not be empty")
        return value

    def optional(self, table: Table, key: str) -> str:
        return self.text(table, key) if key.rpartition(".")[2] in table else ""

    def texts(self, table: Table, key: str) -> tuple[str, ...]:
        value = table[key.rpartition(".")[2]]
        if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
            self.fail(key, "must be a non-empty list of strings", 'write it as ["program", "argument"]')
        return tuple(value)

    def text_table(self, table: Table, key: str) -> dict[str, str]:
        result: dict[str, str] = {}
        for name, value in table.items():
            if not isinstance(value, str):
                self.fail(f"{key}.{name}", "must be a string", "quote it")
            result[name] = value
        return result

    def positive(self, table: Table, key: str) -> int:
        value = table[key.rpartition(".")[2]]
        assert isinstance(value, int)
        if value <= 0:
            self.fail(key, f"is {value}", "must be greater than 0")
        return value

    def fail(self, key: str, problem: str, remedy: str) -> NoReturn:
        raise HarnessFileError(f"{self.path}: {key} {problem}", remedy)


def _fill(text: str, values: dict[str, str]) -> str:
    """Put the values in; one pass, so a value that looks like a placeholder stays as it is."""
    return PLACEHOLDER.sub(lambda match: values[match[1]], text)
