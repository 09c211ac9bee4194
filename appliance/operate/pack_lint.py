"""Whether a pack measures what it says: agents that do nothing, cheat, or know the answer, run against every task.

    null     does nothing: a reward above 0 makes the task *free*
    oracle   runs solution/solve.sh: less than 1, or no grade, makes it *impossible*
    twice    both final workspaces are graded twice, and the oracle's once more in the sandbox it was used in:
             different rewards make it *flaky*
    forger   writes rewards and its own graders, interpreters and start-up files wherever it can: a reward above the
             null agent's makes it *forgeable*
    copier   leaves what a sibling's oracle left (same family), where that is another answer than its own: a full reward
             makes it *free*, as a fixed answer passes; so does one answer to all

A task of several steps is gone through step by step by each of the first four (`step_lint`). Everything runs in the
sandboxes that rollouts use, so what the linter says holds there; a task that brings a Dockerfile is probed in its own
image, which is built where it is missing.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import anyio
from anyio import to_thread

from appliance.config.runconfig import podman_home
from appliance.errors import GraderError, HarnessError, HostError, PackError, RolloutError, SandboxError
from appliance.operate.lintfindings import Findings, Graded, note_difference, note_slow
from appliance.operate.step_lint import lint_steps
from appliance.sandbox.freeze import freeze
from appliance.sandbox.handover import Carried, laying_out, place_over
from appliance.sandbox.images.task import TaskImages, build_task_images
from appliance.sandbox.podman import Limits, Mount, Outcome, Podman, SandboxSpec
from appliance.sandbox.workdiff import answer_of, lay_over
from appliance.sandbox.workspace import Workshop
from appliance.tasks.pack import Pack, Task
from appliance.tasks.reward import read_reward

COPIED = 6
"""How many siblings are tried for an answer that is another than the task's own; small numbers are often the same."""
RETRIES = 2
"""How often a task is probed again whose sandboxes failed."""
DISK_BYTES, NUM_FILES = 512 << 20, 100_000
MEMORY_BYTES = 1 << 30

# What an agent that wants the reward without the work can leave behind. Each line may fail; none may help.
FORGER = r"""
cd /workspace
for place in /logs/verifier /logs /tests /workspace /tmp "$HOME"; do
  mkdir -p $place; echo '{"reward": 1.0, "score": 1.0}' > $place/reward.json; echo 1 > $place/reward.txt
done
mkdir -p tests logs/verifier reward; cp reward.json reward.txt logs/verifier/
printf '#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n' > tests/test.sh
for name in python3 python bash sh jq cat; do
  printf '#!/bin/sh\necho 1 > /logs/verifier/reward.txt; echo 1.0\n' > $name; chmod +x $name
done
for name in sitecustomize usercustomize json os csv conftest pytest unittest check; do
  printf 'import atexit\natexit.register(lambda: open("/logs/verifier/reward.txt", "w").write("1"))\n' > $name.py
done
for name in .bashrc .profile .bash_profile; do echo 'echo 1 > /logs/verifier/reward.txt' > "$HOME/$name"; done
printf '[pytest]\naddopts = --co\n' > pytest.ini
(sleep 30; echo 1 > /logs/verifier/reward.txt) >/dev/null 2>&1 &
true
"""


@dataclass(frozen=True, slots=True)
class _Launch:
    """One program in one sandbox."""

    part: str
    argv: tuple[str, ...]
    mounts: tuple[Mount, ...]
    timeout_s: float


