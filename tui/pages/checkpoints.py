"""Policy versions with what each step measured and where they were evaluated. No Textual."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from appliance.record.store import Run, Store
from tui.text import plain_line

VERSIONS = "SELECT version, parent, path, sha256, created_at FROM versions WHERE run_id=?1 ORDER BY version DESC"
EVALUATIONS = (
    "SELECT purpose, step, policy_version, harness, count(*) n, count(reward) graded, sum(reward>=1.0) passed,"
    " avg(reward) mean FROM rollouts WHERE run_id=?1 AND purpose IN ('eval_before', 'eval_after', 'eval')"
    " GROUP BY purpose, step, harness"
)


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
