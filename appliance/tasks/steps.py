"""The steps of a task: instructions given one after the other over one workspace, each with its own hidden grader.

    PACK/NAME/task.toml            [[steps]] name, min_reward, agent and verifier timeout_sec, healthcheck, in order
             steps/STEP/instruction.md
                        workdir/   laid over the workspace before the step; its setup.sh is run there
                        tests/     test.sh, the step's grader
                        solution/  solve.sh, teacher.json; optional

This is Harbor's layout (schema 1.4, `[[steps]]`), but that a step's tests are complete in its own folder. A task
without `[[steps]]` is one step of no name. How rewards of steps become one is Harbor's rule (`combined`).
"""

from __future__ import annotations

import re
import statistics
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from appliance.errors import PackError
from appliance.tasks.task_files import (
    Table,
    check_spelling,
    instruction_of,
    line_of,
    need,
    seconds_of,
    table_in,
    teacher_of,
)
from appliance.types import Reward

SETUP = "setup.sh"
SETUP_FAILED, UNHEALTHY = 81, 82
"""Exit codes of `prepared` where no agent was started."""
SAYS, ENDED = "corral: ", "was still running when it was ended"
MAX_RETRIES = 1000
_STEP_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

# Runs in the agent's sandbox before the agent: setup.sh or not, how many checks, six words a check, then the command.
# What it runs is waited for, so that it can tell what was going on when the sandbox is ended; it speaks on lines of its
# own, whatever was printed before.
PREPARE = r"""
says() { printf '\ncorral: %s\n' "$1"; }
run() { "$@" </dev/null & wait $!; }
trap 'says "$now was still running when it was ended"; exit "$code"' TERM
if [ "$1" = setup ]; then
  now=setup.sh code=81
  run bash /workspace/setup.sh || { says "setup.sh ended with code $?"; exit 81; }
fi
checks=$2
shift 2
while [ "$checks" -gt 0 ]; do
  began=$SECONDS failed=0 now="the health check $1" code=82
  until run timeout -k 5 "$3" bash -c -- "$1"; do
    if [ $((SECONDS - began)) -lt "$4" ]; then run sleep "$5"; continue; fi
    failed=$((failed + 1))
    [ "$failed" -lt "$6" ] || { says "not healthy after $failed tries: $1"; exit 82; }
    run sleep "$2"
  done
  shift 6
  checks=$((checks - 1))
done
exec "$@"
"""


class Strategy(StrEnum):
    """How the rewards of steps become the task's: Harbor's `multi_step_reward_strategy`."""

    MEAN = "mean"
    FINAL = "final"


@dataclass(frozen=True)
class HealthCheck:
    """A command that must end with 0 before the agent starts; names and defaults are Harbor's.

    For `start_period_s` failures do not count and are `start_interval_s` apart; then `retries` of them, `interval_s`
    apart, are the end.
    """

    command: str
    interval_s: float = 5.0
    timeout_s: float = 30.0
    start_period_s: float = 0.0
    start_interval_s: float = 5.0
    retries: int = 3

    def words(self) -> tuple[str, ...]:
        """What PREPARE is told of it."""
        interval, timeout, early = (f"{time:g}" for time in (self.interval_s, self.timeout_s, self.start_interval_s))
        return self.command, interval, timeout, str(round(self.start_period_s)), early, str(self.retries)