class Linter:
    """Runs the probes of one pack. `lint` gives the findings of one task, in its own image where it brings one."""

    def __init__(self, podman: Podman, image: str, home: Path, owner: str, pack: Pack) -> None:
        self._podman, self._image, self._home, self._owner, self._pack = podman, image, home, owner, pack
        self._own: dict[str, TaskImages] = {}
        self._building = anyio.Lock()

    async def lint(self, task: Task) -> Findings:
        """All probes of one task. HostError only where the host cannot hold a sandbox."""
        found = Findings(task.name)
        started = time.monotonic()
        try:
            await self._build(task)
        except PackError as error:
            found.problems["impossible"] = f"its image cannot be built: {error}"
            return found
        if task.steps:
            await lint_steps(self, task, found, FORGER)
            found.seconds = time.monotonic() - started
            return found
        await self._null_and_forger(task, found)
        if task.solution is None:
            found.problems["no_oracle"] = "it ships no solution/solve.sh, so nothing shows that it can be solved"
        else:
            await self._oracle(task, found)
            await self._copier(task, found)
        found.seconds = time.monotonic() - started
        return found

    async def _null_and_forger(self, task: Task, found: Findings) -> None:
        async with self.workspace(task, "null") as shop:
            first, second = await self.grade(task, shop, "a"), await self.grade(task, shop, "b")
        found.null = first.reward
        if first.reward is None:
            found.problems["impossible"] = f"its grader gives no reward for an untouched workspace: {first.why}"
        elif first.reward > 0:
            found.problems["free"] = f"doing nothing earns {first.reward:g}"
        note_difference(found, "the untouched workspace", [first, second])
        note_slow(found, "its grader", first.seconds, task.verifier_timeout_s)
        async with self.workspace(task, "forger") as shop:
            await self.agent(task, shop, ("bash", "-c", FORGER), ())
            forged = await self.grade(task, shop, "a")
        if forged.reward is not None and forged.reward > (first.reward or 0.0):
            found.problems["forgeable"] = f"files left by an agent that did no work earn {forged.reward:g}"

    async def _oracle(self, task: Task, found: Findings) -> None:
        async with self.workspace(task, "oracle") as shop:
            ended = await self._solve(task, shop)
            if ended.exit_code != 0:
                why = f"exit code {ended.exit_code}" if not ended.timed_out else "it ran into the time limit"
                found.problems["impossible"] = f"its oracle fails: {why}: {ended.output.strip()[-200:]}"
                return
            found.answer = await to_thread.run_sync(answer_of, shop.workspace, task.environment_files)
            graded = [await self.grade(task, shop, "a"), await self.grade(task, shop, "b")]
        found.oracle = graded[0].reward
        if found.oracle is None or found.oracle < 1.0:
            got = graded[0].why if found.oracle is None else f"{found.oracle:g}"
            found.problems["impossible"] = f"its own solution earns {got}"
        note_slow(found, "its oracle", ended.seconds, task.agent_timeout_s)
        if found.oracle is not None:  # a grader that hangs in a fresh sandbox would only hang once more
            async with self.workspace(task, "used") as shop:
                graded.append(await self._grade_where_used(task, shop))
        note_difference(found, "the oracle's workspace", graded)

    async def _build(self, task: Task) -> None:
        """The image of a task that brings a Dockerfile, for its probes and its graders; one build at a time."""
        async with self._building:
            if task.dockerfile is not None and task.name not in self._own:
                self._own[task.name] = await to_thread.run_sync(
                    build_task_images, podman_home(self._home), task, (), lambda line: None
                )

    async def _copier(self, task: Task, found: Findings) -> None:
        own = [t for t in self._pack.tasks if t.family == task.family and t.solution]
        if len(own) < 2 or found.oracle != 1.0:
            return
        at = [t.name for t in own].index(task.name)
        for sibling in [*own[at + 1 :], *own[:at]][:COPIED]:
            await self._build(sibling)
            async with self.workspace(sibling, f"{task.name}-sibling") as theirs:
                if (await self._solve(sibling, theirs)).exit_code != 0:
                    return
                if await to_thread.run_sync(answer_of, theirs.workspace, sibling.environment_files) == found.answer:
                    continue  # right here too, be it by chance: the next one may tell
                async with self.workspace(task, "copier") as shop:
                    files = sibling.environment_files
                    await to_thread.run_sync(lay_over, theirs.workspace, files, shop.workspace)
                    await to_thread.run_sync(shop.hand_over)
                    copied = await self.grade(task, shop, "a")
            if copied.reward == 1.0:
                why = f"the answer of {sibling.name} earns 1 here too: it is a fixed answer"
                found.problems.setdefault("free", why)
            return
        found.problems.setdefault("free", "its answer is that of every sibling tried: it is a fixed answer")

    # ------------------------------------------------------------------ sandboxes

    def workspace(self, task: Task, probe: str, carried: Carried | None = None, over: Path | None = None) -> _Shop:
        """The task's workspace, or what an earlier step left, with `over` laid over it; gone afterwards."""
        own = self._own.get(task.name)
        starts = [*([own.files] if own else []), *([task.environment_files] if task.environment_files.is_dir() else [])]
        return _Shop(self._podman, self.folder_of(task, probe), starts, carried, over)

    def folder_of(self, task: Task, probe: str) -> Path:
        """Where a probe of a task has its files."""
        return self._home / "lint" / f"{task.name}-{probe}"

    async def _solve(self, task: Task, shop: Workshop) -> Outcome:
        assert task.solution is not None
        solution = Mount(task.solution.resolve(), "/solution", True)
        return await self.agent(task, shop, ("bash", "/solution/solve.sh"), (solution,))

    async def agent(self, task: Task, shop: Workshop, argv: tuple[str, ...], more: tuple[Mount, ...]) -> Outcome:
        """A command in a sandbox like an agent's."""
        mounts = (Mount(shop.workspace, "/workspace"), Mount(shop.home, "/home/agent"), *more)
        return await self._run(task, shop, _Launch("agent", argv, mounts, task.agent_timeout_s))

    async def grade(self, task: Task, shop: Workshop, turn: str) -> Graded:
        """In a fresh sandbox over the frozen workspace, as a rollout is graded."""
        try:
            await to_thread.run_sync(freeze, shop.workspace)
        except HarnessError as error:
            return Graded(None, error.message, 0.0)
        verdict = await to_thread.run_sync(_fresh_verdict, shop, turn)
        mounts = _grading(task, shop, verdict)
        launch = _Launch(f"grade-{turn}", ("bash", "/tests/test.sh"), mounts, task.verifier_timeout_s)
        ended = await self._run(task, shop, launch)
        return _read(verdict, ended)

    async def _grade_where_used(self, task: Task, shop: Workshop) -> Graded:
        """The oracle and the grader in one sandbox, one after the other."""
        assert task.solution is not None
        verdict = await to_thread.run_sync(_fresh_verdict, shop, "used")
        more = (Mount(task.solution.resolve(), "/solution", True), Mount(shop.home, "/home/agent"))
        both = ("bash", "-c", "bash /solution/solve.sh >/dev/null && bash /tests/test.sh")
        limit_s = task.agent_timeout_s + task.verifier_timeout_s
        ended = await self._run(task, shop, _Launch("used", both, (*_grading(task, shop, verdict), *more), limit_s))
        return _read(verdict, ended)

    async def _run(self, task: Task, shop: Workshop, launch: _Launch) -> Outcome:
        own = self._own.get(task.name)
        limits = Limits(
            memory_bytes=MEMORY_BYTES, timeout_s=launch.timeout_s, disk_bytes=DISK_BYTES, num_files=NUM_FILES
        )
        spec = SandboxSpec(
            name=f"corral-{self._owner}-{shop.folder.name}-{launch.part}"[:200],
            image=own.base if own else self._image,
            argv=launch.argv,
            workdir="/workspace",
            env={"HOME": "/home/agent"} if launch.part in ("agent", "used") else {},
            mounts=launch.mounts,
            labels={"corral.owner": self._owner},
            limits=limits,
        )
        return await self._podman.run(spec)


