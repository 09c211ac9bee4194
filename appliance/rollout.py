"""One rollout: put a task before a harness, let it work, then grade what it left behind.

    begin → workspace and HOME → proxy opens its token → sandbox runs the harness → proxy settles → fresh sandbox
    grades → reward

A bad rollout is data, not a crash: whatever goes wrong inside becomes one label on the record (`part:cause`) and the
reward stays None (I5). Nothing of a rollout outlives it (I8).
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
from anyio import to_thread

from appliance.config import RunConfig
from appliance.errors import GraderError, HarnessError, HostError, RolloutError
from appliance.grade import read_reward
from appliance.harness import Harness, Launch
from appliance.proxy import Answerer, Proxy, Settled
from appliance.sandbox import Limits, Mount, Outcome, Podman, SandboxSpec
from appliance.store import Store
from appliance.tasks import Task
from appliance.types import Reward, Rollout, RolloutState

AGENT_UID = 1000
PROXY_ADDRESS = "http://127.0.0.1:8123"
MODEL_NAME = "corral"
# Failures of ours or of the host: worth another try. What the policy or the task caused is not.
RETRIED_PARTS = ("sandbox", "engine", "capture")
NOT_RETRIED = ("disk_full",)


@dataclass(frozen=True, slots=True)
class Place:
    """Where rollouts are made: the shared owners of each outside thing, and the run's settings."""

    run_id: str
    owner: str
    config: RunConfig
    store: Store
    podman: Podman
    proxy: Proxy
    harnesses: dict[str, Harness]
    images: dict[str, str]
    grader_image: str
    folder: Path


async def make_rollout(place: Place, rollout: Rollout, task: Task, answerer: Answerer, version: int) -> None:
    """Makes one rollout from task to reward, trying again after failures that are not the policy's.

    Never raises RolloutError: the outcome, good or bad, is on the record when this returns.
    """
    for tries_left in range(place.config.rollout.retries, -1, -1):
        attempt = place.store.begin(rollout.id, version)
        folder = place.folder / f"{rollout.id}-{attempt}"
        try:
            async with _workshop(folder):
                await _one_attempt(place, rollout, task, answerer, folder)
            return
        except RolloutError as error:
            if tries_left and error.part in RETRIED_PARTS and error.cause not in NOT_RETRIED:
                place.store.log(
                    "warning",
                    error.part,
                    f"rollout={rollout.id} {error.label}: trying again: {error.message}",
                    place.run_id,
                    rollout.id,
                )
                continue
            output = error.output if isinstance(error, _WithOutput) else ""
            place.store.fail(rollout.id, error.label, error.message, output)
            place.store.log(
                "warning",
                error.part,
                f"rollout={rollout.id} failed {error.label}: {error.message}",
                place.run_id,
                rollout.id,
            )
            return


class _WithOutput(HarnessError):
    """A harness failure that keeps what the harness printed last."""

    def __init__(self, cause: str, message: str, output: str) -> None:
        super().__init__(cause, message)
        self.output = output


async def _one_attempt(place: Place, rollout: Rollout, task: Task, answerer: Answerer, folder: Path) -> None:
    token = secrets.token_urlsafe(24)
    harness = place.harnesses[rollout.plan.harness]
    launch = harness.launch(
        task.instruction, f"{PROXY_ADDRESS}/s/{token}", token, MODEL_NAME, place.config.rollout.max_tokens
    )
    await to_thread.run_sync(_lay_out, folder, task, launch.files)
    spec = _agent_spec(place, rollout, task, launch, folder)
    started = time.monotonic()
    place.proxy.open(rollout.id, token, answerer)
    try:
        place.store.move_rollout(rollout.id, RolloutState.RUNNING)
        outcome = await place.podman.run(spec)
    finally:
        settled = await place.proxy.close(token)
    worked = time.monotonic()
    _check(outcome, settled, spec.limits.timeout_s)
    place.store.move_rollout(rollout.id, RolloutState.GRADING)
    reward = await _grade(place, rollout, task, folder)
    timings = {"agent_s": worked - started, "grade_s": time.monotonic() - worked}
    place.store.grade(rollout.id, reward, outcome.output, timings)


def _check(outcome: Outcome, settled: Settled, timeout_s: float) -> None:
    """Tells a rollout that can be graded from one that cannot. Ending at a limit of calls or tokens is the policy's."""
    if settled.error is not None:
        raise settled.error
    if outcome.out_of_memory:
        raise _WithOutput(
            "out_of_memory", "the harness ran out of its sandbox's memory (rollout.memory_mb)", outcome.output
        )
    if outcome.timed_out:
        raise _WithOutput(
            "timeout", f"the harness was still running after {timeout_s:.0f} s (rollout.timeout_s)", outcome.output
        )
    if not settled.num_calls:
        raise _WithOutput(
            "no_call", f"the harness ended (exit code {outcome.exit_code}) without calling the model", outcome.output
        )
    if outcome.exit_code and not settled.limit_reached:
        raise _WithOutput("exit_code", f"the harness ended with exit code {outcome.exit_code}", outcome.output)


