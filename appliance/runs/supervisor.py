"""The supervisor: one process that owns the proxy, the sandboxes, the children and the schedule of one run.

Everything it decides follows from the record: phases whose rollouts are all there are skipped, so `resume` is the
same code as `train`. Invariant (I8): after kill -9 of anything, the next start removes what is left and goes on
without losing or repeating a graded rollout.

    teach → coldstart → eval_before → train (rollouts, update) × steps → eval_after → report
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

from appliance.capture.proxy import Limits as ProxyLimits
from appliance.capture.proxy import Proxy
from appliance.config.runconfig import RunConfig, from_record, podman_home
from appliance.engine.sampler import Sampler
from appliance.errors import ApplianceError, CorralError, StoreError, first_of
from appliance.harness.fit import check_fit, chosen_harnesses
from appliance.harness.harness import Harness
from appliance.record.lock import lock
from appliance.record.store import Run, Store
from appliance.runs import schedule
from appliance.runs.control import Steering
from appliance.runs.harness_reload import InForce, reloading
from appliance.runs.judge import EngineVoice, Judge, judging
from appliance.runs.rollout import Place, make_rollout
from appliance.runs.run_pack import pack_of_run
from appliance.runs.teaching import Choose, teachers
from appliance.runs.watchdog import check_disk, watch
from appliance.sandbox import workspace
from appliance.sandbox.hosts import check_images, open_hosts, reconcile, reconciling
from appliance.sandbox.images.task import built_images, names_of
from appliance.sandbox.pool import Pool
from appliance.sandbox.settings import leave_proxy_directory, owner_of, proxy_directory
from appliance.system import scratch
from appliance.tasks.pack import Pack, load_pack
from appliance.train.child import TrainChild
from appliance.types import Purpose, Rollout, RolloutPlan, RunState

COMMAND_POLL_S = 0.5


class Drained(Exception):
    """Raised inside a run when `stop` was asked for and what was under way has ended."""


@dataclass(slots=True)
class Supervisor:
    """One run from its record to its end. Build with `Supervisor(home, store, run)`, then `await main()`."""

    home: Path
    store: Store
    run: Run
    config: RunConfig = field(init=False)
    pack: Pack = field(init=False)
    draining: anyio.Event = field(init=False)
    folder: Path = field(init=False)
    steering: Steering = field(init=False)
    why: str = "stopped by request"

    def __post_init__(self) -> None:
        self.config = from_record(self.run.config)
        self.folder = self.home / "runs" / self.run.id
        self.draining = anyio.Event()
        self.steering = Steering(self.store, self.log)

    # ------------------------------------------------------------------ life

    async def main(self) -> RunState:
        """Runs, or goes on with, the run until it is done, drained or failed; returns the state it ended in."""
        # Until the very end: a second Ctrl-C while all is being put away must not cut that short.
        with lock(self.home, self.run.id), anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            self.store.end_killed_phase(self.run.id)
            self.store.drop_commands(self.run.id)  # a stop meant for an earlier supervisor must not end this one
            self.store.move_run(self.run.id, RunState.RUNNING)
            state, message = RunState.FAILED, "ended unexpectedly"
            try:
                check_disk(self.config.record, self.home)
                async with anyio.create_task_group() as group:
                    group.start_soon(self._take_commands)
                    group.start_soon(self._take_signals, signals)
                    group.start_soon(watch, self.config.record, self.home, self._drain, self.log)
                    await self._phases()
                    group.cancel_scope.cancel()
                state, message = RunState.DONE, ""
            except* Drained:
                state, message = RunState.STOPPED, f"{self.why}; `corral resume` goes on"
            except* CorralError as failed:
                message = str(first_of(failed))
                self.log("error", "supervisor", message)
            finally:
                with suppress(StoreError):
                    self.store.end_phase(self.run.id)
                self.store.move_run(self.run.id, state, message)
            return state

    def log(self, level: str, part: str, message: str) -> None:
        """Adds an event of this run to the record."""
        self.store.log(level, part, message, self.run.id)

    async def _take_commands(self) -> None:
        while True:
            for kind, argument in self.store.take_commands(self.run.id):
                if kind != "stop":
                    self.steering.take(kind, argument)
                    continue
                self._drain("stop was asked for")
                if argument == "now":
                    raise Drained
            await anyio.sleep(COMMAND_POLL_S)

    async def _take_signals(self, signals: AsyncIterator[signal.Signals]) -> None:
        """Ctrl-C or SIGTERM once drains; twice ends at once. Either way nothing recorded is lost."""
        async for _ in signals:
            if self.draining.is_set():
                raise Drained
            self._drain("interrupted")

    def _drain(self, why: str) -> None:
        if not self.draining.is_set():
            self.draining.set()
            self.why = why
            self.store.move_run(self.run.id, RunState.DRAINING, why)
            self.log("info", "supervisor", f"{why}: no new rollouts; waiting for those under way")

    # ------------------------------------------------------------------ phases

    async def _phases(self) -> None:
        self.pack = pack_of_run(self.store, self.run, self.config)
        self._check_splits()
        self.store.note_tasks(self.pack.name, [(t.name, t.family, t.split, t.instruction) for t in self.pack.tasks])
        harnesses = chosen_harnesses(self.config, self.home)
        check_fit(self.pack.tasks, harnesses.values())
        async with AsyncExitStack() as stack:
            place = await self._open_place(stack, harnesses)
            if not self.store.versions(self.run.id):
                await self._cold_start(place)
            self.store.begin_phase(self.run.id, "engine")
            sampler = await stack.enter_async_context(Sampler.for_run(self.home, self.store, self.run.id, self.config))
            place = self._judged_by(place, sampler)
            if self.config.evaluation.enabled:
                await self._evaluate(place, sampler, Purpose.EVAL_BEFORE, 0)
            await self._train(place, sampler)
            if self.config.evaluation.enabled:
                await self._evaluate(place, sampler, Purpose.EVAL_AFTER, self.config.train.steps)

    async def single(self, plan: RolloutPlan, is_taught: bool) -> int:
        """Makes one rollout outside the run's schedule and returns its id."""
        with lock(self.home, self.run.id):
            self.pack = load_pack(self.config.pack_path)
            task = self.pack.task(plan.task)
            harnesses = chosen_harnesses(self.config, self.home)
            if plan.harness not in harnesses:
                raise ApplianceError(
                    f"run {self.run.id} does not use {plan.harness!r}", f"it uses {', '.join(harnesses)}"
                )
            check_fit([task], [harnesses[plan.harness]])
            (rollout,) = self.store.plan([plan])
            async with AsyncExitStack() as stack:
                place = await self._open_place(stack, harnesses)
                if is_taught:
                    choose = await stack.enter_async_context(teachers(self.config.coldstart))
                    answerer, version = choose(task, harnesses[plan.harness]), 0
                else:
                    sampler, version = await self._newest_sampler(stack)
                    place, answerer = self._judged_by(place, sampler), sampler.answerer
                await make_rollout(place, rollout, task, answerer, version)
            return rollout.id

    async def evaluate_only(self, version: int, pack: Pack) -> None:
        """Evaluates one policy version on the held-out tasks of `pack`, outside the run's schedule."""
        with lock(self.home, self.run.id):
            self.pack, harnesses = pack, chosen_harnesses(self.config, self.home)
            if not schedule.unfinished(self._planned(Purpose.EVAL, version)):
                return  # all on the record: no engine is needed to read it
            async with AsyncExitStack() as stack:
                place = await self._open_place(stack, harnesses)
                sampler, _ = await self._newest_sampler(stack)
                await self._evaluate(self._judged_by(place, sampler), sampler, Purpose.EVAL, version)
            self.store.end_phase(self.run.id)

    async def _newest_sampler(self, stack: AsyncExitStack) -> tuple[Sampler, int]:
        versions = self.store.versions(self.run.id)
        if not versions:
            raise ApplianceError(f"run {self.run.id} has no policy yet", f"corral resume {self.run.id}")
        sampler = await stack.enter_async_context(Sampler.for_run(self.home, self.store, self.run.id, self.config))
        await sampler.use(versions[-1][0])
        return sampler, versions[-1][0]

    def _sweep(self) -> None:
        """Removes host folders that a kill left: workspaces, and models or adapters that were being written."""
        parts = [self.home / "sandboxes", self.folder / "model", self.folder / "adapters"]
        for folder in parts[0].glob("*"):
            workspace.remove(folder)
        scratch.remove([*parts[1].glob(".*"), *parts[2].glob(".*"), *scratch.stale_scratch()])

    def _check_splits(self) -> None:
        train, held_out = self.config.tasks.train_split, self.config.tasks.held_out_split
        pairs = len(self.pack.split(train)) * len(self.config.harnesses)
        if self.config.train.steps and pairs < self.config.train.groups:
            raise ApplianceError(
                f"train.groups is {self.config.train.groups}; {self.pack.path} with the harnesses has {pairs} pairs",
                f"set train.groups to at most {pairs}",
            )
        for split in (train, held_out):
            if not self.pack.split(split):
                raise ApplianceError(
                    f"{self.pack.path}: no task has split {split!r}", "see tasks.train_split and tasks.held_out_split"
                )

    async def _open_place(self, stack: AsyncExitStack, harnesses: Mapping[str, Harness]) -> Place:
        from appliance.sandbox.images.build import base_ref, image_ref

        settings, owner = self.config.rollout, owner_of(self.home)
        hosts = await open_hosts(stack, podman_home(self.home), settings)
        await reconcile(hosts, owner, "left behind by an earlier supervisor", self.log)
        await to_thread.run_sync(self._sweep)
        images = {name: image_ref(h) for name, h in harnesses.items()}
        own = await to_thread.run_sync(built_images, podman_home(self.home), self.pack, list(harnesses.values()))
        await check_images(hosts, {**images, "base": base_ref(), **names_of(own)})
        for name, harness in harnesses.items():
            self.store.note_harness(name, harness.version, harness.wire, images[name])
        stack.callback(leave_proxy_directory, self.home)
        proxy = await stack.enter_async_context(
            Proxy(self.store, proxy_directory(self.home), proxy_limits(self.config))
        )
        labels = {"corral.owner": owner, "corral.run": self.run.id}
        pool = Pool(hosts, self.home / "sandboxes", labels, settings.parallel)
        await stack.enter_async_context(pool)
        await stack.enter_async_context(reconciling(hosts, owner, self.log))
        place = Place(
            run_id=self.run.id,
            config=self.config,
            store=self.store,
            pool=pool,
            proxy=proxy,
            harnesses=dict(harnesses),
            images=images,
            grader_image=base_ref(),
            own_images=own,
            judge=await self._open_judge(stack),
        )
        in_force = InForce(place.harnesses, place.images, place.own_images)
        watch = reloading(self.home, in_force, hosts[0].podman.image_exists, self.log)
        await stack.enter_async_context(watch)
        return place

    async def _open_judge(self, stack: AsyncExitStack) -> Judge | None:
        """The judge of hybrid tasks, as far as it needs no policy; `_judged_by` adds the run's own engine."""
        hybrid = sum(task.rubric is not None for task in self.pack.tasks)
        settings = self.config.judge
        if hybrid and not settings.url and settings.engine in ("", "run"):
            until = "until the run's own engine judges" if settings.engine else "without judge.url or judge.engine"
            self.log("warning", "grader", f"{hybrid} tasks have a rubric; {until} they are graded by their code alone")
        if settings.url or hybrid:
            return await stack.enter_async_context(judging(self.config, self.folder / "judge.log"))
        return None

    def _judged_by(self, place: Place, sampler: Sampler) -> Place:
        """The same place with the run's own engine as judge, where the run asks for it."""
        settings, renderer = self.config.judge, sampler.answerer.renderer
        if settings.engine != "run" or renderer is None:
            return place
        voice = EngineVoice(sampler, renderer, self.config.engine.max_model_len, settings)
        return replace(place, judge=Judge(settings, voice))

    async def _cold_start(self, place: Place) -> None:
        self.store.begin_phase(self.run.id, "teach")
        c = self.config
        lessons = self.pack.split(c.tasks.lesson_split) or self.pack.split(c.tasks.train_split)
        tasks = [t.name for t in lessons]
        plans = schedule.teaching(self.run.id, c.seed, c.harnesses, tasks, c.coldstart.rollouts)
        rollouts = self.store.plan(plans)
        async with teachers(c.coldstart) as choose:
            await self._make(place, rollouts, 0, choose)
        self.store.begin_phase(self.run.id, "coldstart")
        async with anyio.create_task_group() as group:
            group.start_soon(self._cancel_when_draining, group)
            await TrainChild(self.home, self.run.id, "coldstart", 1, c.train.lean_heap).complete(self.store)
            group.cancel_scope.cancel()
        self._stop_if_draining()

    async def _cancel_when_draining(self, group: TaskGroup) -> None:
        """A cold start leaves nothing half done, so it need not be waited for."""
        await self.draining.wait()
        group.cancel_scope.cancel()

    def _planned(self, purpose: Purpose, version: int) -> list[Rollout]:
        run, c = self.run.id, self.config
        tasks = schedule.some([t.name for t in self.pack.split(c.tasks.held_out_split)], c.evaluation.max_tasks, c.seed)
        return self.store.plan(schedule.evaluation(run, purpose, version, c.harnesses, tasks, c.evaluation.attempts))

    async def _evaluate(self, place: Place, sampler: Sampler, purpose: Purpose, version: int) -> None:
        rollouts = self._planned(purpose, version)
        if not schedule.unfinished(rollouts):
            return
        self.store.begin_phase(self.run.id, str(purpose))
        await sampler.use(version)
        await self._make(place, rollouts, version, lambda task, harness: sampler.answerer)

    async def _train(self, place: Place, sampler: Sampler) -> None:
        done = {step for step, state, _ in self.store.steps(self.run.id) if state == "done"}
        left = [step for step in range(1, self.config.train.steps + 1) if step not in done]
        if not left:
            return
        self.store.begin_phase(self.run.id, "train")
        t = self.config.train
        async with TrainChild(self.home, self.run.id, "train", self.config.train_ranks, t.lean_heap) as trainer:
            for step in left:
                await sampler.use(schedule.sampled_by(step, self.config.train.ahead))
                await self._rollouts_of(place, sampler, step)  # one step ahead: while the trainer takes step - 1
                if self.config.train.ahead and step > left[0]:
                    await self._finish(trainer, sampler, step - 1)
                self.store.open_step(self.run.id, step)
                if not self.config.train.ahead or step == left[-1]:
                    await self._finish(trainer, sampler, step)
                self._stop_if_draining()

    async def _finish(self, trainer: TrainChild, sampler: Sampler, step: int) -> None:
        async with sampler.asleep():
            await trainer.finish_step(self.store, step, self.config.train.step_deadline_s)
        self._say_step(step)

    async def _rollouts_of(self, place: Place, sampler: Sampler, step: int) -> None:
        """The groups of one step, and, where equal rewards teach nothing, further groups up to `train.refills`."""
        c = self.config
        tasks = {t.name: t.family for t in self.pack.split(c.tasks.train_split)}
        earlier = [r for r in self.store.rollouts(self.run.id, Purpose.TRAIN) if r.plan.step < step]
        by_rate = c.train.harness_shares == "solve_rate"
        shares = schedule.Shares(c.harnesses, c.train.harness_weights, by_rate, c.train.least_weight)
        pairs = schedule.step_pairs(c.seed, step, c.train.groups * (1 + c.train.refills), shares, tasks, earlier)
        wanted = pairs[: c.train.groups]
        while True:
            plans = schedule.training_step(self.run.id, step, wanted, c.train.group_size, c.seed)
            rollouts = self.store.plan(plans)
            version = schedule.sampled_by(step, c.train.ahead)
            await self._make(place, rollouts, version, lambda task, harness: sampler.answerer)
            now = self.store.rollouts(self.run.id, Purpose.TRAIN, step)
            useful = len(wanted) if c.train.algorithm == "ppo" else schedule.useful_groups(now)  # a critic uses all
            missing = min(c.train.groups - useful, len(pairs) - len(wanted))
            if missing <= 0:
                return
            self.log("info", "supervisor", f"step {step}: {missing} groups of equal rewards are replaced by new ones")
            wanted = pairs[: len(wanted) + missing]

    def _say_step(self, step: int) -> None:
        metrics = dict((s, m) for s, _, m in self.store.steps(self.run.id))[step]
        names = ("reward", "loss", "explained_variance", "logprob_gap", "frac_reward_zero_std")
        shown = "  ".join(f"{key} {metrics[key]:.3f}" for key in names if key in metrics)
        self.log("info", "trainer", f"step {step}/{self.config.train.steps}  {shown}")

    # ------------------------------------------------------------------ many rollouts

    async def _make(self, place: Place, rollouts: Sequence[Rollout], version: int, choose: Choose) -> None:
        """Makes those rollouts that have no outcome yet, `rollout.parallel` at once; raises Drained when stopping."""

        async def make(rollout: Rollout) -> None:
            task, harness = self.pack.task(rollout.plan.task), place.harnesses[rollout.plan.harness]
            await make_rollout(place, rollout, task, choose(task, harness), version)

        unfinished = schedule.unfinished(rollouts)
        await self.steering.work(unfinished, self.config.rollout.parallel, self.draining, make)
        self._stop_if_draining()

    def _stop_if_draining(self) -> None:
        if self.draining.is_set():
            raise Drained


def proxy_limits(config: RunConfig) -> ProxyLimits:
    """What one rollout may ask of the proxy."""
    calls = config.rollout.max_calls
    return ProxyLimits(max_calls=calls, max_sampled_tokens=calls * config.rollout.max_tokens)
