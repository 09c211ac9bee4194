"""Start-up time and output tokens a second of the engine, with and without an adapter.

    python tests/bench/bench_engine.py MODEL ADAPTER [--threads 1] [--load N] [--at-once 1 8 16]

Prompts share 256 ids and differ in the last 44, as the turns of one harness do; 40 ids are sampled.
`--load N` keeps N busy processes beside the engine, as harnesses would be. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from pathlib import Path

import anyio
import numpy as np

from appliance.engine.engine import Engine, EngineSettings
from appliance.engine.probe import model_config

NUM_SHARED, NUM_OWN, NUM_SAMPLED = 256, 44, 40


def spin() -> None:
    """A harness process at its worst."""
    while True:
        pass


async def tokens_per_s(engine: Engine, at_once: int, version: int, vocab_size: int) -> float:
    """Output tokens a second of `at_once` callers that make four calls each."""
    random = np.random.default_rng(at_once + 100 * version)
    shared = random.integers(2, vocab_size, NUM_SHARED)

    async def caller(index: int) -> None:
        for turn in range(4):
            prompt = np.concatenate([shared, random.integers(2, vocab_size, NUM_OWN)])
            await engine.sample(prompt, NUM_SAMPLED, 1.0, seed=index * 10 + turn, policy_version=version)

    await engine.sample(shared, 1, policy_version=version)  # the prefix is warm in a running system
    started_at = time.perf_counter()
    async with anyio.create_task_group() as group:
        for index in range(at_once):
            group.start_soon(caller, index)
    return at_once * 4 * NUM_SAMPLED / (time.perf_counter() - started_at)


async def measure(options: argparse.Namespace) -> dict[str, object]:
    """Everything, for one setting."""
    vocab_size = model_config(options.model)["vocab_size"]
    with tempfile.TemporaryDirectory() as folder:
        settings = EngineSettings(
            model=options.model,
            log=Path(folder) / "engine.log",
            threads=options.threads,
            block_size=options.block_size,
            kv_cache_gib=options.kv_cache_gib,
        )
        started_at = time.perf_counter()
        async with Engine(settings) as engine:
            found: dict[str, object] = {"ready_s": round(time.perf_counter() - started_at, 1)}
            await engine.load_adapter(1, options.adapter)
            load = [multiprocessing.get_context("spawn").Process(target=spin, daemon=True) for _ in range(options.load)]
            for process in load:
                process.start()
            for version, name in ((0, "base"), (1, "adapter")):
                found[name] = {n: round(await tokens_per_s(engine, n, version, vocab_size), 1) for n in options.at_once}
            for process in load:
                process.kill()
    return found


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("adapter", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--block-size", type=int, default=32)
    parser.add_argument("--kv-cache-gib", type=float, default=0.5)
    parser.add_argument("--load", type=int, default=0)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 8, 16])
    options = parser.parse_args()
    print(json.dumps(anyio.run(measure, options)))


if __name__ == "__main__":
    main()
