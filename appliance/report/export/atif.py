"""ATIF 1.8, the Agent Trajectory Interchange Format: a rollout out, a conversation in. Pure.

A step a message; a tool's result is the observation of the step that called it; an agent's step carries the token ids
and logprobs of its call. Branches that end by themselves are embedded as further trajectories.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from appliance.errors import ExportError
from appliance.report.export.chains import Chain, Turn, chains
from appliance.report.trace import Recollection
from appliance.types import Message, Tool, ToolCall

VERSION = "ATIF-v1.8"
SOURCES = {"system": "system", "user": "user", "assistant": "agent"}


def trajectory(told: Recollection, agent_version: str) -> dict[str, Any]:
    """The document of one rollout; its branches are embedded."""
    found = chains(told)
    if not found:
        raise ExportError(f"rollout {told.rollout.id} made no call, so it has no trajectory", "export other rollouts")
    documents = [_document(told, chain, agent_version) for chain in found]
    whole, rest = documents[0], documents[1:]
    if rest:
        whole["subagent_trajectories"] = rest
    whole["extra"] = {
        "run": told.run.id,
        "rollout": told.rollout.id,
        "task": told.rollout.plan.task,
        "purpose": str(told.rollout.plan.purpose),
        "reward": told.rollout.reward,
        "reward_parts": told.rollout.reward_parts,
        "failure": told.rollout.failure,
    }
    return whole


def _document(told: Recollection, chain: Chain, agent_version: str) -> dict[str, Any]:
    steps: list[dict[str, Any]] = []
    for turn in chain.turns:
        for message in turn.new:
            _add(steps, message)
        _add(steps, turn.said.answer)
        steps[-1] |= _answered(told, turn)
    metrics = [step.get("metrics", {}) for step in steps]
    last = chain.turns[-1].said.call
    agent: dict[str, Any] = {"name": told.rollout.plan.harness, "version": agent_version}
    if chain.tools:
        agent |= {"tool_definitions": [tool_definition(tool) for tool in chain.tools]}
    return {
        "schema_version": VERSION,
        "session_id": f"{told.run.id}/{told.rollout.id}",
        "trajectory_id": f"call-{last.sequence}",
        "agent": agent,
        "steps": [{"step_id": n} | step for n, step in enumerate(steps, start=1)],
        "notes": f"branch: {chain.branch}" + (f", step {last.step + 1} of the task" if last.step else ""),
        "final_metrics": {
            "total_prompt_tokens": sum(m.get("prompt_tokens", 0) for m in metrics),
            "total_completion_tokens": sum(m.get("completion_tokens", 0) for m in metrics),
            "total_steps": len(steps),
        },
    }


def _add(steps: list[dict[str, Any]], message: Message) -> None:
    """A message as a step of its own, or a tool's result as part of the step that asked for it."""
    if message.role == "tool":
        _observe(steps, message)
        return
    step: dict[str, Any] = {"source": SOURCES.get(message.role, "user"), "message": message.content}
    if message.role == "assistant":
        if message.reasoning:
            step["reasoning_content"] = message.reasoning
        if message.tool_calls:
            step["tool_calls"] = [_called(call, f"call_{len(steps)}_{n}") for n, call in enumerate(message.tool_calls)]
    steps.append(step)


def _observe(steps: list[dict[str, Any]], message: Message) -> None:
    asked = next((s for s in reversed(steps) if message.tool_call_id in _call_ids(s)), None)
    result: dict[str, Any] = {"content": message.content}
    if asked is not None:
        result["source_call_id"] = message.tool_call_id
    step = asked or next((s for s in reversed(steps) if s["source"] == "agent"), None)
    if step is None:  # a result of nothing that was called here
        steps.append({"source": "system", "message": "", "observation": {"results": [result]}})
        return
    step.setdefault("observation", {"results": []})["results"].append(result)


def _call_ids(step: Mapping[str, Any]) -> list[str]:
    return [call["tool_call_id"] for call in step.get("tool_calls", ())]


