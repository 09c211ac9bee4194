"""Harness files that change while a run goes on: the next rollout uses the new one, the running ones are left alone.

A new version counts only once it is whole and its image is there; until then the old one stays in force and the log
says why.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from appliance.errors import SandboxError
from appliance.harness import Harness
from appliance.images import image_ref
from appliance.shelf import Shelf

Log = Callable[[str, str, str], None]


@asynccontextmanager
async def reloading(
    home: Path,
    harnesses: dict[str, Harness],
    images: dict[str, str],
    image_exists: Callable[[str], Awaitable[bool]],
    log: Log,
) -> AsyncIterator[None]:
    """While the block lasts, keeps `harnesses` and `images` (by name) as the files of `home` say."""
    (home / "harnesses").mkdir(parents=True, exist_ok=True)
    shelf = Shelf.of(home)
    async with anyio.create_task_group() as group:
        group.start_soon(_follow, shelf, harnesses, images, image_exists, log)
        yield
        group.cancel_scope.cancel()


async def _follow(
    shelf: Shelf,
    harnesses: dict[str, Harness],
    images: dict[str, str],
    image_exists: Callable[[str], Awaitable[bool]],
    log: Log,
) -> None:
    async for names, broken in shelf.changes():
        for error in broken:
            log("warning", "harness", f"{error.message}; what it said before stays in force ({error.remedy})")
        for name in sorted(set(names) & set(harnesses)):
            harness = shelf.harnesses[name]
            ref = image_ref(harness)
            try:
                is_built = await image_exists(ref)
            except SandboxError as error:
                log("warning", "harness", f"{shelf.paths[name]}: not read again: {error.message}")
                continue
            if is_built:
                harnesses[name], images[name] = harness, ref
                log("info", "harness", f"{shelf.paths[name]}: read again; the next rollouts use it")
            else:
                log("warning", "harness", f"{shelf.paths[name]}: changed, but its image is not built; the old one "
                    f"stays in force (corral harness build {name})")  # fmt: skip
