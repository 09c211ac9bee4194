"""A bench for single rollouts on real Podman: a tiny harness, a task with a given grader, a scripted teacher."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field, replace
from pathlib import Path

from appliance.harness.harness import Harness
from appliance.runs.rollout import Place, make_rollout
from appliance.runs.teachers import ScriptedTeacher
from appliance.tasks.pack import Task
from appliance.types import Purpose, Rollout, RolloutPlan

# Calls the model once, as a harness would, and runs the command it is told.
CALLER = """
import json, subprocess, sys, urllib.request
tool = {"type": "function", "function": {"name": "sh", "parameters": {"properties": {"command": {"type": "string"}}}}}
body = {"model": "m", "messages": [{"role": "user", "content": sys.argv[2]}], "tools": [tool]}
request = urllib.request.Request(sys.argv[1] + "/v1/chat/completions", json.dumps(body).encode(),
                                 {"content-type": "application/json"})
answer = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
subprocess.run(json.loads(answer["tool_calls"][0]["function"]["arguments"])["command"], shell=True)
"""
HONEST = '[ "$(cat out.txt)" = hi ] && r=1 || r=0; echo "{\\"reward\\": $r}" > /logs/verifier/reward.json'


def caller(then: str = "") -> tuple[str, ...]:
    """The tiny harness; `then` is what its Python does after the one call."""
    return ("python3", "-c", CALLER + then, "{base_url}", "{prompt}")


@dataclass
class Bench:
    """A place to make rollouts, and how one of them ended."""

    place: Place
    folder: Path
    made: int = 0
    hidden: dict[str, str] = field(default_factory=dict)
    teacher: type[ScriptedTeacher] = ScriptedTeacher

    def output(self, rollout: Rollout) -> str:
        """What its harness printed last, as the record has it."""
        with sqlite3.connect(self.folder.parent / "record.db") as db:
            return str(db.execute("SELECT output FROM rollouts WHERE id=?", (rollout.id,)).fetchone()[0])

    async def make(self, argv: tuple[str, ...], grader: str = HONEST, command: str = "echo hi > out.txt") -> Rollout:
        """One rollout of a harness with this command line, a task with this grader, a teacher with this command."""
        task = self.task(f"t{self.made}", grader)
        harness = Harness(
            name="tiny", version="1", wire="chat", check=("true",), layer="", argv=argv, env={}, files={},
            memory_bytes=200_000_000, pids=64, quirks={},
        )  # fmt: skip
        place = replace(self.place, harnesses={"tiny": harness})
        (planned,) = place.store.plan([RolloutPlan("r", Purpose.SINGLE, 0, "tiny", task.name, self.made)])
        self.made += 1
        await make_rollout(place, planned, task, self.teacher([command]), 0)
        (ended,) = [r for r in place.store.rollouts("r") if r.id == planned.id]
        print(ended.failure, ended.failure_detail)  # shown when a test fails
        return ended

    def task(self, name: str, grader: str) -> Task:
        folder = self.folder / name
        (folder / "environment" / "files").mkdir(parents=True)
        (folder / "tests").mkdir()
        (folder / "tests" / "test.sh").write_text(grader + "\n")
        for hidden, text in self.hidden.items():
            (folder / "tests" / hidden).write_text(text)
        (folder / "instruction.md").write_text("Write hi to out.txt.\n")
        (folder / "task.toml").write_text('[metadata]\nfamily = "tiny"\nsplit = "train"\n')
        return Task.from_dir(folder)
