"""What the capture proxy costs a call: the same load straight, through it, and through other people's proxies.

A scripted engine over real sockets thinks for a fixed time; *overhead* is a call's latency less the median latency of
the same call made straight; the curve over prompt lengths is the proxy's own processor time, which is what a call is
held up by on a quiet machine and does not hang on what else a busy one does. Conversations go on as a harness's do:
each call adds an echo and a tool's result.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.config.runconfig import home
from appliance.errors import HostError

TEXT = "overhead of the capture proxy, straight and beside other proxies"
CURVE = (1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000)
_CURVE_ROUNDS = 9


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the sizes of the load, and what it is compared with."""
    parser.add_argument("--clients", type=int, default=32, help="conversations at once (32)")
    parser.add_argument("--calls", type=int, default=10, help="calls of each (10)")
    parser.add_argument("--tokens", type=int, default=8000, help="prompt tokens at the start of each (8000)")
    parser.add_argument("--think-ms", type=int, default=500, help="how long the scripted engine thinks (500)")
    parser.add_argument("--rollouts", type=int, default=64, help="rollouts at once of the endurance part (64)")
    parser.add_argument("--rollout-calls", type=int, default=50, help="calls of each (50); 0 leaves the part out")
    parser.add_argument("--no-curve", action="store_true", help="leave out the curve over prompt lengths")
    parser.add_argument(
        "--peers", action="store_true", help="also litellm and agentlightning, installed into environments of their own"
    )
    parser.add_argument("--picture", type=Path, help="write the curve and the comparison as an SVG")


@dataclass(frozen=True, slots=True)
class _Bench:
    """The folder with tokenizer and logs, and the sizes asked for."""

    folder: Path
    arguments: argparse.Namespace

    @property
    def think_s(self) -> float:
        return float(self.arguments.think_ms) / 1e3


def measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """The promised object, and the table that says the same."""
    from appliance.bench.load.model import tokenizer_folder

    with tempfile.TemporaryDirectory(prefix="corral-bench-") as name:
        bench = _Bench(Path(name), arguments)
        tokenizer_folder(bench.folder / "model")
        rows = _compare(bench)
        lost, doubled, growth = _endure(bench)
        curve = [] if arguments.no_curve else _curve(bench)
    ours, peer = rows["corral"], rows.get("litellm")
    ratio = ours["overhead_p50_ms"] / peer["overhead_p50_ms"] if peer else None
    found: dict[str, Any] = {
        "overhead_p50_ms": ours["overhead_p50_ms"],
        "overhead_p99_ms": ours["overhead_p99_ms"],
        "calls_per_s": ours["calls_per_s"],
        "lost": lost,
        "doubled": doubled,
        "rss_growth_mb": growth,
        "litellm": peer,
        "agentlightning": rows.get("agentlightning"),
        "ratio_to_litellm": round(ratio, 3) if ratio is not None else None,
        "curve": curve,
    }
    if arguments.picture:
        arguments.picture.write_text(_picture(rows, curve), encoding="utf-8")
    return found, _table(found, rows, arguments)


# ------------------------------------------------------------------ the load


def _compare(bench: _Bench) -> dict[str, dict[str, Any]]:
    """One row a proxy: overhead with a thinking engine, then calls a second with one that answers at once."""
    from appliance.bench.load.drive import Target

    with _engine(bench, bench.think_s) as thinking, _engine(bench, 0.0) as instant:
        straight = [Target(port, lambda _: "/v1/chat/completions", pids=(pid,)) for port, pid in (thinking, instant)]
        base = _loaded(bench, straight[0], bench.think_s)
        rows = {"straight": _row(base, _loaded(bench, straight[1], 0.0), base.percentile(0.5))}
        with _ours(bench, thinking[0]) as first, _ours(bench, instant[0]) as second:
            found = _loaded(bench, first, bench.think_s), _loaded(bench, second, 0.0)
            rows["corral"] = _row(*found, base.percentile(0.5))
        if bench.arguments.peers:
            rows |= _peers(bench, thinking[0], instant[0], base.percentile(0.5))
    return rows


