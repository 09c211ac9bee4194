"""What the wider views read from the record: traffic, rewards, tasks, checkpoints, settings. Plain data, no Textual.

Each page is read only while its view is in front, and only when the record has changed. No query's cost grows with
the calls in the record.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from appliance import pages
from appliance.store import Run, Store
from tui.text import plain, plain_line

MAX_CALLS = 300
RECENT_ROLLOUTS = 60
NUM_BUCKETS = 10
MAX_TEXT = 4000

TRAFFIC = (
    "SELECT c.id, c.rollout_id, c.sequence, c.wire, c.num_prompt_tokens, c.num_sampled_tokens, c.stop_reason,"
    " c.policy_version, c.started_at, c.ended_at, c.delivered, c.lineage, r.task, r.harness"
    " FROM rollouts r JOIN calls c ON c.rollout_id=r.id AND c.attempt=r.attempt"
    " WHERE r.id IN (SELECT id FROM rollouts WHERE run_id=?1 AND num_calls>0 ORDER BY id DESC LIMIT ?2)"
    " ORDER BY c.ended_at DESC LIMIT ?3"
)
REWARDS = (
    "SELECT harness, reward, count(*) n FROM rollouts WHERE run_id=?1 AND purpose='train' AND reward IS NOT NULL"
    " GROUP BY harness, reward"
)
PARTS = (
    "SELECT harness, reward_parts FROM rollouts WHERE run_id=?1 AND ended_at IS NOT NULL AND reward IS NOT NULL"
    " ORDER BY ended_at DESC LIMIT ?2"
)
TASKS = (
    "SELECT task, harness, count(*) n, count(reward) graded, sum(state='failed') failed, sum(reward>=1.0) passed,"
    " avg(reward) mean FROM rollouts WHERE run_id=?1 AND purpose!='teach' GROUP BY task, harness"
)
KNOWN_TASKS = "SELECT name, family, split, instruction FROM tasks WHERE pack=?1"
VERSIONS = "SELECT version, parent, path, sha256, created_at FROM versions WHERE run_id=?1 ORDER BY version DESC"
EVALUATIONS = (
    "SELECT purpose, step, policy_version, harness, count(*) n, count(reward) graded, sum(reward>=1.0) passed,"
    " avg(reward) mean FROM rollouts WHERE run_id=?1 AND purpose IN ('eval_before', 'eval_after', 'eval')"
    " GROUP BY purpose, step, harness"
)


@dataclass(frozen=True, slots=True)
class TrafficLine:
    """One call as the proxy saw it. `version` is None for a teacher's."""

    id: int
    rollout_id: int
    task: str
    harness: str
    sequence: int
    wire: str
    num_prompt_tokens: int
    num_sampled_tokens: int
    stop_reason: str
    version: int | None
    started_at: float
    seconds: float
    is_delivered: bool
    lineage: str


@dataclass(frozen=True, slots=True)
class TrafficPage:
    """The newest calls of a run, newest first."""

    calls: tuple[TrafficLine, ...] = ()


def traffic(store: Store, run: Run) -> TrafficPage:
    """Calls of the rollouts that called last."""
    return TrafficPage(
        tuple(
            TrafficLine(
                row["id"], row["rollout_id"], plain_line(row["task"]), plain_line(row["harness"]), row["sequence"],
                plain_line(row["wire"]), row["num_prompt_tokens"], row["num_sampled_tokens"],
                plain_line(row["stop_reason"]), row["policy_version"], row["started_at"],
                row["ended_at"] - row["started_at"], bool(row["delivered"]), plain_line(row["lineage"]),
            )
            for row in store.rows(TRAFFIC, run.id, RECENT_ROLLOUTS, MAX_CALLS)
        )
    )  # fmt: skip


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
    for row in store.rows(PARTS, run.id, pages.PAGE):
        own = totals.setdefault(plain_line(row["harness"]), {})
        for name, value in json.loads(row["reward_parts"]).items():
            own.setdefault(plain_line(str(name)), []).append(float(value))
    return {h: {name: sum(v) / len(v) for name, v in own.items()} for h, own in sorted(totals.items())}


@dataclass(frozen=True, slots=True)
class Solved:
    """What became of a task in one harness; `mean` is None without a grade."""

    harness: str
    num_rollouts: int
    num_graded: int
    num_failed: int
    num_passed: int
    mean: float | None


@dataclass(frozen=True, slots=True)
class TaskLine:
    """A task that this run has tried, or that its pack holds."""

    name: str
    family: str
    split: str
    instruction: str
    solved: tuple[Solved, ...]

    @property
    def num_graded(self) -> int:
        """Graded rollouts in all harnesses."""
        return sum(s.num_graded for s in self.solved)

    @property
    def rate(self) -> float | None:
        """Share of graded rollouts that earned the full reward."""
        return sum(s.num_passed for s in self.solved) / self.num_graded if self.num_graded else None


