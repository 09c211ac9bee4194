"""One rollout: put a task before a harness, let it work, then grade what it left behind.

    begin → a slot: workspace, HOME, a waiting sandbox → proxy opens its token → the harness runs in it → its sandbox
    goes, with all its processes → proxy settles → the workspace is frozen → a fresh sandbox grades → reward

A task of several steps goes this way once a step, each with a sandbox, a token and a conversation of its own; the next
begins with the workspace and HOME that the agent left (`sandbox.handover`).

A bad rollout is data, not a crash: whatever goes wrong inside becomes one label on the record (`part:cause`) and the
reward stays None (I5). Nothing of a rollout outlives it (I8).
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
from anyio import to_thread

from appliance.capture.proxy import Answerer, Proxy, Session, Settled
from appliance.config.runconfig import RunConfig
from appliance.errors import GraderError, HarnessError, HostError, RolloutError, TaskError
from appliance.harness.harness import Harness, Launch
from appliance.record.store import Store
from appliance.runs.judge import Judge
from appliance.sandbox.freeze import freeze
from appliance.sandbox.handover import Carried, carried_in, clear_way, laying_out, place_over
from appliance.sandbox.images.task import TaskImages
from appliance.sandbox.podman import Limits, Mount, Outcome, SandboxSpec
from appliance.sandbox.pool import Kind, Pool, Slot
from appliance.system.redact import without_secrets
from appliance.tasks.pack import Task
from appliance.tasks.reward import read_reward
from appliance.tasks.rubric import combine
from appliance.tasks.steps import TaskStep, combined, not_prepared
from appliance.types import Reward, Rollout, RolloutState

PROXY_ADDRESS = "http://127.0.0.1:8123"
MODEL_NAME = "corral"
# Failures of ours or of the host: worth another try. What the policy or the task caused is not.
RETRIED_PARTS = ("sandbox", "engine", "capture")
NOT_RETRIED = ("disk_full",)
KILLED = 137  # exit code of a script that SIGKILL ended, or whose last command it did


@dataclass(frozen=True, slots=True)
class Place:
    """Where rollouts are made: the shared owners of each outside thing, and the run's settings."""

    run_id: str
    config: RunConfig
    store: Store
    pool: Pool
    proxy: Proxy
    harnesses: dict[str, Harness]
    images: dict[str, str]
    grader_image: str
    own_images: dict[str, TaskImages] = field(default_factory=dict)  # of the tasks that bring a Dockerfile
    judge: Judge | None = None


async def make_rollout(place: Place, rollout: Rollout, task: Task, answerer: Answerer, version: int) -> None:
    """Makes one rollout from task to reward, trying again after failures that are not the policy's.

    Never raises RolloutError: the outcome, good or bad, is on the record when this returns.
    """
    for tries_left in range(place.config.rollout.retries, -1, -1):
        number = place.store.begin(rollout.id, version)
        harness = place.harnesses[rollout.plan.harness]  # once: its file may be read again while a slot is made
        whole = _Attempt(place, rollout, task, harness, answerer, number)
        try:
            await _one_attempt(whole)
            return
        except RolloutError as error:
            if tries_left and error.part in RETRIED_PARTS and error.cause not in NOT_RETRIED:
                _log(whole, "warning", error.part, f"{error.label}: trying again: {error.message}")
                continue
            place.store.fail(rollout.id, error.label, error.message, error.output)
            _log(whole, "warning", error.part, f"failed {error.label}: {error.message}")
            return


@contextmanager
def _keeping(output: str) -> Iterator[None]:
    """What fails in here, of whichever part, keeps what the harness printed last."""
    try:
        yield
    except RolloutError as error:
        error.output = error.output or output
        raise


@dataclass(frozen=True, slots=True)
class _Attempt:
    """Whose attempt it is: everything that stays the same from step to step."""

    place: Place
    rollout: Rollout
    task: Task
    harness: Harness
    answerer: Answerer
    number: int


