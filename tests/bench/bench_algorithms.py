"""Which way of training gains most on the pocket policy: one table each for the algorithm, branches and harnesses.

python tests/bench/bench_algorithms.py --home FOLDER [--seeds 0 1 2] [--only base ppo …] [--steps 11] [--set K=V …]

The demo's harnesses never fork. Whether branches should be trained is asked by `--only forking forking_leave_out`, of
codex that compacts after each command and of an agent with a helper (harnesses/codex-compact.toml, team.toml).

Each variant and seed is one `corral train data/demo.toml`, all with the same number of rollouts; runs that FOLDER's
record holds as done are not made again, so an interrupted bench goes on. About ten minutes a run on two quiet cores.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(CHECKOUT))

from appliance.record.store import Store  # noqa: E402
from appliance.report.summary import summary  # noqa: E402
from appliance.types import RunState  # noqa: E402

LEAVE_OUT = {f"branches.{name}": "leave_out" for name in ("compaction", "sub_agent", "parallel")}
FORKING = {"harnesses": "codex-compact,team"}
VARIANTS: dict[str, dict[str, str]] = {
    "base": {},
    "ppo": {"train.algorithm": "ppo"},
    "leave_out": LEAVE_OUT,
    "pi_alone": {"harnesses": "pi"},
    "codex_alone": {"harnesses": "codex"},
    "forking": FORKING,
    "forking_leave_out": FORKING | LEAVE_OUT,
}
TABLES = {
    "tree-GRPO against tree-PPO": {"tree-GRPO": "base", "tree-PPO": "ppo"},
    "branches included against left out": {"included": "base", "left out": "leave_out"},
    "branches included against left out, in harnesses that fork": {
        "included": "forking",
        "left out": "forking_leave_out",
    },
    "mixed harnesses against one": {"both": "base", "pi alone": "pi_alone", "codex alone": "codex_alone"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--home", type=Path, nargs="+", required=True, help="CORRAL_HOME of the runs; tables read further ones too"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--steps", type=int, default=11)
    parser.add_argument("--set", nargs="*", default=[], dest="overrides", help="KEY=VALUE for every run")
    options = parser.parse_args()
    home = options.home[0]
    home.mkdir(parents=True, exist_ok=True)
    for seed in options.seeds:
        for name in options.only:
            run_once(home, name, seed, [f"train.steps={options.steps}", *options.overrides])
    print(tables(options.home, options.seeds))


def run_once(home: Path, name: str, seed: int, overrides: list[str]) -> None:
    """Makes the run of one variant and seed, or goes on with it; nothing when it is done."""
    environment = os.environ | {"CORRAL_HOME": str(home)}
    found = runs(home).get(f"{name}-{seed}")
    if found and found[1] is RunState.DONE:
        return
    keys = [f"{key}={value}" for key, value in VARIANTS[name].items()]
    settings = [part for text in (f"name={name}-{seed}", f"seed={seed}", *overrides, *keys) for part in ("--set", text)]
    command = ["resume", found[0]] if found else ["train", str(CHECKOUT / "data" / "demo.toml"), *settings]
    subprocess.run(
        [sys.executable, "-m", "appliance.cli", *command, "--plain"], env=environment, check=True, cwd=CHECKOUT
    )


def runs(home: Path) -> dict[str, tuple[str, RunState]]:
    """Name → (id, state) of the newest run that bears it."""
    if not (home / "record.db").exists():
        return {}
    store = Store.open(home / "record.db", readonly=True)
    found = {run.name: (run.id, run.state) for run in reversed(store.runs())}
    store.close()
    return found


def tables(homes: list[Path], seeds: list[int]) -> str:
    """One table a comparison: Pass@1 before → after and the gain, for each harness and seed, and the mean gain."""
    done: dict[str, dict[str, Any]] = {}
    branches: dict[str, dict[str, float]] = {}
    for home in homes:
        store = Store.open(home / "record.db", readonly=True)
        own = {name: summary(store, run_id) for name, (run_id, state) in runs(home).items() if state is RunState.DONE}
        done |= own
        branches |= {name: branch_shares(store, found["run"]) for name, found in own.items()}
        store.close()
    lines: list[str] = []
    for title, rows in TABLES.items():
        lines += [
            "",
            title,
            f"{'':<14} {'harness':<14} " + " ".join(f"{f'seed {s}':<22}" for s in seeds) + " mean gain",
        ]
        for label, variant in rows.items():
            lines += row(label, variant, seeds, done)
        if "left out" in rows:
            lines += [branch_line(label, variant, seeds, branches) for label, variant in rows.items()]
    return "\n".join(lines)


def row(label: str, variant: str, seeds: list[int], done: dict[str, dict[str, Any]]) -> list[str]:
    """The lines of one variant: one a harness."""
    found = {
        seed: {h["name"]: h for h in done[f"{variant}-{seed}"]["harnesses"]}
        for seed in seeds
        if f"{variant}-{seed}" in done
    }
    lines = []
    for harness in sorted({h for own in found.values() for h in own}, reverse=True):
        cells, gains = [], []
        for seed in seeds:
            result = found.get(seed, {}).get(harness)
            if result is None or result["gain"] is None:
                cells.append(f"{'–':<22}")
                continue
            gains.append(100 * result["gain"])
            cells.append(f"{100 * result['before']:5.1f} → {100 * result['after']:5.1f} ({gains[-1]:+5.1f}) ")
        lines.append(f"{label:<14} {harness:<14} {' '.join(cells)} {statistics.mean(gains) if gains else 0:+6.1f}")
    return lines or [f"{label:<14} not run"]


def branch_line(label: str, variant: str, seeds: list[int], branches: dict[str, dict[str, float]]) -> str:
    """What the tokens that a variant trained were, over its seeds."""
    summed: Counter[str] = Counter()
    for seed in seeds:
        summed.update(branches.get(f"{variant}-{seed}", {}))
    total = sum(summed.values())
    told = [f"{name} {100 * tokens / total:.0f} %" for name, tokens in summed.most_common() if tokens]
    return f"  trained tokens, {label}: {total:.0f} ({', '.join(told) or 'not run'})"


def branch_shares(store: Store, run_id: str) -> dict[str, float]:
    """Branch → its trained tokens over the run's steps."""
    found: dict[str, float] = {}
    for _, _, metrics in store.steps(run_id):
        for name, value in metrics.items():
            kind, _, branch = name.partition("/")
            if kind == "trained_tokens" and branch:
                found[branch] = found.get(branch, 0.0) + value
    return found


if __name__ == "__main__":
    main()
