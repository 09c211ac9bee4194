"""`corral report RUN --html FILE`: a run as one page that opens anywhere, offline: numbers, curves, steps, a few trees.

What models, tasks and harnesses wrote is untrusted: all of it is escaped, the page runs no script and loads nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from appliance.errors import ApplianceError
from appliance.record.store import Store
from appliance.report.charts import curve_svg, interval_bars_svg
from appliance.report.summary import reward_curve, summary, table
from appliance.report.trace import recollect
from appliance.report.tree_view import text, view
from appliance.system.files import written
from appliance.system.redact import logged, value_without_secrets
from appliance.types import Purpose, Rollout

NUM_TREES = 4
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;color:#1a1d22}"
    "h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2.2rem;border-bottom:1px solid #ddd}"
    "pre{font:12px/1.45 ui-monospace,monospace;white-space:pre-wrap;overflow-wrap:anywhere;background:#f6f7f9;"
    "padding:.8rem}table{border-collapse:collapse;font-variant-numeric:tabular-nums}"
    "td,th{text-align:right;padding:.15rem .9rem .15rem 0}td:first-child,th:first-child{text-align:left}"
    "th{color:#667;font-weight:600}svg{max-width:100%;height:auto}"
)
SHOWN_METRICS = ("reward", "loss", "logprob_gap", "frac_reward_zero_std", "sampled_tokens", "trained_tokens")


def write_report(home: Path, store: Store, run_id: str, target: Path) -> None:
    """Writes the page, whole or not at all; ExportError when `target` exists or cannot be written."""
    with written(target) as temporary, temporary.open("w", encoding="utf-8", errors="backslashreplace") as file:
        for piece in page(home, store, run_id):
            file.write(piece)


def page(home: Path, store: Store, run_id: str) -> Iterator[str]:
    """The page in pieces."""
    run, found = store.run(run_id), summary(store, run_id)
    rollouts = store.rollouts(run.id)
    title = f"{run.name} · {run.id}"
    yield f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
    yield f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}"><style>{STYLE}</style></head><body>'
    yield f"<h1>{escape(title)}</h1><p>{escape(f'{run.state}, seed {run.seed}. {logged(run.message)}')}</p>"
    yield f"<h2>Result</h2><pre>{escape(table(found))}</pre>"
    yield from _pictures(found, rollouts)
    yield from _steps(store, run.id)
    yield from _families(found["families"])
    yield from _trees(home, store, rollouts)
    yield "</body></html>\n"


def _pictures(found: Mapping[str, Any], rollouts: Sequence[Rollout]) -> Iterator[str]:
    bars = [
        (f"{h['name']} {when}", h[when], h[f"{when}_interval"])
        for h in found["harnesses"]
        for when in ("before", "after")
        if h[when] is not None
    ]
    if bars:
        yield f"<h2>Pass@1 on held-out tasks</h2>{interval_bars_svg(bars, 'Pass@1, 95 % intervals')}"
    curves = reward_curve(rollouts)
    if any(curves.values()):
        yield f"<h2>Training reward</h2>{curve_svg(curves, 'mean reward by step')}"


def _steps(store: Store, run_id: str) -> Iterator[str]:
    steps = [(step, metrics) for step, state, metrics in store.steps(run_id) if state == "done"]
    if not steps:
        return
    names = [name for name in SHOWN_METRICS if any(name in metrics for _, metrics in steps)]
    yield f"<h2>Steps</h2><table><tr><th>step</th>{''.join(f'<th>{escape(n)}</th>' for n in names)}</tr>"
    for step, metrics in steps:
        cells = "".join(f"<td>{metrics[n]:.4g}</td>" if n in metrics else "<td>–</td>" for n in names)
        yield f"<tr><td>{step}</td>{cells}</tr>"
    yield "</table>"


def _families(families: Mapping[str, Mapping[str, float | None]]) -> Iterator[str]:
    if not families:
        return
    yield "<h2>By task family</h2><table><tr><th>family</th><th>before</th><th>after</th></tr>"
    for name, row in families.items():
        yield f"<tr><td>{escape(name)}</td><td>{_percent(row['before'])}</td><td>{_percent(row['after'])}</td></tr>"
    yield "</table>"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"


def _trees(home: Path, store: Store, rollouts: Sequence[Rollout]) -> Iterator[str]:
    """The newest training rollouts with calls: the best and the worst of them alternate."""
    trained = [r for r in rollouts if r.plan.purpose is Purpose.TRAIN and r.reward is not None and r.num_calls]
    ranked = sorted(trained[-200:], key=lambda r: -(r.reward or 0.0))
    half = NUM_TREES // 2
    chosen = ranked if len(ranked) <= NUM_TREES else [*ranked[:half], *ranked[-half:]]
    if chosen:
        yield "<h2>A few trees</h2><p>The best and the worst of the newest training rollouts.</p>"
    for rollout in chosen:
        try:
            recollected = recollect(store, rollout.id)
            told = text(value_without_secrets(view(home, recollected), recollected.secrets))  # before it is cut short
        except ApplianceError as error:
            told = error.message
        yield f"<pre>{escape(_printable(told))}</pre>"


def _printable(text: str) -> str:
    """Without control characters, so that the file is safe to print in a terminal too."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)