async def _one_attempt(attempt: _Attempt) -> None:
    """Step after step until the last, or until one misses what the next asks for; then the reward is on the record."""
    place, task = attempt.place, attempt.task
    steps = task.in_order
    carried = carried_in(place.pool.folder, attempt.rollout.id, attempt.number)
    done: list[_Done] = []
    try:
        for number, step in enumerate(steps):
            with _saying(step, done):
                async with _slot(attempt, f"-{number}" if number else "") as slot:
                    done.append(await _one_step(_Work(attempt, step, number, slot), carried, number + 1 < len(steps)))
            if missed := step.shortfall(done[-1].reward):
                _log(attempt, "info", "grader", f"step {step.name} was the last: {missed}")
                break
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(carried.remove)
    reward = combined(task.strategy, [(step.name, d.reward) for step, d in zip(steps, done, strict=False)])
    timings = {"agent_s": sum(d.agent_s for d in done), "grade_s": sum(d.grade_s for d in done)}
    place.store.grade(attempt.rollout.id, reward, "\n".join(d.output for d in done), timings)


@dataclass(frozen=True, slots=True)
class _Work:
    """One step of an attempt in the slot it is done in."""

    attempt: _Attempt
    step: TaskStep
    number: int
    slot: Slot


@dataclass(frozen=True, slots=True)
class _Done:
    """What came of a step."""

    reward: Reward
    output: str
    agent_s: float
    grade_s: float


async def _one_step(work: _Work, carried: Carried, is_followed: bool) -> _Done:
    """Has the harness work on the step, and its workspace graded."""
    attempt, step, slot = work.attempt, work.step, work.slot
    place, rollout = attempt.place, attempt.rollout
    token = secrets.token_urlsafe(24)
    launch = attempt.harness.launch(
        step.instruction, f"{PROXY_ADDRESS}/s/{token}", token, MODEL_NAME, place.config.rollout.max_tokens,
        attempt.task.mcp_servers,
    )  # fmt: skip
    await _lay_out(work, carried, launch.files)
    started = time.monotonic()
    session = place.proxy.open(rollout.id, token, attempt.answerer, work.number)
    was_spent = session.is_spent
    try:
        place.store.move_rollout(rollout.id, RolloutState.RUNNING)
        outcome = await _outcome(work, launch, session)
        outcome = replace(outcome, output=without_secrets(outcome.output, (token,)))  # harnesses print their settings
    finally:
        settled = await place.proxy.close(token)
    worked = time.monotonic()
    limit = shorter(place.config.rollout.timeout_s, step.agent_timeout_s, "timeout_s", "agent")
    with _keeping(outcome.output):
        _check(outcome, settled, slot, limit, was_spent)
        reward = await _graded(work, carried if is_followed else None)
    return _Done(reward, outcome.output, worked - started, time.monotonic() - worked)


@contextmanager
def _saying(step: TaskStep, done: Sequence[_Done]) -> Iterator[None]:
    """What fails in here names the step, where a task has several, and keeps what the steps before printed."""
    try:
        yield
    except RolloutError as error:
        if step.name:
            error.message = f"step {step.name}: {error.message}"
            error.output = "\n".join((*(d.output for d in done), error.output))
        raise


async def _graded(work: _Work, carried: Carried | None) -> Reward:
    """Freezes the final workspace and has it graded, by the step's tests and by the task's rubric if it has one.

    `carried`: what a next step is to begin with is kept there first.
    """
    attempt, slot = work.attempt, work.slot
    place, task = attempt.place, attempt.task
    place.store.move_rollout(attempt.rollout.id, RolloutState.GRADING)
    removed = await slot.fetch(with_home=carried is not None)
    if carried is not None:
        with _on_disk(carried.folder):
            await to_thread.run_sync(carried.keep, slot.workshop)
    removed += await to_thread.run_sync(freeze, slot.workshop.workspace)
    if removed:
        shown = ", ".join(removed[:5]) + (f" and {len(removed) - 5} more" if len(removed) > 5 else "")
        why = "as they lead out of the workspace or stall"
        _log(attempt, "warning", "grader", f"removed before grading, {why}: {shown}")
    reward = await _grade(work)
    if task.rubric is not None and place.judge is not None:
        reward = await _judged(place.judge, task, slot, reward)
    return reward


def _log(attempt: _Attempt, level: str, part: str, message: str) -> None:
    place, rollout_id = attempt.place, attempt.rollout.id
    place.store.log(level, part, f"rollout={rollout_id} {message}", place.run_id, rollout_id)


