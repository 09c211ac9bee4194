"""An engine that shares its GPU with the trainer sleeps while a step is trained: vLLM's sleep, level 1.

Its weights wait in host memory and its cache is dropped, so that the trainer has the room. Invariant: an engine that is
awake again answers as it did before, or it is ended, and its keeper starts it anew.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np

from appliance.engine.engine import Engine
from appliance.engine.probe import model_config, probe_prompt
from appliance.errors import EngineError

MOST_MOVED = 0.05
"""Nats by which a logprob may differ afterwards: kernels round differently, lost weights differ by far more."""


@asynccontextmanager
async def asleep(engine: Engine) -> AsyncIterator[None]:
    """The engine sleeps until the body has ended. One that fails at it is left to its keeper, as any that fails."""
    prompt = probe_prompt(model_config(engine.settings.model)["vocab_size"])
    before = None
    try:
        before = await engine.score(prompt)
        await engine.post("/sleep?level=1&mode=wait", {})
    except EngineError as error:
        engine.give_up(f"it could not be put to sleep: {error.message}")
    yield
    try:
        await engine.post("/wake_up", {})
        moved = 0.0 if before is None else float(np.abs(await engine.score(prompt) - before).max())
    except EngineError as error:
        engine.give_up(f"it did not wake up: {error.message}")
        return
    if not moved <= MOST_MOVED:
        engine.give_up(f"after its sleep it answers otherwise: a logprob moved by {moved:.3g} nats")