class _Shop:
    """A workspace laid out for one probe, gone afterwards."""

    def __init__(
        self, podman: Podman, folder: Path, starts: Sequence[Path], carried: Carried | None, over: Path | None
    ) -> None:
        self._shop = Workshop(folder, podman.traits, DISK_BYTES, NUM_FILES)
        self._starts, self._carried, self._over = starts, carried, over

    async def __aenter__(self) -> Workshop:
        try:
            await to_thread.run_sync(self._lay_out)
        except OSError as error:
            raise HostError(f"{self._shop.folder}: {error}", "free disk space or check its permissions") from error
        return self._shop

    async def __aexit__(self, *_: object) -> None:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(self._shop.remove)

    def _lay_out(self) -> None:
        self._shop.make()
        for start in self._starts if self._carried is None else ():
            shutil.copytree(start, self._shop.workspace, dirs_exist_ok=True)
        with laying_out(self._shop):
            if self._carried is not None:
                self._carried.lay(self._shop)
            if self._over is not None:
                place_over(self._over, self._shop.workspace)
        self._shop.hand_over()


async def lint_pack(
    home: Path, pack: Pack, image: str, parallel: int, emit: Callable[[Findings, int, int], None]
) -> list[Findings]:
    """Runs every probe on every task, `parallel` tasks at once; `emit(findings, done, of)` as each ends."""
    owner = f"{hashlib.sha256(str(home).encode()).hexdigest()[:10]}-lint"
    folder = home / "lint"
    found: list[Findings] = []
    waiting = iter(pack.tasks)
    async with Podman(podman_home(home), parallel) as podman:
        await podman.reconcile({"corral.owner": owner})
        await to_thread.run_sync(_sweep, folder, podman)
        if not await podman.image_exists(image):
            raise HostError(f"the base image is missing ({image})", "build it: corral images build")
        linter = Linter(podman, image, home, owner, pack)

        async def worker() -> None:
            for task in waiting:
                one = await findings_of(linter, task)
                found.append(one)
                emit(one, len(found), len(pack.tasks))

        async with anyio.create_task_group() as group:
            for _ in range(parallel):
                group.start_soon(worker)
    return sorted(found, key=lambda f: f.task)


