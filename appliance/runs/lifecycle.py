"""What the commands do with runs: create, supervise, stop, resume, one rollout, one evaluation. No printing here."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import anyio

from appliance.config.runconfig import RunConfig, resolve
from appliance.errors import ApplianceError, ConfigError, first_of
from appliance.harness.fit import check_fit, chosen_harnesses
from appliance.record.access import code_version, reading, writing
from appliance.record.lock import supervisor_of
from appliance.record.retention import apply_rule
from appliance.record.store import Store
from appliance.report.export.import_run import bring_in, read
from appliance.report.transcript import calls, calls_text
from appliance.runs.room import check_room
from appliance.runs.supervisor import Supervisor
from appliance.system import scratch
from appliance.system.files import private_folder
from appliance.tasks.digest import pack_digest
from appliance.tasks.generated import is_generated
from appliance.tasks.pack import load_pack
from appliance.types import Purpose, RolloutPlan, RunState

T = TypeVar("T")

FOLLOW_S = 0.25
# A run that was only created is resumed when it is named: it may be one rollout's, or have been refused the lock.
OPEN_STATES = (RunState.RUNNING, RunState.DRAINING, RunState.STOPPED, RunState.FAILED)

Emit = Callable[[dict[str, Any]], None]


def create(home: Path, config: RunConfig) -> str:
    """Adds a run to the record and returns its id; the pack and harnesses are checked first."""
    pack = load_pack(config.pack_path, config.tasks.families)
    check_fit(pack.tasks, chosen_harnesses(config, home).values())
    config = _absolute(config)
    imports = [Path(file).resolve() for file in config.coldstart.imports]
    for file in imports:
        list(read(file))  # what cannot be read stops it here, before there is a run
    check_room(config, home)
    digests = pack.digests()
    run_id = f"{config.name}-{time.strftime('%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    with writing(home) as store:
        store.create_run(run_id, config.name, config.model_dump(mode="json"), config.seed, code_version())
        for file in imports:
            bring_in(store, run_id, file, config.harnesses[0])
        store.note_pack(run_id, pack.name, pack_digest(digests), digests)
        apply_rule(store, config.record)
    scratch.remove_logs(home / "runs", config.record.keep_logs_days, str((supervisor_of(home) or {}).get("run")))
    folder = private_folder(private_folder(home / "runs") / run_id)
    (folder / "config.json").write_text(config.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return run_id


def _absolute(config: RunConfig) -> RunConfig:
    """Folders as absolute paths, so that a resume does not depend on where it is typed; a shipped pack by its name."""
    pack = config.pack_path
    tasks = config.tasks.model_copy(update={"pack": pack.resolve().name if is_generated(pack) else str(pack.resolve())})
    model, judge = config.model, config.judge
    if Path(model.path).is_dir():
        model = model.model_copy(update={"path": str(Path(model.path).resolve())})
    if judge.engine not in ("", "run"):
        if not (Path(judge.engine).expanduser() / "config.json").is_file():
            raise ConfigError(f"judge.engine: {judge.engine} holds no model", "name `run`, or a local model's folder")
        judge = judge.model_copy(update={"engine": str(Path(judge.engine).expanduser().resolve())})
    return config.model_copy(update={"tasks": tasks, "model": model, "judge": judge})


def unfinished_run(home: Path, run_id: str | None) -> str:
    """The run to resume: the one named, or the newest that is not done."""
    with reading(home) as store:
        if run_id:
            run = store.run(run_id)
            if run.state is RunState.DONE:
                raise ApplianceError(
                    f"run {run.id} is done", "see `corral report`, or start another with `corral train`"
                )
            return run.id
        for run in store.runs():
            if run.state in OPEN_STATES:
                return run.id
    raise ApplianceError("no run waits to be resumed", "start one with `corral train RUN.toml`")


def stop(home: Path, run_id: str | None) -> str:
    """Leaves a stop command for the active run's supervisor; an error when none is alive."""
    return steer(home, run_id, "stop")


