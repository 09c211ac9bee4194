"""Tasks of a run's pack and how often each was solved, by harness. No Textual."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from appliance.record.store import Run, Store
from tui.text import plain, plain_line

MAX_TEXT = 4000
TASKS = (
    "SELECT task, harness, count(*) n, count(reward) graded, sum(state='failed') failed, sum(reward>=1.0) passed,"
    " avg(reward) mean FROM rollouts WHERE run_id=?1 AND purpose!='teach' GROUP BY task, harness"
)
KNOWN_TASKS = "SELECT name, family, split, instruction FROM tasks WHERE pack=?1"


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
