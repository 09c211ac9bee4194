"""The scripted teacher where a harness forks: it writes the summary that is asked for, and has a helper do tasks."""

from __future__ import annotations

import json
import zlib

import pytest

from appliance.runs.teachers import ScriptedTeacher
from appliance.types import Message, Request, Tool, ToolCall

pytestmark = pytest.mark.anyio
BASH = Tool("bash", "Run.", '{"type": "object", "properties": {"command": {"type": "string"}}}')
DELEGATE = Tool("delegate", "Help.", '{"properties": {"task": {"type": "string"}}, "required": ["task"]}')
ASK = Message("user", "You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary.")
TASK = Message("user", "Find the value of pilot under boat.")
COMMANDS = ("grep -rh ^pilot= boat", "echo salmon > answer.txt")


async def said(teacher: ScriptedTeacher, *messages: Message, tools: tuple[Tool, ...] = (BASH,)) -> Message:
    answer, sample = await teacher.answer(None, Request("chat", "m", messages, tools), None)
    assert sample is None
    return answer.message


def ran(command: str, printed: str) -> tuple[Message, Message]:
    call = ToolCall("call_0", "bash", json.dumps({"command": command}))
    return Message("assistant", tool_calls=(call,)), Message("tool", printed, tool_call_id="call_0")


async def test_a_summary_names_what_was_run_and_the_last_line_it_printed() -> None:
    teacher = ScriptedTeacher(COMMANDS)
    summary = await said(teacher, TASK, *ran(COMMANDS[0], "Chunk ID: 1\nOutput:\npilot=salmon\n"), ASK, tools=())
    assert summary.content == "Ran grep -rh ^pilot= boat\nIt printed pilot=salmon" and not summary.tool_calls


async def test_it_goes_on_from_its_own_summary_and_sums_up_again() -> None:
    teacher = ScriptedTeacher(COMMANDS)
    first = Message("user", "What was done so far:\nRan grep -rh ^pilot= boat\nIt printed pilot=salmon")
    (call,) = (await said(teacher, TASK, first)).tool_calls
    assert json.loads(call.arguments) == {"command": COMMANDS[1]}
    again = await said(teacher, TASK, first, *ran(COMMANDS[1], "Chunk ID: 2\nOutput:\n"), ASK, tools=())
    assert again.content == "Ran grep -rh ^pilot= boat\nRan echo salmon > answer.txt"
    assert (await said(teacher, TASK, Message("user", again.content))).content == "done"


async def test_a_command_that_another_begins_with_is_not_taken_for_it() -> None:
    teacher = ScriptedTeacher(["ls", "ls -a"])
    (call,) = (await said(teacher, TASK, Message("user", "Ran ls"))).tool_calls
    assert json.loads(call.arguments) == {"command": "ls -a"}
    (call,) = (await said(teacher, TASK, Message("user", "Ran ls -a"))).tool_calls
    assert json.loads(call.arguments) == {"command": "ls"}


async def test_every_second_task_goes_to_the_helper_which_then_plays_it() -> None:
    teacher = ScriptedTeacher(["touch a"], helper="delegate")
    tasks = [Message("user", f"make the file number {n}") for n in range(8)]
    handed = [task for task in tasks if zlib.crc32(task.content.encode()) % 2 == 0]
    assert 0 < len(handed) < 8
    for task in tasks:
        (call,) = (await said(teacher, task, tools=(BASH, DELEGATE))).tool_calls
        expected = ("delegate", {"task": task.content}) if task in handed else ("bash", {"command": "touch a"})
        assert (call.name, json.loads(call.arguments)) == expected
    (call,) = (await said(teacher, handed[0])).tool_calls
    assert json.loads(call.arguments) == {"command": "touch a"}
    helper_ends = await said(teacher, handed[0], *ran("touch a", "exit code 0"))
    assert helper_ends.content == "The task is done."
    back = Message("tool", helper_ends.content, tool_call_id="call_0")
    main_ends = await said(teacher, handed[0], Message("assistant", tool_calls=(call,)), back, tools=(BASH, DELEGATE))
    assert main_ends.content == "done"
