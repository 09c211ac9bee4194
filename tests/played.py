"""One rollout of a real harness in a real sandbox, as `corral harness check` makes it."""

from __future__ import annotations

import anyio

from appliance.config import home, podman_home
from appliance.harnesscheck import Trial, bench
from appliance.images import build_images
from appliance.session import Answerer
from appliance.shelf import Shelf
from appliance.tasks import Task


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
