"""A real record for the tests and pictures of the terminal UI, written through Store as a supervisor would."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path

import numpy as np

from appliance.record.conversation import neutral_json
from appliance.record.lock import supervisor_of
from appliance.record.store import CallDraft, Store
from appliance.types import (
    Message,
    Purpose,
    Request,
    Reward,
    RolloutPlan,
    RolloutState,
    RunState,
    Sample,
    StopReason,
    Tool,
    ToolCall,
)

CONFIG: dict[str, object] = {
    "harnesses": ["pi", "codex"],
    "tasks": {"pack": "pocket"},
    "train": {"steps": 8},
    "rollout": {"timeout_s": 60, "grade_timeout_s": 30},
}
SYSTEM = Message("system", "You are a careful agent. Use the shell.")
TASK = Message(
    "user", "Count the lines in logs/*.txt that contain the word 'error' and write the number to answer.txt."
)
TOOLS = (Tool("bash", "Runs a command."), Tool("read", "Reads a file."))


class Builder:
    """Writes runs, rollouts and calls. Keep using `store`; `close` when done."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.store = Store.open(home / "record.db")

    def close(self) -> None:
        self.store.close()

    def run(self, run_id: str, name: str = "demo", state: RunState = RunState.RUNNING, message: str = "") -> str:
        self.store.create_run(run_id, name, CONFIG, 0, "test")
        if state is not RunState.CREATED:
            self.store.move_run(run_id, RunState.RUNNING)
        if state not in (RunState.CREATED, RunState.RUNNING):
            self.store.move_run(run_id, state, message)
        return run_id

    def hopeless_run(self, run_id: str, state: RunState = RunState.RUNNING) -> str:
        """A run whose pack is gone, so that a supervisor that really starts on it ends at once."""
        config = CONFIG | {"tasks": {"pack": str(self.home / "no-such-pack")}, "harnesses": ["pi"]}
        self.store.create_run(run_id, "hopeless", config, 0, "test")
        self.store.move_run(run_id, RunState.RUNNING)
        if state is not RunState.RUNNING:
            self.store.move_run(run_id, state)
        return run_id

    def ended(self, run_id: str, patience_s: float = 120.0) -> str:
        """Waits until a supervisor that was started on a hopeless run has ended; what it said of that."""
        until = time.monotonic() + patience_s
        while time.monotonic() < until:
            run = self.store.run(run_id)
            if run.state is RunState.FAILED and supervisor_of(self.home) is None:
                return run.message
            time.sleep(0.05)
        raise AssertionError(f"no supervisor has ended on {run_id} in {patience_s} s")

    def attend(self, run_id: str) -> None:
        """This process is the run's supervisor, as the lock file says it."""
        text = json.dumps({"pid": os.getpid(), "run": run_id, "started_at": time.time()})
        (self.home / "supervisor.lock").write_text(text)

    def rollouts(
        self, run_id: str, purpose: Purpose, step: int, task: str, count: int, harness: str = "pi"
    ) -> list[int]:
        plans = [RolloutPlan(run_id, purpose, step, harness, task, n) for n in range(count)]
        return [r.id for r in self.store.plan(plans)]

    def begin(self, rollout: int, state: RolloutState = RolloutState.RUNNING) -> int:
        self.store.begin(rollout, 1)
        self.store.move_rollout(rollout, state)
        return rollout

    def grade(self, rollout: int, value: float) -> None:
        self.begin(rollout, RolloutState.GRADING)
        self.store.grade(rollout, Reward(value, {"exists": 1.0, "correct": value}), "", {})

    def call(
        self, rollout: int, sequence: int, messages: tuple[Message, ...], answer: Message, raw: bytes = b"{}"
    ) -> None:
        request = Request("chat", "corral", messages, TOOLS)
        prompt = np.arange(40 + 60 * sequence, dtype=np.int32)
        ids = np.arange(12 + sequence, dtype=np.int32) + 1000
        sample = Sample(prompt, ids, np.full(len(ids), -0.3, np.float32), StopReason.STOP, 1)
        now = time.time()
        neutral = neutral_json(request, answer)
        self.store.add_call(rollout, CallDraft(sequence, "chat", raw, raw, neutral, sample, "stop", now - 1.4, now))

    def conversation(self, rollout: int) -> None:
        """Two calls: a tool call, its result, and the closing word."""
        asks = Message(
            "assistant",
            "",
            "I should search first.",
            (ToolCall("c1", "bash", '{"command":"grep -c error logs/*.txt"}'),),
        )
        result = Message("tool", "logs/a.txt:2\nlogs/b.txt:5\n", tool_call_id="c1")
        raw = json.dumps({"model": "corral", "messages": [{"role": "user", "content": TASK.content}]}).encode()
        self.call(rollout, 0, (SYSTEM, TASK), asks, raw)
        self.call(
            rollout, 1, (SYSTEM, TASK, asks, result), Message("assistant", "There are 7 such lines; I wrote 7."), raw
        )


def a_busy_record(home: Path) -> Builder:
    """A run in its fifth training step with an older one beside it: every kind of row is there."""
    builder, rng = Builder(home), random.Random(7)
    builder.run("old-0412", "first try", RunState.STOPPED, "stopped by request; `corral resume` goes on")
    run = builder.run("demo-1a2b")
    builder.attend(run)
    store = builder.store
    for number in range(12):
        for harness, share in (("pi", 0.2), ("codex", 0.1)):
            (rollout,) = builder.rollouts(run, Purpose.EVAL_BEFORE, 0, f"count-held-{number:02}", 1, harness)
            builder.grade(rollout, float(rng.random() < share))
    store.begin_phase(run, "train")
    for step in range(1, 5):
        for harness, shift in (("pi", 0.0), ("codex", -0.1)):
            for task in ("count-train-03", "find-train-11", "rename-train-02"):
                for rollout in builder.rollouts(run, Purpose.TRAIN, step, task, 4, harness):
                    builder.grade(rollout, float(rng.random() < 0.15 + 0.15 * step + shift))
        store.open_step(run, step)
        metrics = {"loss": 0.02 / step, "logprob_gap": 0.006, "reward": 0.2 * step}
        store.close_step(run, step, metrics, (step, home / f"adapters/{step}", "0" * 64))
        store.log("info", "trainer", f"step {step}/8  reward {0.2 * step:.3f}  loss {0.02 / step:.3f}", run)
    live = builder.rollouts(run, Purpose.TRAIN, 5, "merge-train-07", 4, "codex")
    live += builder.rollouts(run, Purpose.TRAIN, 5, "find-train-05", 4, "pi")
    for rollout in live[:3]:
        builder.begin(rollout)
        builder.conversation(rollout)
    builder.begin(live[4], RolloutState.GRADING)
    builder.begin(live[5], RolloutState.STARTING)
    store.begin(live[6], 4)
    store.fail(live[6], "sandbox:out_of_memory", "the sandbox used more than 1024 MiB; see rollout.memory_mb")
    store.log("warning", "sandbox", "removed corral-demo-12, left behind by an earlier supervisor", run)
    store.log("error", "grader", "rollout 41: the grader wrote no reward", run, live[6])
    return builder
