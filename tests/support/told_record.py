"""A small record that was trained on: a group of two rollouts, one with a fork, and a teacher's conversation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from appliance.config.runconfig import RunConfig
from appliance.record.conversation import neutral_json
from appliance.record.store import CallDraft, Store
from appliance.types import Message, Purpose, Request, Reward, RolloutPlan, RunState, Sample, StopReason, Tool, ToolCall

TOOL = Tool("bash", "Runs a command.", '{"type":"object","properties":{"command":{"type":"string"}}}')
SYSTEM, TASK = Message("system", "Be careful."), Message("user", "Count <b>errors</b> & write them.\x1b[31m")
ASKS = Message("assistant", "", "Let me look.", (ToolCall("c1", "bash", '{"command": "grep -c error *"}'),))
RESULT = Message("tool", "7 </script><script>alert(1)</script>", tool_call_id="c1")
DONE = Message("assistant", "There are 7.")


def call(
    sequence: int, messages: tuple[Message, ...], answer: Message, prompt: list[int], sampled: list[int]
) -> CallDraft:
    logprobs = np.linspace(-0.1, -4.0, len(sampled), dtype=np.float32)
    sample = Sample(np.array(prompt, np.int32), np.array(sampled, np.int32), logprobs, StopReason.STOP, 0)
    request = Request("chat", "corral", messages, (TOOL,))
    raw = json.dumps({"messages": [m.content for m in messages]}).encode()
    neutral = neutral_json(request, answer)
    return CallDraft(
        sequence, "chat", raw, b'{"answer": 1}', neutral, sample, "stop", 100.0 + sequence, 100.5 + sequence
    )


def told_record(home: Path) -> Store:
    """Rollout 1: three calls, the last two from one prompt; rollout 2: one call; rollout 3: taught, no ids."""
    store = Store.open(home / "record.db")
    config = RunConfig(name="demo").model_dump(mode="json")
    store.create_run("r1", "demo", config, 0, "test")
    store.move_run("r1", RunState.RUNNING)
    plans = [RolloutPlan("r1", Purpose.TRAIN, 1, "pi", "count-1", n) for n in range(2)]
    for rollout in store.plan([*plans, RolloutPlan("r1", Purpose.TEACH, 0, "pi", "count-1", 0)]):
        store.begin(rollout.id, 0)
    first = [10, 11, 12]
    store.add_call(1, call(0, (SYSTEM, TASK), ASKS, first, [20, 21]))
    second = [*first, 20, 21, 30, 31]
    told = (SYSTEM, TASK, ASKS, RESULT)
    store.add_call(1, call(1, told, DONE, second, [40, 41, 42]))
    store.add_call(1, call(2, told, Message("assistant", "Seven."), second, [40, 50]))
    store.grade(1, Reward(1.0, {"exists": 1.0}), "", {})
    store.add_call(2, call(0, (SYSTEM, TASK), DONE, first, [60]))
    store.grade(2, Reward(0.0), "", {})
    neutral = neutral_json(Request("chat", "m", told, (TOOL,)), DONE)
    store.add_call(3, CallDraft(0, "chat", b"{}", b"{}", neutral, None, "stop", 100.0, 101.0))
    store.grade(3, Reward(1.0), "", {})
    return store