async def _grade(place: Place, rollout: Rollout, task: Task, folder: Path) -> Reward:
    """Grades the final workspace in a fresh sandbox; the agent's is gone with all its processes (I9)."""
    verdict = folder / "verdict"
    await to_thread.run_sync(_own, verdict)
    outcome = await place.podman.run(_grader_spec(place, rollout, task, folder, verdict))
    if outcome.timed_out:
        raise GraderError("timeout", f"{task.tests}/test.sh was still running after its time limit")
    try:
        return read_reward(verdict)
    except GraderError as error:
        last = outcome.output.strip()[-400:]
        raise GraderError(
            error.cause, f"{task.name}: {error.message}; exit code {outcome.exit_code}; {last}"
        ) from error


def _agent_spec(place: Place, rollout: Rollout, task: Task, launch: Launch, folder: Path) -> SandboxSpec:
    harness = place.harnesses[rollout.plan.harness]
    settings = place.config.rollout
    return SandboxSpec(
        name=f"corral-{place.owner}-{folder.name}",
        image=place.images[harness.name],
        argv=launch.argv,
        env=launch.env,
        workdir="/workspace",
        mounts=(Mount(folder / "workspace", "/workspace", False), Mount(folder / "home", "/home/agent", False)),
        labels=_labels(place, rollout),
        limits=Limits(
            memory_bytes=max(harness.memory_bytes, settings.memory_mb << 20),
            pids=max(harness.pids, settings.pids),
            cpus=settings.cpus,
            timeout_s=min(settings.timeout_s, task.agent_timeout_s),
        ),
        proxy_dir=place.proxy.directory,
    )


def _grader_spec(place: Place, rollout: Rollout, task: Task, folder: Path, verdict: Path) -> SandboxSpec:
    settings = place.config.rollout
    return SandboxSpec(
        name=f"corral-{place.owner}-{folder.name}-grade",
        image=place.grader_image,
        argv=("bash", "/tests/test.sh"),
        env={},
        workdir="/workspace",
        mounts=(
            Mount(folder / "workspace", "/workspace", False),
            Mount(task.tests.resolve(), "/tests", True),
            Mount(verdict, "/logs/verifier", False),
        ),
        labels=_labels(place, rollout),
        limits=Limits(
            memory_bytes=settings.memory_mb << 20,
            pids=settings.pids,
            cpus=settings.cpus,
            timeout_s=min(settings.grade_timeout_s, task.verifier_timeout_s),
        ),
        proxy_dir=None,
    )


def _labels(place: Place, rollout: Rollout) -> dict[str, str]:
    return {"corral.owner": place.owner, "corral.run": place.run_id, "corral.rollout": str(rollout.id)}


@asynccontextmanager
async def _workshop(folder: Path) -> AsyncIterator[None]:
    """A rollout's own folder, gone afterwards whatever happens; HostError when the host cannot hold it."""
    try:
        folder.mkdir(parents=True, mode=0o711)
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(_delete, folder)
    except OSError as error:
        raise HostError(
            f"{folder}: {error}", "free disk space or check its permissions, then `corral resume`"
        ) from error


def _delete(folder: Path) -> None:
    """By `rm`, which takes trees of any depth; what an agent nests must not exhaust our own stack."""
    subprocess.run(["rm", "-rf", "--", str(folder)], check=False)


def _lay_out(folder: Path, task: Task, files: dict[str, str]) -> None:
    """Fills workspace and HOME before the agent exists; afterwards the host only mounts and deletes them."""
    shutil.copytree(task.environment_files, folder / "workspace")
    (folder / "home").mkdir()
    for name, text in files.items():
        path = folder / "home" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for part in ("workspace", "home"):
        _own(folder / part)


def _own(top: Path) -> None:
    """Makes a folder, and all in it, the sandbox user's. As root by chown; rootless maps our own uid to it."""
    top.mkdir(exist_ok=True)
    if os.geteuid() != 0:
        return
    os.chown(top, AGENT_UID, AGENT_UID)
    for path, folders, names in os.walk(top):
        for name in (*folders, *names):
            os.chown(Path(path, name), AGENT_UID, AGENT_UID, follow_symlinks=False)
