"""What packing saves: an update over a packed tree against its flat rows, TRL, tree sizes and ranks.

Every figure is a ratio of measurements made with the same model and tokens; each case runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from appliance.config.runconfig import home
from appliance.errors import ApplianceError
from appliance.report.charts import amounts_svg
from appliance.system.offline import SWITCHES

TEXT = "measure packed updates against flat rows, TRL, tree sizes and ranks"
LIMIT_S = 3600
MEASURING = ("appliance.train.measuring",)
RANK_SHARED, RANK_OWN = 512, 128
# The C library maps blocks from 32 MiB on anew each time, and the kernel fills them with zeros: it keeps them instead.
KEEPING = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 34)}
CURVE_SHARED, CURVE_BRANCHES, CURVE_OWN = 1024, 8, 128  # 2,048 unique tokens a tree
PARTS = ("share", "critic", "trl", "curve", "ranks")


def add(parser: argparse.ArgumentParser) -> None:
    """The options; the defaults are the issue's, which take about half an hour on two cores."""
    parser.add_argument("--model", type=Path, default=None, help="model folder; SmolLM2 by default")
    parser.add_argument("--shared", type=int, default=1500, help="tokens that the branches share")
    parser.add_argument("--branches", type=int, default=8, help="branches of the tree")
    parser.add_argument("--own", type=int, default=200, help="tokens of each branch alone, all trained")
    parser.add_argument(
        "--curve", default="2048,4096,8192,16384,32768,65536", help="unique tokens of the curve, in trees of 2,048"
    )
    parser.add_argument("--repeats", type=int, default=2, help="times each way is measured; the best counts")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="CPU threads")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"which of {', '.join(PARTS)} to measure")
    parser.add_argument("--svg", type=Path, default=None, help="also write a picture here")


def measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """The object of the issue, and the table that says the same."""
    model = arguments.model or home() / "models" / "smollm2"
    if not (model / "config.json").is_file():
        raise ApplianceError(f"{model}: no model here", "./install.sh smollm2, or name a folder with --model")
    parts = set(arguments.parts.split(","))
    case = {
        "model": str(model), "shared": arguments.shared, "branches": arguments.branches, "own": arguments.own,
        "threads": arguments.threads, "repeats": arguments.repeats,
    }  # fmt: skip
    unique = arguments.shared + arguments.branches * arguments.own
    bound = arguments.branches * (arguments.shared + arguments.own) / unique
    plain = _case(case | {"kind": "share"}) if "share" in parts else None
    valued = _case(case | {"kind": "share", "with_critic": True}) if "critic" in parts else None
    found: dict[str, Any] = {
        "bound": round(bound, 3),
        "speedup": None if plain is None else round(plain["flat_s"] / plain["packed_s"], 3),
        "share_of_bound": _share(plain, bound),
        "share_of_bound_with_critic": _share(valued, bound),
        "trl": _against_trl(case) if "trl" in parts else None,
        "curve": _curve(case, arguments.curve) if "curve" in parts else [],
        "ranks": _ranks(case) if "ranks" in parts else None,
    }
    if arguments.svg:
        arguments.svg.write_text(picture(found), encoding="utf-8")
    return found, table(found)


def _share(measured: dict[str, Any] | None, bound: float) -> float | None:
    return None if measured is None else round(measured["flat_s"] / measured["packed_s"] / bound, 3)


def _case(case: dict[str, Any], launcher: tuple[str, ...] = MEASURING, more: dict[str, str] | None = None) -> Any:
    """What one process measured; ApplianceError with its last words when it fails."""
    environment = os.environ | SWITCHES | {"OMP_WAIT_POLICY": "PASSIVE"} | (more or {})
    command = [sys.executable, "-m", *launcher, json.dumps(case)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["no word"])[-1]
        raise ApplianceError(f"measuring {case['kind']} ended with code {ended.returncode}: {last}", "see --parts")
    return json.loads(ended.stdout.strip().splitlines()[-1])


def _against_trl(case: dict[str, Any]) -> dict[str, float] | None:
    """Our packed update against TRL's loss on the same rows; None where TRL, a test-only package, is not installed."""
    import importlib.util

    if importlib.util.find_spec("trl") is None:
        return None
    own = _case(case | {"kind": "peak", "checkpointing": True})
    theirs = _case(case | {"kind": "trl", "checkpointing": True})
    return {
        "tokens_per_s_ratio": round(theirs["seconds"] / own["seconds"], 3),
        "peak_memory_ratio": round(own["peak_bytes"] / theirs["peak_bytes"], 3),
    }


def _curve(case: dict[str, Any], sizes: str) -> list[list[float]]:
    """[unique tokens, seconds, peak bytes] of one update with checkpointing, all of it in one row.

    More trees of one shape, so that every token has the same work above it: a tree that grew by its branches would have
    ever more tokens at the far end of its prefix, and more of them trained.
    """
    tree = {"shared": CURVE_SHARED, "branches": CURVE_BRANCHES, "own": CURVE_OWN}
    found = []
    for text in sizes.split(","):
        trees = max(1, int(text) // (CURVE_SHARED + CURVE_BRANCHES * CURVE_OWN))
        told = _case(case | tree | {"kind": "peak", "trees": trees, "checkpointing": True}, more=KEEPING)
        found.append([told["unique_tokens"], round(told["seconds"], 2), told["peak_bytes"]])
    return found


def _ranks(case: dict[str, Any]) -> dict[str, float]:
    """Two trees learnt by one rank and by two, one thread each: how far the gradients differ, and the speed-up."""
    small = case | {"kind": "ranks", "shared": RANK_SHARED, "own": RANK_OWN, "branches": 4, "threads": 1}
    with tempfile.TemporaryDirectory() as folder:
        told = []
        for count in (1, 2):
            out = str(Path(folder) / str(count))
            local = ("torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", f"--nproc-per-node={count}")
            told.append(_case(small, (*local, "-m", *MEASURING), {"CORRAL_BENCH_OUT": out}))
        compared = _case({"kind": "compare", "model": folder, "shared": 0, "branches": 0, "own": 0})
    return {
        "gradient_difference": compared["difference"],
        "speedup": round(told[0]["seconds"] / told[1]["seconds"], 3),
    }


def table(found: dict[str, Any]) -> str:
    """The figures as lines."""
    lines = [
        f"bound (flat / unique tokens)    {found['bound']}",
        f"speed-up                        {found['speedup']}",
        f"share of the bound              {found['share_of_bound']}",
        f"share of the bound with critic  {found['share_of_bound_with_critic']}",
    ]
    if trl := found["trl"]:
        lines.append(f"tokens a second against TRL     {trl['tokens_per_s_ratio']} ×")
        lines.append(f"peak memory against TRL         {trl['peak_memory_ratio']} ×")
    for tokens, seconds, peak in found["curve"]:
        lines.append(f"{tokens:>8} unique tokens          {seconds:8.2f} s  {peak / 2**30:6.2f} GiB")
    if ranks := found["ranks"]:
        lines.append(
            f"two ranks: gradient differs by  {ranks['gradient_difference']:.1e}, {ranks['speedup']} × as fast"
        )
    return "\n".join(lines)


def picture(found: dict[str, Any]) -> str:
    """Seconds a thousand unique tokens, by tree size: flat where cost is linear."""
    return amounts_svg(
        "seconds a thousand unique tokens, by unique tokens of a batch",
        [(str(tokens), 1000 * seconds / tokens) for tokens, seconds, _ in found["curve"]],
    )