@dataclass(frozen=True, slots=True)
class TasksPage:
    """Tasks by split, family and name."""

    harnesses: tuple[str, ...] = ()
    tasks: tuple[TaskLine, ...] = ()


def tasks(store: Store, run: Run) -> TasksPage:
    """Every task of the run's pack, and what its rollouts made of it (lessons of a teacher do not count)."""
    solved: dict[str, list[Solved]] = {}
    for row in store.rows(TASKS, run.id):
        line = Solved(
            plain_line(row["harness"]), row["n"], row["graded"], row["failed"] or 0, row["passed"] or 0, row["mean"]
        )
        solved.setdefault(row["task"], []).append(line)
    known = {row["name"]: row for row in store.rows(KNOWN_TASKS, _pack(run))}
    lines = []
    for name in sorted({*known, *solved}):
        family, split, text = (
            (known[name][k] for k in ("family", "split", "instruction")) if name in known else ("",) * 3
        )
        lines.append(
            TaskLine(plain_line(name), plain_line(family), plain_line(split), plain(text[:MAX_TEXT]),
                     tuple(solved.get(name, ())))
        )  # fmt: skip
    lines.sort(key=lambda t: (not t.num_graded, t.split, t.family, t.name))
    return TasksPage(tuple(sorted({s.harness for own in solved.values() for s in own})), tuple(lines))


def _pack(run: Run) -> str:
    section = run.config.get("tasks")
    named = str(section.get("pack", "")) if isinstance(section, dict) else ""
    return Path(named).name


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Pass@1 of one harness in one evaluation."""

    label: str
    harness: str
    num_tasks: int
    num_graded: int
    num_passed: int
    mean: float | None

    @property
    def rate(self) -> float | None:
        """Share of graded rollouts with the full reward."""
        return self.num_passed / self.num_graded if self.num_graded else None


@dataclass(frozen=True, slots=True)
class VersionLine:
    """A policy version. `is_there`: its folder is."""

    version: int
    parent: int | None
    path: str
    sha256: str
    created_at: float
    is_there: bool
    size_bytes: int
    metrics: Mapping[str, float]
    evaluations: tuple[Evaluation, ...]


@dataclass(frozen=True, slots=True)
class CheckpointsPage:
    """Versions, the newest first."""

    versions: tuple[VersionLine, ...] = ()


def checkpoints(store: Store, run: Run) -> CheckpointsPage:
    """Versions with what was measured of them. Version n is what step n made; 0 is the cold start's."""
    tested: dict[int, list[Evaluation]] = {}
    for row in store.rows(EVALUATIONS, run.id):
        version = row["step"] if row["purpose"] == "eval" else row["policy_version"]
        label = str(row["purpose"]).removeprefix("eval_")
        tested.setdefault(version, []).append(
            Evaluation(label, plain_line(row["harness"]), row["n"], row["graded"], row["passed"] or 0, row["mean"])
        )
    metrics = {step: m for step, state, m in store.steps(run.id) if state == "done"}
    return CheckpointsPage(
        tuple(
            VersionLine(
                row["version"], row["parent"], plain_line(row["path"]), row["sha256"], row["created_at"],
                Path(row["path"]).is_dir(), _size(Path(row["path"])), metrics.get(row["version"], {}),
                tuple(tested.get(row["version"], ())),
            )
            for row in store.rows(VERSIONS, run.id)
        )
    )  # fmt: skip


def _size(folder: Path) -> int:
    try:
        return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    except OSError:
        return 0


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of a run. `source`: `default`, or what set it."""

    key: str
    value: str
    source: str
    meaning: str
    default: str


@dataclass(frozen=True, slots=True)
class SettingsPage:
    """Every key of the run in the order of the configuration."""

    settings: tuple[Setting, ...] = ()


def settings(store: Store, run: Run) -> SettingsPage:
    """The effective configuration, as the run was created with it."""
    from appliance.config import RunConfig, from_record, leaves

    defaults = {key: value for key, value, _ in leaves(RunConfig())}
    told = _sources(store.path.parent / "runs" / run.id / "sources.json")
    found = []
    for key, value, meaning in leaves(from_record(run.config)):
        source = told.get(key) or ("default" if _shown(value) == _shown(defaults[key]) else "this run")
        found.append(Setting(key, plain_line(_shown(value)), plain_line(source), plain(meaning), _shown(defaults[key])))
    return SettingsPage(tuple(found))


def _shown(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _sources(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}
