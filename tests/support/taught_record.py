"""A record whose run has been taught: what the scripted teacher leaves behind after the pocket pack's lessons."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

from appliance.config.runconfig import CHECKOUT, RunConfig
from appliance.record.calls import CallDraft
from appliance.record.conversation import neutral_json
from appliance.record.store import Store
from appliance.tasks.generated import tasks_folder
from appliance.types import Message, Purpose, Request, Reward, RolloutPlan, Tool, ToolCall

PACK = tasks_folder(CHECKOUT / "data" / "pocket")

PI = Tool(
    "bash",
    "Execute a command.",
    '{"type":"object","properties":{"command":{"type":"string"},"timeout":{"type":"number"}}}',
)
CODEX = Tool(
    "exec_command",
    "Runs a command.",
    '{"type":"object","properties":{"cmd":{"type":"string"},"tty":{"type":"boolean"}}}',
)
STDIN = Tool("write_stdin", "Writes.", '{"type":"object","properties":{"session_id":{"type":"number"}}}')


def conversation(harness: str, instruction: str, commands: list[str], outputs: list[str]) -> tuple[Message, ...]:
    """A teacher's whole conversation in `harness`; the last message is the answer."""
    key, tool = ("command", "bash") if harness == "pi" else ("cmd", "exec_command")
    draw = random.Random(instruction)
    where = (
        "bash.\nCurrent date: 2026-11-29\nCurrent working directory: /workspace" if harness == "pi" else "the shell."
    )
    messages = [Message("system", f"You are a coding agent. Use {where}"), Message("user", instruction)]
    for i, (command, output) in enumerate(zip(commands, outputs, strict=True)):
        call = ToolCall(f"call_{i}", tool, json.dumps({key: command}))
        shown = output or "(no output)"
        if harness == "codex":
            shown = (
                f"Chunk ID: {draw.randrange(16**6):06x}\nWall time: 0.{draw.randrange(10**4):04d} seconds\n"
                f"Process exited with code 0\nOriginal token count: {len(output) // 4}\nOutput:\n{output}"
            )
        messages += [Message("assistant", "", tool_calls=(call,)), Message("tool", shown, tool_call_id=call.id)]
    return (*messages, Message("assistant", "done"))


def pack_conversation(harness: str, task: Path) -> tuple[Message, ...]:
    """The teacher's conversation on a task of the pack."""
    commands = json.loads((task / "solution" / "teacher.json").read_text())
    outputs = [""] * len(commands)
    if commands[0].startswith("grep -rh ^"):
        outputs[0] = f"{commands[0].split('^')[1].split('=')[0]}={commands[1].split()[1]}\n"
    return conversation(harness, (task / "instruction.md").read_text().strip(), commands, outputs)


def tools(harness: str) -> tuple[Tool, ...]:
    """What `harness` offers."""
    return (PI,) if harness == "pi" else (CODEX, STDIN)


def taught_record(home: Path, config: RunConfig, tasks: list[Path], reward: float = 1.0) -> Store:
    """A new record under `home` with run "r": one teacher rollout a task and harness."""
    store = Store.open(home / "record.db")
    store.create_run("r", config.name, config.model_dump(mode="json"), config.seed, "test")
    plans = [RolloutPlan("r", Purpose.TEACH, 0, h, t.name, 0) for t in tasks for h in config.harnesses]
    for rollout, task in zip(store.plan(plans), [t for t in tasks for _ in config.harnesses], strict=True):
        store.begin(rollout.id, 0)
        harness = rollout.plan.harness
        messages = pack_conversation(harness, task)
        body = neutral_json(Request("chat", "m", messages[:-1], tools(harness)), messages[-1])
        now = time.time()
        store.add_call(rollout.id, CallDraft(0, "chat", b"{}", b"{}", body, None, "stop", now, now))
        store.grade(rollout.id, Reward(reward), "", {})
    return store