def _peers(bench: _Bench, thinking: int, instant: int, base_ms: float) -> dict[str, dict[str, Any]]:
    from appliance.bench.load import peers

    folder = home() / "bench"
    rows: dict[str, dict[str, Any]] = {}
    for peer in peers.PEERS:
        try:
            if not peers.installed(peer, folder):
                peers.install(peer, folder)
        except HostError as error:  # what cannot be had is null, and the rest is measured
            sys.stderr.write(f"{peer.name} is left out: {error}\n")
            continue
        found = []
        for port, think_s in ((thinking, bench.think_s), (instant, 0.0)):
            with peers.running(peer, folder, port) as target:
                found.append(_loaded(bench, target, think_s))
        rows[peer.name] = _row(found[0], found[1], base_ms)
    return rows


def _loaded(bench: _Bench, target: Any, think_s: float) -> Any:
    """The load, after one call of each client that warms caches and connections up and is not counted."""
    from appliance.bench.load.drive import Size, load

    sizes = bench.arguments
    load(target, Size(sizes.clients, sizes.tokens, 0, 1, think_s))
    found = load(target, Size(sizes.clients, sizes.tokens, 1, 1 + sizes.calls, think_s))
    if found.failed:
        raise HostError(
            f"{found.failed} calls of the load failed: {found.failure}", "run the bench on a quieter machine"
        )
    return found


def _row(found: Any, instant: Any, base_ms: float) -> dict[str, Any]:
    return {
        "overhead_p50_ms": round(found.percentile(0.5) - base_ms, 2),
        "overhead_p99_ms": round(found.percentile(0.99) - base_ms, 2),
        "calls_per_s": round(instant.calls_per_s, 1),
        "cpu_ms_per_call": round(1e3 * found.cpu_s / len(found.latencies), 2),
        "rss_mb": round(found.rss_after / 2**20, 1),
    }


def _endure(bench: _Bench) -> tuple[int, int, float]:
    """(lost, doubled, growth of memory in MB since the first calls) of many long rollouts at once."""
    from appliance.bench.load.drive import Size, load
    from appliance.record.store import Store

    sizes = bench.arguments
    if not sizes.rollout_calls:
        return 0, 0, 0.0
    folder = bench.folder / "endure"
    with _engine(bench, 0.0) as engine, _ours(bench, engine[0], folder, sizes.rollouts) as target:
        load(target, Size(sizes.rollouts, sizes.tokens, 0, 1))
        found = load(target, Size(sizes.rollouts, sizes.tokens, 1, sizes.rollout_calls))
    store = Store.open(folder / "record.db", readonly=True)
    recorded = Counter(
        (row["rollout_id"], row["num_prompt_tokens"])
        for row in store.rows("SELECT rollout_id, num_prompt_tokens FROM calls")
    )
    store.close()
    # Each call of a conversation has a longer prompt than the one before it.
    lost = sizes.rollouts * sizes.rollout_calls - len(recorded) + found.failed
    doubled = sum(count - 1 for count in recorded.values())
    return lost, doubled, round((found.rss_after - found.rss_before) / 2**20, 1)


def _curve(bench: _Bench) -> list[list[float]]:
    """[prompt tokens, ms of processor time] of a call that adds a result of 40 words; nothing waits for anything."""
    from appliance.bench.load.drive import cpu_by_size

    with _engine(bench, 0.0) as (port, _), _ours(bench, port, bench.folder / "curve", len(CURVE)) as ours:
        found = cpu_by_size(ours, CURVE, _CURVE_ROUNDS)
    return [[num_tokens, round(1e3 * used, 2)] for num_tokens, used in zip(CURVE, found, strict=True)]


# ------------------------------------------------------------------ processes


@contextmanager
def _engine(bench: _Bench, think_s: float) -> Iterator[tuple[int, int]]:
    from appliance.bench.load.drive import process

    arguments = ["-m", "appliance.bench.load.engine", str(bench.folder / "model"), str(think_s)]
    with process(arguments, bench.folder / "engine.log") as found:
        yield found