async def _outcome(work: _Work, launch: Launch, session: Session) -> Outcome:
    """Let the harness work until it ends; when this returns, its sandbox is gone with every process in it."""
    slot, step, settings = work.slot, work.step, work.attempt.place.config.rollout
    limits = replace(slot.waiting.spec.limits, timeout_s=min(settings.timeout_s, step.agent_timeout_s))
    said = ""
    try:
        started = await slot.go(step.prepared(launch.argv), launch.env, limits)
        outcome = await slot.watch(started, lambda: bool(session.scopes))
        said = outcome.output
    except RolloutError as error:
        said = error.output
        raise
    finally:
        with _keeping(said):
            await slot.end()
    return outcome


def shorter(of_run: float, of_task: float, key: str, section: str) -> str:
    """Which of two time limits was in force, by the name under which it is changed."""
    return f"rollout.{key}" if of_run <= of_task else f"the task's own [{section}] timeout_sec"


def _check(outcome: Outcome, settled: Settled, slot: Slot, time_limit: str, was_spent: bool) -> None:
    """Tells a rollout that can be graded from one that cannot. Ending at a limit of calls or tokens is the policy's,
    also where earlier steps have used it up (`was_spent`).
    """
    if settled.error is not None:
        raise settled.error
    if outcome.out_of_memory:
        raise HarnessError("out_of_memory", "the harness ran out of its sandbox's memory (rollout.memory_mb)")
    if not settled.num_calls and (refused := not_prepared(outcome.exit_code, outcome.output)):
        limit = f" ({time_limit})" if outcome.timed_out else " (rollout.idle_s)" if outcome.is_idle else ""
        raise TaskError(refused[0], refused[1] + limit)
    if outcome.is_idle:
        raise HarnessError("idle", "it waited for nothing and did nothing (rollout.idle_s)")
    if outcome.timed_out:
        message = f"the harness was still running after {outcome.seconds:.0f} s ({time_limit})"
        raise HarnessError("timeout", message)
    ended = f"the harness ended with exit code {outcome.exit_code}"
    hit = _limits_hit(outcome, slot)
    if not settled.num_calls and not (was_spent and settled.limit_reached):
        raise HarnessError("no_call", f"{ended} without calling the model{hit}")
    if outcome.exit_code and not settled.limit_reached:
        raise HarnessError("exit_code", ended + hit)


def _limits_hit(outcome: Outcome, slot: Slot) -> str:
    """The limits that the kernel held it to, each with the key that changes it; '' for none."""
    keys = {"memory": "memory_mb"}
    hit = [f"; it was held at its limit of {limit} (rollout.{keys.get(limit, limit)})" for limit in outcome.limits_hit]
    if slot.workshop.is_full():
        hit.append("; its workspace and HOME are full (rollout.disk_mb, rollout.files)")
    return "".join(hit)


async def _grade(work: _Work) -> Reward:
    """Grades the final workspace in a fresh sandbox; the agent's is gone with all its processes (I9)."""
    slot, step, task = work.slot, work.step, work.attempt.task
    tests = await slot.to_grade(step.tests.resolve())
    outcome = await slot.host.podman.run(_grader_spec(work, tests))
    if outcome.timed_out:
        settings = work.attempt.place.config.rollout
        limit = shorter(settings.grade_timeout_s, step.verifier_timeout_s, "grade_timeout_s", "verifier")
        raise GraderError("timeout", f"{step.tests}/test.sh was still running after {outcome.seconds:.0f} s ({limit})")
    verdict = await slot.verdict()
    how = f"exit code {outcome.exit_code}{_limits_hit(outcome, slot)}; {outcome.output.strip()[-400:]}"
    starved = GraderError("out_of_memory", f"{task.name}: the grader was killed for memory: {how}")
    if outcome.out_of_memory and outcome.exit_code == KILLED:
        raise starved  # what it wrote before it was killed is no reward
    try:
        return read_reward(verdict)
    except GraderError as error:
        if outcome.out_of_memory:
            raise starved from error
        raise GraderError(error.cause, f"{task.name}: {error.message}; {how}") from error


