"""Teachers for the cold start: they answer calls with text and no token ids, through the same proxy.

A scripted teacher plays a task's shell commands through whatever shell tool the harness offers; an upstream
teacher (`capture.upstream`) asks any OpenAI- or Anthropic-compatible model. Their calls are recorded without a
sample and are never trained on by RL (I1); the cold start renders them anew.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from appliance.capture.session import Answerer, Session
from appliance.errors import CaptureError
from appliance.trees.lineage import asks_for_side_work
from appliance.types import Answer, Message, Request, Sample, StopReason, TokenIds, Tool, ToolCall

# Argument names by which shell tools take their command, in the order they are looked for.
_ARGUMENTS = ("command", "cmd")


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
