"""Many rollouts of a scripted harness without an engine: what the sandbox bench measures and the kill test kills.

The harness is twenty lines of Python: it calls its model once, as any harness would, and runs the command that the
scripted teacher says. Everything else is the real path: store, proxy, pool, sandboxes, grader. The record lies in
`folder`; a second call goes on where the first was killed (I8).
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from appliance.capture.proxy import Limits as ProxyLimits
from appliance.capture.proxy import Proxy
from appliance.config.runconfig import podman_home, resolve
from appliance.harness.harness import Harness
from appliance.record.store import Store
from appliance.runs.rollout import Place, make_rollout
from appliance.runs.schedule import unfinished
from appliance.runs.teachers import ScriptedTeacher
from appliance.sandbox import workspace
from appliance.sandbox.images.build import base_ref
from appliance.sandbox.podman import Podman
from appliance.sandbox.pool import Host, Pool
from appliance.sandbox.settings import leave_proxy_directory, owner_of, proxy_directory
from appliance.tasks.pack import Task
from appliance.types import Purpose, Rollout, RolloutPlan

RUN_ID = "small"
COMMAND = "cat notes.txt > out.txt"
CALLER = """
import json, subprocess, sys, urllib.request
tool = {"type": "function", "function": {"name": "sh", "parameters": {"properties": {"command": {"type": "string"}}}}}
body = {"model": "m", "messages": [{"role": "user", "content": sys.argv[2]}], "tools": [tool]}
request = urllib.request.Request(sys.argv[1] + "/v1/chat/completions", json.dumps(body).encode(),
                                 {"content-type": "application/json"})
answer = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
subprocess.run(json.loads(answer["tool_calls"][0]["function"]["arguments"])["command"], shell=True)
"""
GRADER = '[ "$(cat out.txt)" = hi ] && r=1 || r=0; echo "{\\"reward\\": $r}" > /logs/verifier/reward.json\n'
SETTINGS = {
    "rollout.timeout_s": "120", "rollout.grade_timeout_s": "60", "rollout.memory_mb": "128", "rollout.disk_mb": "16",
    "rollout.pids": "32", "rollout.retries": "2",
}  # fmt: skip


def scripted_harness() -> Harness:
    """The twenty lines as a harness; it needs the base image and no other."""
    return Harness(
        name="scripted", version="1", wire="chat", check=("true",), layer="", env={}, files={}, quirks={}, pids=32,
        argv=("python3", "-c", CALLER, "{base_url}", "{prompt}"), memory_bytes=128 << 20,
    )  # fmt: skip


@asynccontextmanager
async def place_for(folder: Path, parallel: int) -> AsyncIterator[Place]:
    """A place for such rollouts with its record in `folder`; what an earlier one left there is removed first."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o711)
    store = Store.open(folder / "record.db")
    try:
        if RUN_ID not in {run.id for run in store.runs()}:
            store.create_run(RUN_ID, RUN_ID, {}, 0, "")
        labels = {"corral.owner": owner_of(folder)}
        async with Podman(podman_home(folder), parallel) as podman:
            await podman.reconcile(labels)
            for left in (folder / "sandboxes").glob("*"):
                workspace.remove(left)
            pool = Pool([Host(podman)], folder / "sandboxes", labels, at_most=parallel)
            async with pool, Proxy(store, proxy_directory(folder), ProxyLimits()) as proxy:
                yield Place(
                    run_id=RUN_ID, config=resolve(None, SETTINGS), store=store, pool=pool, proxy=proxy,
                    harnesses={"scripted": scripted_harness()}, images={"scripted": base_ref()},
                    grader_image=base_ref(),
                )  # fmt: skip
    finally:
        leave_proxy_directory(folder)
        store.close()


async def small_run(place: Place, count: int, parallel: int, on_done: Callable[[int], None]) -> list[Rollout]:
    """Make those of `count` rollouts that have no outcome yet, `parallel` at once; all of them as they ended."""
    task = _task(place.pool.folder.parent / "task")
    planned = place.store.plan([RolloutPlan(RUN_ID, Purpose.SINGLE, 0, "scripted", task.name, i) for i in range(count)])
    waiting = iter(unfinished(planned))
    done = count - len(unfinished(planned))

    async def worker() -> None:
        nonlocal done
        for rollout in waiting:
            await make_rollout(place, rollout, task, ScriptedTeacher([COMMAND]), 0)
            done += 1
            on_done(done)

    async with anyio.create_task_group() as group:
        for _ in range(parallel):
            group.start_soon(worker)
    return place.store.rollouts(RUN_ID)


def _task(folder: Path) -> Task:
    """A task of one file, written where it is missing."""
    (folder / "environment" / "files").mkdir(parents=True, exist_ok=True)
    (folder / "tests").mkdir(exist_ok=True)
    (folder / "environment" / "files" / "notes.txt").write_text("hi\n")
    (folder / "tests" / "test.sh").write_text(GRADER)
    (folder / "instruction.md").write_text("Copy notes.txt to out.txt.\n")
    (folder / "task.toml").write_text('[metadata]\nfamily = "small"\nsplit = "train"\n')
    return Task.from_dir(folder)


async def _main(folder: Path, count: int, parallel: int) -> None:
    async with place_for(folder, parallel) as place:
        await small_run(place, count, parallel, lambda done: None)


if __name__ == "__main__":  # python -m appliance.bench.scripted_run FOLDER COUNT PARALLEL, as the kill test starts it
    anyio.run(_main, Path(sys.argv[1]).resolve(), int(sys.argv[2]), int(sys.argv[3]))
