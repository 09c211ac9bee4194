"""One rollout of a real harness in a real sandbox, as `corral harness check` makes it."""

from __future__ import annotations

import anyio

from appliance.capture.session import Answerer
from appliance.config.runconfig import home, podman_home
from appliance.harness.catalog import Shelf
from appliance.operate.harness_check import Trial, bench
from appliance.sandbox.images.build import build_images
from appliance.tasks.pack import Task


def played(name: str, task: Task, teacher: Answerer | None = None) -> Trial:
    """The rollout of harness `name`, answered by its own scripted teacher or by `teacher`; its image is built."""
    folder = podman_home(home())
    folder.mkdir(parents=True, exist_ok=True)
    harness = Shelf.of(home()).get(name)
    build_images(folder, [harness], print)

    async def once() -> Trial:
        async with bench(folder) as place:
            return await place.make(harness, task, teacher=teacher)

    return anyio.run(once)
