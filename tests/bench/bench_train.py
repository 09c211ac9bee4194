"""Seconds of one optimiser update on a demo-sized batch: packed at several budgets, and flat rows for comparison.

python tests/bench/bench_train.py [--threads 2] [--quantization nf4] [--repeats 3]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

from appliance.train.bases import BaseSettings  # noqa: E402
from appliance.train.batch import Sequence, pack  # noqa: E402
from appliance.train.policy import PolicySettings, load_policy, set_threads  # noqa: E402
from appliance.train.update import UpdateSettings, make_optimizer, update  # noqa: E402
from tests.support.tiny_policy import make_base, row  # noqa: E402

VOCABULARY = 2048


def batch(groups: int = 8, size: int = 8) -> list[Sequence]:
    """Two harness prompts (200 tokens), a task prompt a group (40), three turns of 20 sampled + 30 observed tokens."""
    draw = np.random.default_rng(0)
    harnesses = [draw.integers(2, VOCABULARY, 200) for _ in range(2)]
    rows: list[Sequence] = []
    for group in range(groups):
        task = draw.integers(2, VOCABULARY, 40)
        for member in range(size):
            turns = draw.integers(2, VOCABULARY, 150)
            ids = np.concatenate([harnesses[group % 2], task, turns])
            trained = [240 + 50 * turn + i for turn in range(3) for i in range(20)]
            number = group * size + member
            rows.append(row(ids, trained, (-1.0) ** member, number, number))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quantization", default="nf4")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        base = make_base(Path(folder) / "base", options.width, options.layers, VOCABULARY)
        set_threads(options.threads)
        policy = load_policy(base, PolicySettings(BaseSettings(options.quantization)))
    print(f"{sum(p.numel() for p in policy.model.get_base_model().parameters()) / 1e6:.1f} M stored numbers")
    optimizer = make_optimizer(policy, 1e-4)
    sequences = batch()
    start = time.perf_counter()
    pack(sequences, 4096)
    print(f"packing {time.perf_counter() - start:.3f} s")
    plans = [(f"packed, {n} a row", pack(sequences, n)) for n in (1024, 4096)]
    plans.append(("flat rows", [p for s in sequences for p in pack([s], 4096)]))
    for name, packs in plans:
        times = []
        for _ in range(options.repeats):
            start = time.perf_counter()
            metrics = update(policy, packs, optimizer, UpdateSettings())
            times.append(time.perf_counter() - start)
        best = min(times)
        print(
            f"{name:20} {best:6.2f} s  {metrics.unique_tokens:6} unique {metrics.flat_tokens:6} flat  "
            f"{metrics.unique_tokens / best:7.0f} unique tok/s  {metrics.flat_tokens / best:7.0f} flat tok/s"
        )


if __name__ == "__main__":
    main()