@contextmanager
def _ours(bench: _Bench, engine_port: int, folder: Path | None = None, sessions: int = 0) -> Iterator[Any]:
    from appliance.bench.load.drive import Target, process

    place = folder or Path(tempfile.mkdtemp(dir=bench.folder))
    place.mkdir(exist_ok=True)
    (place / "model").symlink_to(bench.folder / "model")
    arguments = [str(place), str(engine_port), str(sessions or bench.arguments.clients)]
    with process(["-m", "appliance.bench.load.ours", *arguments], place / "proxy.log") as (port, pid):
        yield Target(port, lambda n: f"/s/t{n}/v1/chat/completions", pids=(pid,))


# ------------------------------------------------------------------ what is shown


def _table(found: dict[str, Any], rows: dict[str, dict[str, Any]], sizes: argparse.Namespace) -> str:
    lines = [
        f"{sizes.clients} conversations at once, {sizes.tokens} prompt tokens, engine thinks {sizes.think_ms} ms;"
        f" load of the machine {os.getloadavg()[0]:.1f}",
        f"{'':<16}{'p50 ms':>9}{'p99 ms':>9}{'calls/s':>9}{'CPU ms':>9}{'MB':>8}",
    ]
    lines += [
        f"{name:<16}{row['overhead_p50_ms']:>9.2f}{row['overhead_p99_ms']:>9.2f}{row['calls_per_s']:>9.1f}"
        f"{row['cpu_ms_per_call']:>9.2f}{row['rss_mb']:>8.1f}"
        for name, row in rows.items()
    ]
    if found["ratio_to_litellm"] is not None:
        lines.append(f"overhead is {found['ratio_to_litellm']:.3f} of litellm's (p50)")
    if sizes.rollout_calls:
        lines.append(
            f"{sizes.rollouts} rollouts of {sizes.rollout_calls} calls: {found['lost']} lost,"
            f" {found['doubled']} doubled, memory grew by {found['rss_growth_mb']} MB"
        )
    lines += [f"{int(tokens):>8} prompt tokens: {ms:.2f} ms of processor time" for tokens, ms in found["curve"]]
    return "\n".join(lines)


def _picture(rows: dict[str, dict[str, Any]], curve: list[list[float]]) -> str:
    """Bars of the median overhead, and the curve over prompt lengths on a logarithmic axis."""
    bars = [(name, row["overhead_p50_ms"]) for name, row in rows.items()]
    most = max([1e-9, *(ms for _, ms in bars)])
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 360" font-family="sans-serif" font-size="12">',
        '<rect width="720" height="360" fill="white"/>',
        '<text x="20" y="24" font-size="14" font-weight="bold">Overhead of a call, median, ms</text>',
    ]
    for n, (name, ms) in enumerate(bars):
        row_y, width = 44 + 28 * n, max(1.0, 400 * ms / most)
        parts.append(f'<text x="120" y="{row_y + 14}" text-anchor="end">{name}</text>')
        parts.append(f'<rect x="130" y="{row_y}" width="{width:.1f}" height="18" fill="#2a6f97"/>')
        parts.append(f'<text x="{138 + width:.1f}" y="{row_y + 14}">{ms:.2f}</text>')
    if curve:
        top = max(1e-9, *(ms for _, ms in curve))
        at = [
            (60 + 620 * n / max(1, len(curve) - 1), 330 - 120 * max(0.0, ms) / top) for n, (_, ms) in enumerate(curve)
        ]
        parts.append('<text x="20" y="196" font-weight="bold">Processor time of a call by prompt tokens, ms</text>')
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        parts.append(f'<polyline points="{line}" fill="none" stroke="#bc4b51" stroke-width="2.5"/>')
        for (x, y), (tokens, ms) in zip(at, curve, strict=True):
            parts.append(f'<text x="{x:.1f}" y="350" text-anchor="middle">{int(tokens) // 1000} K</text>')
            parts.append(f'<text x="{x:.1f}" y="{y - 6:.1f}" text-anchor="middle">{ms:.1f}</text>')
    return "\n".join([*parts, "</svg>\n"])