async def _judged(judge: Judge, task: Task, slot: Slot, code: Reward) -> Reward:
    """The hybrid reward: the code's grade and the judge's, both kept as parts."""
    assert task.rubric is not None
    verdict = await judge.score(task, slot.workshop.workspace)
    said = {"code": code.value, "rubric": verdict.score, "rubric agreement": verdict.agreement}
    criteria = {f"rubric {n}": score for n, score in enumerate(verdict.by_criterion, 1)}
    return Reward(combine(code.value, task.rubric, verdict), {**code.parts, **said, **criteria})


def kind_of(place: Place, harness: Harness, task: Task | None = None) -> Kind:
    """What sandboxes of this harness are: for a task with an image of its own, or for all others."""
    settings = place.config.rollout
    limits = Limits(
        memory_bytes=max(harness.memory_bytes, settings.memory_mb << 20),
        pids=max(harness.pids, settings.pids),
        cpus=settings.cpus,
        timeout_s=settings.timeout_s,
        idle_s=settings.idle_s,
        grace_s=settings.grace_s,
        disk_bytes=settings.disk_mb << 20,
        num_files=settings.files,
    )
    own = place.own_images.get(task.name) if task else None
    image = own.by_harness[harness.name] if own else place.images[harness.name]
    return Kind(image, limits, place.proxy.directory, harness.may_nest)


def _grader_spec(work: _Work, tests: Path) -> SandboxSpec:
    place, slot = work.attempt.place, work.slot
    settings = place.config.rollout
    waiting = slot.waiting.spec
    own = place.own_images.get(work.attempt.task.name)
    return SandboxSpec(
        name=f"{waiting.name}-grade",
        image=own.base if own else place.grader_image,
        argv=("bash", "/tests/test.sh"),
        env={},
        workdir="/workspace",
        mounts=(
            Mount(slot.folders.workspace, "/workspace", False),
            Mount(tests, "/tests", True),
            Mount(slot.folders.verdict, "/logs/verifier", False),
        ),
        labels={**waiting.labels, "corral.rollout": str(work.attempt.rollout.id)},
        limits=Limits(
            memory_bytes=settings.memory_mb << 20,
            pids=settings.pids,
            cpus=settings.cpus,
            timeout_s=min(settings.grade_timeout_s, work.step.verifier_timeout_s),
            disk_bytes=settings.disk_mb << 20,
            num_files=settings.files,
        ),
        proxy_dir=None,
    )


@asynccontextmanager
async def _slot(attempt: _Attempt, suffix: str) -> AsyncIterator[Slot]:
    """A step's own slot, gone afterwards whatever happens; HostError when the host cannot hold its folders."""
    pool, kind = attempt.place.pool, kind_of(attempt.place, attempt.harness, attempt.task)
    async with AsyncExitStack() as stack:
        with _on_disk(pool.folder):  # what goes wrong later in the rollout is not said to be the disk's
            slot = await stack.enter_async_context(pool.slot(kind, f"{attempt.rollout.id}-{attempt.number}{suffix}"))
        yield slot


async def _lay_out(work: _Work, carried: Carried, files: dict[str, str]) -> None:
    """Fills workspace and HOME before the agent exists; afterwards the host freezes, mounts and deletes them."""
    with _on_disk(work.slot.workshop.folder):
        await to_thread.run_sync(_fill, work, carried, files)
    await work.slot.send()


@contextmanager
def _on_disk(folder: Path) -> Iterator[None]:
    """An OSError in here is this machine's: a full disk, a folder that cannot be written."""
    try:
        yield
    except OSError as error:
        remedy = "free disk space or check its permissions, then `corral resume`"
        raise HostError(f"{folder}: {error}", remedy) from error


def _fill(work: _Work, carried: Carried, files: dict[str, str]) -> None:
    task, workshop = work.attempt.task, work.slot.workshop
    own = work.attempt.place.own_images.get(task.name)
    with laying_out(workshop) if work.number else nullcontext():
        if work.number:
            carried.lay(workshop)
        else:
            for start in (*([own.files] if own else []), task.environment_files):  # the image's own, the task's over it
                if start.is_dir():
                    shutil.copytree(start, workshop.workspace, dirs_exist_ok=True)
        if work.step.workdir is not None:
            place_over(work.step.workdir, workshop.workspace)
        for name, text in files.items():
            clear_way(workshop.home, Path(name)).write_text(text, encoding="utf-8")
    workshop.hand_over()