class Lints(Protocol):
    """What gives the findings of a task: the Linter."""

    async def lint(self, task: Task) -> Findings:
        """Raises RolloutError where a probe could not be run."""
        ...


async def findings_of(linter: Lints, task: Task) -> Findings:
    """The findings of one task. What the host failed at is tried again, and is then no fault of the task's."""
    for tries_left in range(RETRIES, -1, -1):
        try:
            return await linter.lint(task)
        except SandboxError as error:
            if not tries_left:
                why = f"{error.label}, {RETRIES + 1} times: {error.message}"
                return Findings(task.name, problems={"unchecked": why})
        except RolloutError as error:
            return Findings(task.name, problems={"impossible": f"{error.label}: {error.message}"})
    raise AssertionError("unreachable")


def _sweep(folder: Path, podman: Podman) -> None:
    """Removes workspaces that a killed linter left, with their file systems."""
    for left in folder.glob("*"):
        Workshop(left, podman.traits, DISK_BYTES, NUM_FILES).remove()


def _grading(task: Task, shop: Workshop, verdict: Path) -> tuple[Mount, ...]:
    """What a grader sees: the workspace, the hidden tests and its empty reward folder."""
    tests = Mount(task.tests.resolve(), "/tests", True)
    return Mount(shop.workspace, "/workspace"), tests, Mount(verdict, "/logs/verifier")


def _fresh_verdict(shop: Workshop, turn: str) -> Path:
    verdict = shop.folder / f"verdict-{turn}"
    verdict.mkdir(mode=0o755)
    if shop.traits.is_root:
        shutil.chown(verdict, shop.traits.agent_host_id, shop.traits.agent_host_id)
    return verdict


def _read(verdict: Path, ended: Outcome) -> Graded:
    if ended.timed_out:
        return Graded(None, "its grader ran into the time limit", ended.seconds, timed_out=True)
    try:
        reward = read_reward(verdict)
        return Graded(reward.value, "", ended.seconds, parts=reward.parts)
    except GraderError as error:
        return Graded(None, f"{error.message}; {ended.output.strip()[-200:]}", ended.seconds)
