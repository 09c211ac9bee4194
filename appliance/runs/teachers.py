"""Teachers for the cold start: they answer calls with text and no token ids, through the same proxy.

A scripted teacher plays a task's shell commands through whatever shell tool the harness offers; an upstream
teacher asks any OpenAI- or Anthropic-compatible model. Their calls are recorded without a sample and are
never trained on by RL (I1); the cold start renders them anew.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import anyio
import httpx

from appliance.capture.session import Answerer, Session
from appliance.capture.wire.upstream import anthropic_body, anthropic_message, openai_body, openai_message
from appliance.errors import CaptureError
from appliance.system.redact import without_secrets
from appliance.trees.lineage import asks_for_side_work
from appliance.types import Answer, Message, Request, Sample, StopReason, TokenIds, Tool, ToolCall

# Argument names by which shell tools take their command, in the order they are looked for.
_ARGUMENTS = ("command", "cmd")
_BUSY = (429, 503, 529)
_BUSY_TRIES, _BUSY_S, _BUSY_MOST_S = 3, 2.0, 30.0


@dataclass(frozen=True, slots=True)
class ShellTool:
    """The tool through which commands are run, and the argument that takes the command."""

    name: str
    argument: str
    namespace: str = ""
    takes_words: bool = False
    others: tuple[str, ...] = ()  # further texts that the tool requires, such as a description of the command

    @classmethod
    def among(cls, tools: Sequence[Tool], name: str = "", argument: str = "") -> ShellTool:
        """The offered tool called `name`, or the first that requires a command; CaptureError if there is none."""
        for tool in tools:
            found = cls._of(tool, argument)
            if found is not None and name in ("", tool.name):
                return found
        offered = ", ".join(tool.name for tool in tools) or "no tools"
        raise CaptureError("no_shell_tool", f"the scripted teacher found no shell tool {name!r} among {offered}")

    @classmethod
    def _of(cls, tool: Tool, argument: str) -> ShellTool | None:
        schema = json.loads(tool.parameters)
        properties = schema.get("properties")
        if not isinstance(properties, dict):
            return None
        for key in (argument,) if argument else _ARGUMENTS:
            if key in properties:
                kind = properties[key].get("type") if isinstance(properties[key], dict) else None
                return cls(tool.name, key, tool.namespace, kind == "array", _required_texts(schema, key))
        return None

    def call(self, command: str) -> ToolCall:
        """The call that runs `command`."""
        value = ["bash", "-lc", command] if self.takes_words else command
        arguments = {self.argument: value} | dict.fromkeys(self.others, "run a command")
        return ToolCall("call_0", self.name, json.dumps(arguments, ensure_ascii=False), self.namespace)


def _required_texts(schema: dict[str, Any], own: str) -> tuple[str, ...]:
    """Names of the required string arguments besides `own`."""
    required = schema.get("required")
    properties = schema["properties"]
    return tuple(
        name
        for name in (required if isinstance(required, list) else ())
        if name != own and isinstance(properties.get(name), dict) and properties[name].get("type") == "string"
    )


class SpokenTeacher:
    """Plays `commands` in a harness without tools: each in the words of `command_text`, then `final_text`.

    `{command}` there is the command, `{command_json}` the same as a JSON string.
    """

    renderer = None
    context_length = None
    grafts = False

    def __init__(self, commands: Sequence[str], command_text: str, final_text: str) -> None:
        self._final_text = final_text
        self._spoken = [_spoken(command_text, command) for command in commands]

    async def answer(
        self, session: object, request: Request, prompt_ids: TokenIds | None
    ) -> tuple[Answer, Sample | None]:
        """The text that makes the harness run the next command, or its closing words."""
        own = {text.strip() for text in self._spoken}  # some harnesses put words of theirs into the policy's mouth
        turn = sum(message.role == "assistant" and message.content.strip() in own for message in request.messages)
        text = self._spoken[turn] if turn < len(self._spoken) else self._final_text or "done"
        return Answer(Message("assistant", text), StopReason.STOP), None


def _spoken(text: str, command: str) -> str:
    return text.replace("{command_json}", json.dumps(command)).replace("{command}", command)


class ScriptedTeacher:
    """Plays `commands`, one a turn, then says `farewell`; a harness that ends only by a command gets `final_command`.

    Which turn it is follows from the assistant turns in the request, so retries and forks play right; where the
    harness has put a summary in their place, from the commands that the teacher's own summary names.
    A harness with a `helper` tool hands every second task over to an agent of its own, which then plays the commands.
    """

    renderer = None
    context_length = None
    grafts = False

    def __init__(
        self,
        commands: Sequence[str],
        tool: str = "",
        argument: str = "",
        final_command: str = "",
        farewell: str = "done",
        helper: str = "",
    ) -> None:
        self._commands = (*commands, final_command) if final_command else tuple(commands)
        self._tool, self._argument, self._farewell, self._helper = tool, argument, farewell, helper

    async def answer(
        self, session: object, request: Request, prompt_ids: TokenIds | None
    ) -> tuple[Answer, Sample | None]:
        """The next command as a tool call, a summary where one is asked for, or the farewell."""
        return Answer(self._said(request), StopReason.STOP), None

    def _said(self, request: Request) -> Message:
        if not request.tools and asks_for_side_work(request):
            return Message("assistant", self._summary(request.messages))
        turn = self._done(request.messages)
        helper = next((tool for tool in request.tools if tool.name == self._helper), None)
        if helper is not None and _hands_over(request.messages):
            return Message("assistant", self._farewell) if turn else _handed_over(helper, request.messages)
        if turn >= len(self._commands):
            return Message("assistant", HELPERS_FAREWELL if self._helper and helper is None else self._farewell)
        shell = ShellTool.among(request.tools, self._tool, self._argument)
        return Message("assistant", tool_calls=(shell.call(self._commands[turn]),))

    def _done(self, messages: Sequence[Message]) -> int:
        """Commands played so far: those that a summary names, and a turn each since."""
        named = 0
        told = "\n".join(message.content for message in messages if message.role == "user")
        while named < len(self._commands) and f"{RAN}{self._commands[named]}\n" in f"{told}\n":
            named += 1
        return named + sum(message.role == "assistant" for message in messages)

    def _summary(self, messages: Sequence[Message]) -> str:
        """Each command played so far, and the last line that the latest of them printed."""
        ran = [f"{RAN}{command}" for command in self._commands[: self._done(messages)]]
        results = [message.content.strip() for message in messages if message.role == "tool"]
        line = results[-1].splitlines()[-1][:MOST_RETOLD] if results and results[-1] else ""
        return "\n".join([*ran, *([f"It printed {line}"] if line and not line.endswith(":") else [])])


RAN = "Ran "
"""How a summary names a command."""
MOST_RETOLD = 200
"""Characters of a printed line that a summary retells."""
HELPERS_FAREWELL = "The task is done."
"""Longer than the main agent's: it is found again in the prompt that it goes back into."""


def _task(messages: Sequence[Message]) -> str:
    return next((message.content.strip() for message in messages if message.role == "user"), "")


def _hands_over(messages: Sequence[Message]) -> bool:
    """Every second task, by a checksum of its words: the same task always alike."""
    return zlib.crc32(_task(messages).encode()) % 2 == 0


def _handed_over(helper: Tool, messages: Sequence[Message]) -> Message:
    """The call that gives the helper the whole task in its own words."""
    arguments = dict.fromkeys(_required_texts(json.loads(helper.parameters), ""), _task(messages))
    call = ToolCall("call_0", helper.name, json.dumps(arguments, ensure_ascii=False), helper.namespace)
    return Message("assistant", tool_calls=(call,))


@dataclass(frozen=True, slots=True)
class StepTeacher:
    """Plays a task of several steps: each is answered by the teacher of its number."""

    by_step: Sequence[Answerer]
    renderer = None
    context_length = None
    grafts = False

    async def answer(
        self, session: Session, request: Request, prompt_ids: TokenIds | None
    ) -> tuple[Answer, Sample | None]:
        """What the teacher of the session's step says."""
        return await self.by_step[session.step].answer(session, request, prompt_ids)


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
