"""Whose call it is: by the headers that each harness sends, and by the conversation where it sends none."""

from __future__ import annotations

import json

import pytest

from appliance.trees.lineage import Family, Lineage, from_text
from appliance.types import Answer, CallKind, Message, Request, StopReason, Tool, ToolCall

BASH = Tool("bash")
TASK = "Find every file that names the key and list them."


def asked(*texts: str, tools: tuple[Tool, ...] = (BASH,), system: str = "You are an agent.") -> Request:
    return Request("chat", "m", (Message("system", system), *(Message("user", t) for t in texts)), tools)


def family() -> Family:
    found = Family()
    assert found.mark(asked(TASK), {"user-agent": "pi/0.73", "x-session-id": "s1"}, None).kind is CallKind.MAIN
    return found


@pytest.mark.parametrize(
    ("headers", "agent", "parent"),
    [
        ({"x-openai-subagent": "collab_spawn", "thread-id": "t2", "x-codex-parent-thread-id": "t1"}, "t2", "t1"),
        ({"x-claude-code-agent-id": "a1", "x-claude-code-session-id": "c1"}, "a1", "c1"),
        ({"x-session-id": "s2", "x-parent-session-id": "s1"}, "s2", "s1"),
        ({"x-session-id": "s9"}, "s9", "s1"),
    ],
    ids=["codex", "claude-code", "opencode", "another session id"],
)
def test_sub_agents_are_known_by_their_headers(headers: dict[str, str], agent: str, parent: str) -> None:
    found = family().mark(asked("Do a part."), {"user-agent": "pi/0.73", **headers}, None)
    assert (found.kind, found.agent, found.parent) == (CallKind.SUB_AGENT, agent, parent)
    assert from_text(found.text()) == found


def test_codex_compaction_is_auxiliary() -> None:
    assert family().mark(asked("x"), {"x-openai-subagent": "compact"}, None).kind is CallKind.AUXILIARY


@pytest.mark.parametrize(
    "text",
    [
        "Generate a short title for this conversation.",
        "You are performing a CONTEXT CHECKPOINT COMPACTION.",
        "Please summarize the conversation so far.",
    ],
)
def test_titles_and_summaries_are_auxiliary(text: str) -> None:
    assert Family().mark(asked(text, tools=()), {}, None).kind is CallKind.AUXILIARY


def test_a_task_that_asks_for_a_summary_of_a_file_is_the_main_agents() -> None:
    assert Family().mark(asked("Write a summary of notes.txt into out.txt."), {}, None).kind is CallKind.MAIN


def test_a_compaction_that_continues_the_conversation_with_tools_is_auxiliary() -> None:
    text = "Your task is to create a detailed summary of the conversation so far."
    assert family().mark(asked(TASK, text), {}, Lineage()).kind is CallKind.AUXILIARY


def test_a_task_that_stands_in_a_tool_call_is_a_sub_agents() -> None:
    found = family()
    call = ToolCall("c", "task", json.dumps({"prompt": 'Look into "a".\nThen report.'}))
    found.heard(Answer(Message("assistant", tool_calls=(call,)), StopReason.STOP))
    child = found.mark(asked('Look into "a".\nThen report.'), {"user-agent": "pi/0.73"}, None)
    assert child.kind is CallKind.SUB_AGENT
    assert found.mark(asked("whatever"), {"user-agent": "pi/0.73"}, child).kind is CallKind.SUB_AGENT


def test_another_program_is_a_stray_unless_it_continues_a_conversation() -> None:
    found = family()
    assert found.mark(asked("What is two and two?"), {"user-agent": "python-httpx/0.28"}, None).kind is CallKind.STRAY
    assert found.mark(asked(TASK, "more"), {"user-agent": "python-httpx/0.28"}, Lineage()).kind is CallKind.MAIN


def test_the_main_agent_without_ids_costs_nothing_on_the_record() -> None:
    assert Family().mark(asked(TASK), {}, None).text() == "" and from_text("") == Lineage()


def test_a_new_line_after_compaction_stays_the_main_agents() -> None:
    text = "This session is being continued from a previous one: it found two files."
    assert family().mark(asked(text), {"user-agent": "pi/0.73"}, None).kind is CallKind.MAIN