def _called(call: ToolCall, otherwise: str) -> dict[str, Any]:
    found: dict[str, Any] = {"tool_call_id": call.id or otherwise, "function_name": call.full_name}
    try:
        arguments = json.loads(call.arguments or "{}")
    except ValueError:
        arguments = None
    if isinstance(arguments, dict):
        return found | {"arguments": arguments}
    return found | {"arguments": {}, "extra": {"arguments_as_written": call.arguments}}


def _answered(told: Recollection, turn: Turn) -> dict[str, Any]:
    call = turn.said.call
    found: dict[str, Any] = {
        "timestamp": datetime.fromtimestamp(call.ended_at, UTC).isoformat(),
        "llm_call_count": 1,
        "extra": {"call": call.sequence, "left_out": told.found.left_out.get(turn.number)},
    }
    if call.sample is not None:
        found["model_name"] = f"policy-{call.sample.policy_version}"
        found["metrics"] = {
            "prompt_tokens": len(call.sample.prompt_ids),
            "completion_tokens": len(call.sample.sampled_ids),
            "prompt_token_ids": call.sample.prompt_ids.tolist(),
            "completion_token_ids": call.sample.sampled_ids.tolist(),
            "logprobs": [float(x) for x in call.sample.logprobs],
        }
    return found


def tool_definition(tool: Tool) -> dict[str, Any]:
    """A tool in OpenAI's form."""
    try:
        parameters = json.loads(tool.parameters)
    except ValueError:
        parameters = {}
    function = {"name": tool.full_name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}


# ------------------------------------------------------------------ in


def conversation(document: Mapping[str, Any], place: str) -> tuple[str, tuple[Message, ...], tuple[Tool, ...]]:
    """(agent, messages, tools) of a trajectory of ATIF 1.x; ExportError names the step that cannot be read."""
    version = str(document.get("schema_version", ""))
    if not version.startswith("ATIF-v1"):
        raise ExportError(f"{place}: schema_version {version!r} is not ATIF 1", "import a trajectory of ATIF-v1.x")
    agent = document.get("agent")
    steps = document.get("steps")
    if not isinstance(agent, dict) or not isinstance(steps, list):
        raise ExportError(f"{place}: `agent` or `steps` is missing", "import a whole trajectory")
    messages: list[Message] = []
    for number, step in enumerate(steps, start=1):
        if not isinstance(step, dict) or step.get("source") not in ("system", "user", "agent"):
            raise ExportError(f"{place}: step {number} has no known source", "system, user and agent are known")
        messages += _messages(step, f"{place}: step {number}")
    return str(agent.get("name", "")), tuple(messages), tuple(tools_of(agent.get("tool_definitions") or ()))


def _messages(step: Mapping[str, Any], place: str) -> list[Message]:
    role = {"agent": "assistant"}.get(step["source"], step["source"])
    calls = tuple(
        ToolCall(
            str(call.get("tool_call_id", "")), str(call.get("function_name", "")), json.dumps(call.get("arguments", {}))
        )
        for call in step.get("tool_calls") or ()
    )
    found = [Message(role, text_of(step.get("message"), place), str(step.get("reasoning_content") or ""), calls)]
    for result in (step.get("observation") or {}).get("results", ()):
        content = text_of(result.get("content"), place)
        found.append(Message("tool", content, tool_call_id=str(result.get("source_call_id") or "")))
    return found


def text_of(content: object, place: str) -> str:
    """Text, or the text parts of a list of parts; ExportError for a picture or a sound."""
    if content is None or isinstance(content, str):
        return content or ""
    parts: list[Any] = content if isinstance(content, list) else [content]
    if not all(isinstance(part, dict) and part.get("type") == "text" for part in parts):
        raise ExportError(f"{place}: content that is not text", "Corral's policies read text only")
    return "".join(str(part.get("text", "")) for part in parts)


def tools_of(definitions: Sequence[Any]) -> list[Tool]:
    """Tools from OpenAI's form."""
    found = []
    for definition in definitions:
        function = definition.get("function", definition) if isinstance(definition, dict) else {}
        parameters = json.dumps(function.get("parameters") or {})
        found.append(Tool(str(function.get("name", "")), str(function.get("description") or ""), parameters))
    return found
