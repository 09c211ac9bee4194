"""The linter's probes for a task of several steps: each agent goes through all of them, as a rollout would.

Left out is the copier: what a sibling's oracle left after its last step says little of a task graded at each. Steps
after one that earned too little are not reached, by an agent that does nothing as by any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from anyio import to_thread

from appliance.errors import HostError
from appliance.operate.lintfindings import Findings, Graded, note_difference, note_slow
from appliance.sandbox.handover import Carried
from appliance.sandbox.podman import Mount, Outcome
from appliance.sandbox.workspace import Workshop
from appliance.tasks.pack import Task
from appliance.tasks.steps import TaskStep, combined, not_prepared
from appliance.types import Reward


class Probes(Protocol):
    """What the linter does with one workspace."""

    def workspace(
        self, task: Task, probe: str, carried: Carried | None = None, over: Path | None = None
    ) -> AbstractAsyncContextManager[Workshop]:
        """A workspace for one step."""
        ...

    def folder_of(self, task: Task, probe: str) -> Path:
        """A place for a probe's files."""
        ...

    async def agent(self, task: Task, shop: Workshop, argv: tuple[str, ...], more: tuple[Mount, ...]) -> Outcome:
        """A command in a sandbox like an agent's."""
        ...

    async def grade(self, task: Task, shop: Workshop, turn: str) -> Graded:
        """The grader in a fresh sandbox."""
        ...


@dataclass(frozen=True, slots=True)
class _Agent:
    """One of the linter's agents: its command in each step, and how often its workspace is graded."""

    name: str
    argv: tuple[str, ...]
    turns: str = "a"
    is_oracle: bool = False

    def mounts(self, step: TaskStep) -> tuple[Mount, ...]:
        """What it sees beside workspace and HOME."""
        shows = self.is_oracle and step.solution is not None
        return (Mount(step.solution.resolve(), "/solution", True),) if shows and step.solution else ()


@dataclass(slots=True)
class _Played:
    """How far an agent came: (step, its gradings) of those made, and why there is no reward, if so."""

    graded: list[tuple[TaskStep, list[Graded]]] = field(default_factory=list)
    why: str = ""

    def reward(self, task: Task) -> float | None:
        """The task's reward, by the first grading of each step."""
        if self.why or not self.graded:
            return None
        made = [(step.name, Reward(first.reward or 0.0, first.parts)) for step, (first, *_) in self.graded]
        return combined(task.strategy, made).value


async def lint_steps(probes: Probes, task: Task, found: Findings, forger: str) -> None:
    """Null, forger and oracle through all steps; what is wrong is noted in `found`. `forger`: its shell text."""
    null = await _played(probes, task, _Agent("null", ("true",), "ab"), found)
    found.null = null.reward(task)
    if found.null is None:
        found.problems["impossible"] = f"an agent that does nothing gets no reward: {null.why}"
    elif found.null > 0:
        found.problems["free"] = f"doing nothing earns {found.null:g}"
    forged = (await _played(probes, task, _Agent("forger", ("bash", "-c", forger)), found)).reward(task)
    if forged is not None and forged > (found.null or 0.0):
        found.problems["forgeable"] = f"files left by an agent that did no work earn {forged:g}"
    if not task.has_solution:
        missing = ", ".join(step.name for step in task.steps if step.solution is None)
        found.problems["no_oracle"] = f"no solution/solve.sh shows that it can be solved: step {missing}"
        return
    oracle = await _played(probes, task, _Agent("oracle", ("bash", "/solution/solve.sh"), "ab", True), found)
    found.oracle = oracle.reward(task)
    if found.oracle is None or found.oracle < 1.0 or len(oracle.graded) < len(task.steps):
        earned = ", ".join(f"{step.name} {first.reward:g}" for step, (first, *_) in oracle.graded if not oracle.why)
        got = f"gets no reward: {oracle.why}" if oracle.why else f"earns {earned}"
        found.problems["impossible"] = f"its own solution {got}"


async def _played(probes: Probes, task: Task, agent: _Agent, found: Findings) -> _Played:
    """Goes through the steps until one has no reward or too little; slow and flaky ones are noted."""
    played = _Played()
    carried = Carried(probes.folder_of(task, f"{agent.name}-carried"))
    try:
        for number, step in enumerate(task.in_order):
            own = task.of_step(step)
            before = carried if number else None
            async with probes.workspace(own, f"{agent.name}-{number}", before, step.workdir) as shop:
                ended = await probes.agent(own, shop, step.prepared(agent.argv), agent.mounts(step))
                if why := _failed(ended, agent):
                    played.why = f"step {step.name}: {why}"
                    return played
                try:
                    await to_thread.run_sync(carried.keep, shop)
                except OSError as error:
                    raise HostError(f"{carried.folder}: {error}", "free disk space or check its permissions") from error
                graded = [await probes.grade(own, shop, turn) for turn in agent.turns]
            _note(found, step, agent, ended, graded)
            played.graded.append((step, graded))
            first = graded[0]
            if first.reward is None:
                played.why = f"step {step.name}: {first.why}"
            if first.reward is None or step.shortfall(Reward(first.reward, first.parts)):
                return played
    finally:
        await to_thread.run_sync(carried.remove)
    return played


def _failed(ended: Outcome, agent: _Agent) -> str:
    """Why an agent's part of a step came to nothing; the forger may fail as it likes."""
    if refused := not_prepared(ended.exit_code, ended.output):
        return refused[1]
    if not agent.is_oracle or ended.exit_code == 0:
        return ""
    why = "it ran into the time limit" if ended.timed_out else f"exit code {ended.exit_code}"
    return f"its solution fails: {why}: {ended.output.strip()[-200:]}"


def _note(found: Findings, step: TaskStep, agent: _Agent, ended: Outcome, graded: Sequence[Graded]) -> None:
    note_difference(found, f"step {step.name}: the {agent.name}'s workspace", graded)
    note_slow(found, f"the grader of step {step.name}", graded[0].seconds, step.verifier_timeout_s)
    if agent.is_oracle:
        note_slow(found, f"the solution of step {step.name}", ended.seconds, step.agent_timeout_s)
