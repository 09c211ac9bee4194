"""What a run leaves for people: the closing table, demo.json and the reward curve, all from the record.

`summary` is the machine-readable object; its keys are stable.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from appliance.record.store import Store
from appliance.report.charts import curve_svg, sparkline
from appliance.report.report import HarnessResult, harness_result
from appliance.system.files import new_file, private_folder
from appliance.trees.utilisation import of_metrics, shares
from appliance.types import Purpose, Rollout

TRAINING_PHASES = ("coldstart", "train")


def summary(store: Store, run_id: str, started_at: float | None = None) -> dict[str, Any]:
    """Seeds, minutes, gap, utilisation and one entry a harness. `started_at`: when the command began (Unix s)."""
    run = store.run(run_id)
    rollouts = store.rollouts(run.id)
    seconds = store.phase_seconds(run.id)
    metrics = [m for _, state, m in store.steps(run.id) if state == "done"]
    total_s = time.time() - started_at if started_at else sum(seconds.values())
    sampled = sum(m.get("sampled_tokens", 0.0) for m in metrics)
    trained = sum(m.get("trained_tokens", 0.0) for m in metrics)
    return {
        "run": run.id,
        "state": str(run.state),
        "seed": run.seed,
        "minutes_total": round(total_s / 60, 2),
        "minutes_training": round(sum(seconds.get(p, 0.0) for p in TRAINING_PHASES) / 60, 2),
        "minutes_by_phase": {phase: round(s / 60, 2) for phase, s in seconds.items()},
        "logprob_gap_mean": next((m["logprob_gap"] for m in metrics if "logprob_gap" in m), None),
        "utilisation": trained / sampled if sampled else None,
        "logging": shares(of_metrics(metrics)),
        "harnesses": [asdict(harness_result(name, rollouts)) for name in run.config["harnesses"]],  # type: ignore[attr-defined]
        "families": families(rollouts, store),
    }


def families(rollouts: Sequence[Rollout], store: Store) -> dict[str, dict[str, float | None]]:
    """Pass@1 before and after by task family: which kinds of task the gain came from."""
    family_of = {row["name"]: row["family"] for row in store.rows("SELECT name, family FROM tasks")}
    found: dict[str, dict[str, float | None]] = {}
    for key, purpose in (("before", Purpose.EVAL_BEFORE), ("after", Purpose.EVAL_AFTER)):
        by_family: dict[str, list[float]] = {}
        for r in rollouts:
            if r.plan.purpose is purpose and r.reward is not None:
                by_family.setdefault(family_of.get(r.plan.task, "?"), []).append(float(r.reward >= 1.0))
        for name, passes in by_family.items():
            found.setdefault(name, {"before": None, "after": None})[key] = sum(passes) / len(passes)
    return dict(sorted(found.items()))


def reward_curve(rollouts: Sequence[Rollout]) -> dict[str, list[tuple[int, float]]]:
    """Harness → (step, mean reward of its graded training rollouts)."""
    sums: dict[str, dict[int, list[float]]] = {}
    for r in rollouts:
        if r.plan.purpose is Purpose.TRAIN and r.reward is not None:
            sums.setdefault(r.plan.harness, {}).setdefault(r.plan.step, []).append(r.reward)
    return {h: [(step, sum(x) / len(x)) for step, x in sorted(steps.items())] for h, steps in sums.items()}


def write(home: Path, store: Store, run_id: str, started_at: float | None = None) -> Path:
    """Writes demo.json and curve.svg under the run's folder, atomically; returns demo.json's path."""
    folder = private_folder(private_folder(home / "runs") / run_id)
    _replace(
        folder / "curve.svg", curve_svg(reward_curve(store.rollouts(run_id)), f"Mean reward by step, run {run_id}")
    )
    found = summary(store, run_id, started_at)
    return _replace(folder / "demo.json", json.dumps(found, indent=1) + "\n")


def table(found: dict[str, Any]) -> str:
    """The closing table, for a terminal of 80 columns."""
    lines = ["harness          before [95 %]        after [95 %]         gain [95 %]            rollouts"]
    for entry in found["harnesses"]:
        result = HarnessResult(**entry)
        lines.append(
            f"{result.name:<16} {_share(result.before, result.before_interval):<20} "
            f"{_share(result.after, result.after_interval):<20} {_share(result.gain, result.gain_interval, '+'):<22} "
            f"{result.rollouts:>8}"
        )
        lines += [f"  failed {label}: {count}" for label, count in sorted(result.failures.items())]
    for name, passed in found["families"].items():
        before, after = (_percent(passed[k]) for k in ("before", "after"))
        lines.append(f"  family {name:<16} {before:>5} → {after:>5}")
    gap = found["logprob_gap_mean"]
    used = found["utilisation"]
    lines.append(
        f"mean |logprob trainer − sampler| at the first step: {gap:.6f} nats"
        if gap is not None
        else "no step changed the policy"
    )
    if used is not None:
        lines.append(f"sampled tokens trainable: {100 * used:.1f} %{_logging(found.get('logging', {}))}")
    lines.append(f"minutes: {found['minutes_total']} in all, {found['minutes_training']} training")
    return "\n".join(lines)


def _logging(shares_by_way: dict[str, float | None]) -> str:
    """What other ways of logging would have kept, and how often a log of calls repeats a token."""
    last, outcome = shares_by_way.get("last_call_only"), shares_by_way.get("outcome_only")
    flat = shares_by_way.get("flat_per_unique")
    if last is None or outcome is None or flat is None:
        return ""
    kept = f" (last call only: {100 * last:.1f} %, outcome only: {100 * outcome:.1f} %)"
    return f"{kept}; {flat:.2f} flat tokens a unique one"


def curve_lines(rollouts: Sequence[Rollout]) -> list[str]:
    """The reward curve for a terminal: one line a harness."""
    return [
        f"{name:<16} {sparkline([y for _, y in points])}  {points[0][1]:.2f} → {points[-1][1]:.2f}"
        for name, points in reward_curve(rollouts).items()
    ]


def _share(value: float | None, interval: Sequence[float] | None, sign: str = "") -> str:
    if value is None:
        return "–"
    bounds = f" [{100 * interval[0]:.0f}, {100 * interval[1]:.0f}]" if interval else ""
    return f"{100 * value:{sign}.1f}{bounds}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"


def _replace(path: Path, text: str) -> Path:
    with new_file(path) as draft:
        draft.write_text(text, encoding="utf-8")
    return path
