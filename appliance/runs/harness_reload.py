"""Harness files that change while a run goes on: the next rollout uses the new one, the running ones are left alone.

A new version counts only once it is whole and its images are there, its own and those on top of the tasks that bring a
Dockerfile; until then the old one stays in force and the log says why.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from appliance.errors import SandboxError
from appliance.harness.catalog import Shelf
from appliance.harness.harness import Harness
from appliance.sandbox.images.build import image_ref
from appliance.sandbox.images.task import TaskImages, over_ref

Log = Callable[[str, str, str], None]


@dataclass(frozen=True, slots=True)
class InForce:
    """What rollouts use now: harnesses and their images by name, and the images of tasks with a Dockerfile."""

    harnesses: dict[str, Harness]
    images: dict[str, str]
    own_images: Mapping[str, TaskImages] = field(default_factory=dict)

    def refs(self, harness: Harness) -> dict[str, str]:
        """Every image that this version of a harness needs, by the task whose it is, or "" for its own."""
        return {"": image_ref(harness)} | {task: over_ref(own.base, harness) for task, own in self.own_images.items()}

    def take(self, harness: Harness, refs: Mapping[str, str]) -> None:
        """From now on rollouts use this version."""
        self.harnesses[harness.name], self.images[harness.name] = harness, refs[""]
        for task, own in self.own_images.items():
            own.by_harness[harness.name] = refs[task]


@asynccontextmanager
async def reloading(
    home: Path, in_force: InForce, image_exists: Callable[[str], Awaitable[bool]], log: Log
) -> AsyncIterator[None]:
    """While the block lasts, keeps what is in force as the files of `home` say."""
    (home / "harnesses").mkdir(parents=True, exist_ok=True)
    shelf = Shelf.of(home)
    async with anyio.create_task_group() as group:
        group.start_soon(_follow, shelf, in_force, image_exists, log)
        yield
        group.cancel_scope.cancel()


async def _follow(shelf: Shelf, in_force: InForce, image_exists: Callable[[str], Awaitable[bool]], log: Log) -> None:
    async for names, broken in shelf.changes():
        for error in broken:
            log("warning", "harness", f"{error.message}; what it said before stays in force ({error.remedy})")
        for name in sorted(set(names) & set(in_force.harnesses)):
            refs = in_force.refs(shelf.harnesses[name])
            try:
                missing = [task for task, ref in refs.items() if not await image_exists(ref)]
            except SandboxError as error:
                log("warning", "harness", f"{shelf.paths[name]}: not read again: {error.message}")
                continue
            if not missing:
                in_force.take(shelf.harnesses[name], refs)
                log("info", "harness", f"{shelf.paths[name]}: read again; the next rollouts use it")
                continue
            what, remedy = "its image", f"corral harness build {name}"
            if missing[0]:
                what, remedy = f"its image for task {missing[0]}", f"corral images build {name} --pack …"
            log("warning", "harness", f"{shelf.paths[name]}: changed, but {what} is not built; the old one "
                f"stays in force ({remedy})")  # fmt: skip