def steer(home: Path, run_id: str | None, kind: str, argument: str = "") -> str:
    """Leaves a command for the active run's supervisor and returns the run; an error when none is alive."""
    holder = supervisor_of(home)
    if holder is None:
        raise ApplianceError("no supervisor is running", f"nothing to {kind}; `corral status` shows the runs")
    with writing(home) as store:
        run = store.run(run_id or str(holder["run"]))
        if run.id != holder["run"]:
            raise ApplianceError(f"run {run.id} is not active; {holder['run']} is", f"corral {kind} {holder['run']}")
        store.command(run.id, kind, argument)
        return run.id


def supervise(home: Path, run_id: str, emit: Emit) -> str:
    """Runs the supervisor of a run in this process; each event of the record goes to `emit`. Returns the end state."""

    async def both() -> str:
        with writing(home) as store:
            private_folder(private_folder(home / "runs") / store.run(run_id).id)  # also those of an earlier Corral
            supervisor = Supervisor(home, store, store.run(run_id))
            return str(await following(store, run_id, emit, supervisor.main))

    return run_to_its_end(both)


def run_to_its_end(act: Callable[[], Awaitable[T]]) -> T:
    """Runs `act`; an error of ours that task groups wrapped comes out as itself."""
    try:
        return anyio.run(act, backend_options={"use_uvloop": True})
    except BaseExceptionGroup as group:
        found = first_of(group)
        if found is None:
            raise
        raise found from group


async def following(store: Store, run_id: str, emit: Emit, act: Callable[[], Any]) -> Any:
    """Runs `act` while the run's new events go to `emit`."""
    last = store.last_event()

    def tell() -> None:
        nonlocal last
        for event in store.events(run_id, after=last):
            last = int(str(event["id"]))
            emit(event)

    async def follow() -> None:
        while True:
            tell()
            await anyio.sleep(FOLLOW_S)

    async with anyio.create_task_group() as group:
        group.start_soon(follow)
        result = await act()
        group.cancel_scope.cancel()
    tell()
    return result


def single(home: Path, run_or_toml: str, task: str, harness: str, is_taught: bool) -> dict[str, Any]:
    """Makes one rollout of purpose `single` and returns its record with its calls as text."""
    if Path(run_or_toml).suffix == ".toml":
        if not is_taught:
            raise ApplianceError(f"{run_or_toml}: a TOML has no policy yet", "name a run, or add --teacher")
        config = resolve(Path(run_or_toml), {"harnesses": harness})
        run_id = create(home, config)
    else:
        with reading(home) as store:
            run_id = store.run(run_or_toml).id

    async def act() -> int:
        with writing(home) as store:
            supervisor = Supervisor(home, store, store.run(run_id))
            index = len(
                [r for r in store.rollouts(run_id, Purpose.SINGLE) if r.plan.task == task and r.plan.harness == harness]
            )
            plan = RolloutPlan(run_id, Purpose.SINGLE, 0, harness, task, index)
            return await supervisor.single(plan, is_taught)

    rollout_id = run_to_its_end(act)
    with reading(home) as store:
        (rollout,) = [r for r in store.rollouts(run_id, Purpose.SINGLE) if r.id == rollout_id]
        return {
            "run": run_id,
            "rollout": rollout.id,
            "task": task,
            "harness": harness,
            "state": str(rollout.state),
            "reward": rollout.reward,
            "reward_parts": rollout.reward_parts,
            "failure": rollout.failure,
            "detail": rollout.failure_detail,
            "calls": calls(store, rollout.id),
        }


def single_text(found: dict[str, Any]) -> str:
    """One rollout for a terminal."""
    outcome = (
        f"reward {found['reward']} {json.dumps(found['reward_parts'])}"
        if not found["failure"]
        else (f"failed {found['failure']}: {found['detail']}")
    )
    return (
        f"{calls_text(found['calls'])}\nrollout {found['rollout']} of {found['task']} in {found['harness']}: {outcome}"
    )
