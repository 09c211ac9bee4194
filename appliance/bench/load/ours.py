"""Corral's proxy as a process of its own, over a record in a folder and a scripted engine, for measuring.

    python -m appliance.bench.load.ours FOLDER ENGINE_PORT SESSIONS

It prints its port and serves until its stdin closes.

Session i has the token `t<i>` and is rollout i + 1 of the record in FOLDER; FOLDER/model holds the tokenizer.
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
from anyio import to_thread

from appliance.capture.proxy import Limits, Proxy
from appliance.capture.rendering.renderer import Renderer
from appliance.engine.policy_responder import EngineAnswerer, Sampling
from appliance.engine.remote import RemoteEngine
from appliance.record.store import Store
from appliance.types import Purpose, RolloutPlan

RUN = "load"


async def _serve(folder: Path, engine_port: int, num_sessions: int) -> None:
    store = Store.open(folder / "record.db")
    store.create_run(RUN, RUN, {}, 0, "load")
    rollouts = store.plan(RolloutPlan(RUN, Purpose.SINGLE, 0, "load", "load", i) for i in range(num_sessions))
    renderer = Renderer.from_folder(folder / "model")
    renderer.check_graft()
    limits = Limits(max_calls=1 << 30, max_sampled_tokens=1 << 40)
    async with RemoteEngine(f"http://127.0.0.1:{engine_port}") as engine:
        sampling = Sampling(context_length=engine.max_model_len or 1 << 20)
        answerer = EngineAnswerer(engine, renderer, sampling)
        async with Proxy(store, folder, limits, answerer, port=0) as proxy:
            for i, rollout in enumerate(rollouts):
                store.begin(rollout.id, 0)
                proxy.open(rollout.id, f"t{i}")
            sys.stdout.write(f"{proxy.port}\n")
            sys.stdout.flush()
            await to_thread.run_sync(sys.stdin.read)
    store.close()


if __name__ == "__main__":
    arguments = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    anyio.run(_serve, *arguments, backend_options={"use_uvloop": True})