@dataclass(frozen=True, slots=True)
class TaskStep:
    """One step. `min_reward`: (part, least) pairs, "reward" being the value; below any of them no step follows.

    `workdir` is None where nothing is laid over the workspace, `solution` where the step ships none.
    """

    name: str
    instruction: str
    tests: Path
    solution: Path | None
    agent_timeout_s: float
    verifier_timeout_s: float
    teacher: tuple[str, ...] = ()
    workdir: Path | None = None
    min_reward: tuple[tuple[str, float], ...] = ()
    checks: tuple[HealthCheck, ...] = ()

    @property
    def has_setup(self) -> bool:
        """Whether a script is to be run in the workspace before the agent."""
        return self.workdir is not None and (self.workdir / SETUP).is_file()

    def prepared(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """`argv` after the step's setup.sh and health checks, in one sandbox; as it is where there are none."""
        if not self.has_setup and not self.checks:
            return argv
        told = "setup" if self.has_setup else "none", str(len(self.checks))
        checks = [word for check in self.checks for word in check.words()]
        return ("bash", "-c", PREPARE, "prepare", *told, *checks, *argv)

    def shortfall(self, reward: Reward) -> str:
        """The least that `reward` misses, in words; "" where the next step may follow."""
        for part, least in self.min_reward:
            found = reward.value if part == "reward" else reward.parts.get(part)
            if found is None or found < least:
                return f"{part} {'is missing' if found is None else f'{found:g}'}, and min_reward asks for {least:g}"
        return ""


def combined(strategy: Strategy, graded: Sequence[tuple[str, Reward]]) -> Reward:
    """The task's reward from those of its (named) steps that were made: their mean, or the last one's.

    As in Harbor, steps that were not reached because an earlier one missed its least do not count in the mean. Parts
    keep the step's name before theirs. One step without a name is its own reward.
    """
    if len(graded) == 1 and not graded[0][0]:
        return graded[0][1]
    values = [reward.value for _, reward in graded]
    parts: dict[str, float] = {}
    for name, reward in graded:
        parts[name] = reward.value
        parts |= {f"{name}: {part}": value for part, value in reward.parts.items()}
    return Reward(values[-1] if strategy is Strategy.FINAL else statistics.fmean(values), parts)


def not_prepared(exit_code: int | None, output: str) -> tuple[str, str] | None:
    """(cause, what was said) of a sandbox that ended before its agent was started; None for any other.

    `exit_code`: None where its time was up. Only to be asked of an agent that made no call: what it prints is its own.
    """
    said = [line.removeprefix(SAYS) for line in output.splitlines() if line.startswith(SAYS)]
    if not said or exit_code not in (None, SETUP_FAILED, UNHEALTHY):
        return None
    if exit_code is None:
        return ("setup" if said[-1].startswith(SETUP) else "unhealthy", said[-1]) if ENDED in output else None
    return "setup" if exit_code == SETUP_FAILED else "unhealthy", said[-1]


def in_words(steps: Sequence[TaskStep]) -> str:
    """All instructions as one text, for people who look at the task."""
    return "\n\n".join(f"Step {step.name}: {step.instruction}" for step in steps)


# ------------------------------------------------------------------ reading


def steps_of(folder: Path, document: Table, limits: tuple[float, float]) -> tuple[TaskStep, ...]:
    """The steps that the task.toml of `folder` lists, () where it lists none. `limits`: the task's own, in seconds."""
    file = folder / "task.toml"
    listed = document.get("steps", [])
    if not isinstance(listed, list) or not all(isinstance(table, dict) for table in listed):
        raise PackError(f"{file}: key steps: is not a list of tables", "write each step as [[steps]]")
    found: list[TaskStep] = []
    for number, table in enumerate(listed):
        step = _step(folder, file, table, f"steps[{number}]", limits)
        if _alike(step.name) in [_alike(other.name) for other in found]:
            raise PackError(f"{file}: key steps[{number}].name: {step.name} is listed twice", "give it another name")
        found.append(step)
    _check_nothing_left(folder, file, found)
    return tuple(found)


def _check_nothing_left(folder: Path, file: Path, found: Sequence[TaskStep]) -> None:
    """PackError for what a reader of the folder would take for a part of the task, and is none."""
    names = {step.name for step in found}
    own = sorted(path for path in (folder / "steps").glob("*") if path.is_dir() and path.name[0] not in "._")
    for path in own:
        if path.name not in names:
            remedy = f'add name = "{path.name}" under [[steps]] in {file}, or remove the folder'
            raise PackError(f"{path}: no step has that name", remedy)
    for path in [folder, *(own if found else ())]:
        if found and (path / "tests" / "rubric.json").exists():
            raise PackError(f"{path}/tests/rubric.json: steps are graded by code alone", "remove it")


def strategy_of(file: Path, document: Table) -> Strategy:
    """How the rewards of steps become one; Harbor's default where it is not said."""
    value = document.get("multi_step_reward_strategy", Strategy.MEAN)
    try:
        return Strategy(value)  # type: ignore[arg-type]
    except ValueError as error:
        raise PackError(f"{file}: key multi_step_reward_strategy: {value!r} is unknown", "use mean or final") from error


def health_check(file: Path, table: Table, key: str) -> tuple[HealthCheck, ...]:
    """The check at `key`, whose last word is `healthcheck`; () where there is none."""
    if "healthcheck" not in table:
        return ()
    own = table_in(file, table, key)
    check_spelling(file, key, own, "healthcheck")
    command = own.get("command")
    if not isinstance(command, str) or not command.strip() or "\0" in command:
        raise PackError(f"{file}: key {key}.command: {command!r} is no shell command", "write one that ends with 0")
    retries = own.get("retries", HealthCheck.retries)
    if not isinstance(retries, int) or isinstance(retries, bool) or not 0 < retries <= MAX_RETRIES:
        raise PackError(f"{file}: key {key}.retries: {retries!r} is no number of tries", "use a whole number above 0")
    times = {name: seconds_of(file, own, f"{key}.{name}", default) for name, default in _TIMES.items()}
    start_period_s = 0.0 if own.get("start_period_sec", 0) == 0 else seconds_of(file, own, f"{key}.start_period_sec")
    return (HealthCheck(command, times["interval_sec"], times["timeout_sec"], start_period_s,
                        times["start_interval_sec"], retries),)  # fmt: skip


_TIMES = {
    "interval_sec": HealthCheck.interval_s,
    "timeout_sec": HealthCheck.timeout_s,
    "start_interval_sec": HealthCheck.start_interval_s,
}


def _step(folder: Path, file: Path, table: Table, key: str, limits: tuple[float, float]) -> TaskStep:
    name = line_of(file, table, f"{key}.name")
    if not _STEP_NAME.fullmatch(name) or name.endswith("."):
        raise PackError(
            f"{file}: key {key}.name: {name!r} cannot name a step", "use letters, digits, dot, dash and underscore"
        )
    own = folder / "steps" / name
    need(own / "tests" / "test.sh", f"the grader of step {name}; it writes reward.json or reward.txt")
    solution, workdir = own / "solution", own / "workdir"
    check_spelling(file, key, table, "steps")
    agent, verifier = (table_in(file, table, f"{key}.{part}") for part in ("agent", "verifier"))
    for part, settings in (("agent", agent), ("verifier", verifier)):
        check_spelling(file, f"{key}.{part}", settings, part)
    if (workdir.exists() and not workdir.is_dir()) or (workdir / SETUP).is_dir():
        what = f"the files of step {name}: a folder, in which {SETUP} is a file if it is there"
        raise PackError(f"{workdir}: is not {what}", "make it one, or remove it")
    return TaskStep(
        name=name,
        instruction=instruction_of(own / "instruction.md"),
        tests=own / "tests",
        solution=solution if (solution / "solve.sh").is_file() else None,
        agent_timeout_s=seconds_of(file, agent, f"{key}.agent.timeout_sec", limits[0]),
        verifier_timeout_s=seconds_of(file, verifier, f"{key}.verifier.timeout_sec", limits[1]),
        teacher=teacher_of(solution / "teacher.json"),
        workdir=workdir if workdir.is_dir() else None,
        min_reward=_least(file, table, f"{key}.min_reward"),
        checks=health_check(file, table, f"{key}.healthcheck"),
    )


def _least(file: Path, table: Table, key: str) -> tuple[tuple[str, float], ...]:
    """min_reward: one number for the reward, or a table of parts."""
    value = table.get("min_reward")
    by_part: Table = value if isinstance(value, dict) else {} if value is None else {"reward": value}
    found: list[tuple[str, float]] = []
    for part, least in by_part.items():
        if not isinstance(least, int | float) or isinstance(least, bool) or not -1e9 < least < 1e9:
            where = f"{key}.{part}" if isinstance(value, dict) else key
            raise PackError(f"{file}: key {where}: {least!r} is not a number", "write the least that a reward must be")
        found.append((part, float(least)))
    return tuple(found)


def _alike(name: str) -> str:
    """Names that some file system takes for one."""
    return unicodedata.normalize("NFC", name).casefold()
