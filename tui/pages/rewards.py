"""The histogram of a run's training rewards and the parts they are made of. No Textual."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from appliance.record import queries
from appliance.record.store import Run, Store
from tui.text import plain_line

NUM_BUCKETS = 10
REWARDS = (
    "SELECT harness, reward, count(*) n FROM rollouts WHERE run_id=?1 AND purpose='train' AND reward IS NOT NULL"
    " GROUP BY harness, reward"
)
PARTS = (
    "SELECT harness, reward_parts FROM rollouts WHERE run_id=?1 AND ended_at IS NOT NULL AND reward IS NOT NULL"
    " ORDER BY ended_at DESC LIMIT ?2"
)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Training rollouts whose reward is in [low, high) (the last one: at least `low`), by harness."""

    low: float
    high: float
    counts: Mapping[str, int]

    @property
    def total(self) -> int:
        """Rollouts of all harnesses."""
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class RewardsPage:
    """`parts`: harness → part of the reward → its mean over recent graded rollouts."""

    harnesses: tuple[str, ...] = ()
    buckets: tuple[Bucket, ...] = ()
    parts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def rewards(store: Store, run: Run) -> RewardsPage:
    """The histogram of a run's training rewards; wider buckets where rewards leave [0, 1]."""
    found = [(plain_line(row["harness"]), float(row["reward"]), row["n"]) for row in store.rows(REWARDS, run.id)]
    if not found:
        return RewardsPage()
    low, high = min(0.0, *(r for _, r, _ in found)), max(1.0, *(r for _, r, _ in found))
    width = (high - low) / NUM_BUCKETS
    counts: list[dict[str, int]] = [{} for _ in range(NUM_BUCKETS + 1)]
    for harness, value, number in found:
        own = counts[min(NUM_BUCKETS, int((value - low) / width + 1e-9))]
        own[harness] = own.get(harness, 0) + number
    buckets = tuple(Bucket(low + n * width, low + (n + 1) * width, own) for n, own in enumerate(counts))
    return RewardsPage(tuple(sorted({h for h, _, _ in found})), buckets, _parts(store, run))


def _parts(store: Store, run: Run) -> dict[str, dict[str, float]]:
    totals: dict[str, dict[str, list[float]]] = {}
    for row in store.rows(PARTS, run.id, queries.PAGE):
        own = totals.setdefault(plain_line(row["harness"]), {})
        for name, value in json.loads(row["reward_parts"]).items():
            own.setdefault(plain_line(str(name)), []).append(float(value))
    return {h: {name: sum(v) / len(v) for name, v in own.items()} for h, own in sorted(totals.items())}
