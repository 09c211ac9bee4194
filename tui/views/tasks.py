"""Tasks and solve rates: what the run's pack holds, how often each task was solved, and in which harness."""

from __future__ import annotations

from collections.abc import Sequence

from tui.pages.tasks import TaskLine, TasksPage
from tui.text import bar, reward, share
from tui.views.table_view import TableView
from tui.views.view import Span
from tui.widgets.pager import Paragraph
from tui.widgets.table import Cell, Column


class TasksView(TableView[TaskLine]):
    """The list of tasks; those that were tried come first."""

    COLUMNS = (
        Column("Task", 14, grow=3),
        Column("Split", 8, grow=1),
        Column("Family", 8, grow=1),
        Column("Solved", 7, right=True),
        Column("", 10),
        Column("Graded", 6, right=True),
        Column("Failed", 6, right=True),
    )
    EMPTY = "No tasks yet: they are noted when the run has read its pack."

    def rows(self, page: TasksPage | None) -> Sequence[TaskLine]:
        """By split, family and name."""
        return page.tasks if page else ()

    def key(self, row: TaskLine) -> str:
        """The task's name."""
        return row.name

    def cells(self, row: TaskLine) -> tuple[Cell, ...]:
        """Tasks that were always or never solved teach nothing: they are quiet."""
        rate = row.rate
        teaches = rate is not None and 0 < rate < 1
        failed = sum(s.num_failed for s in row.solved)
        return (
            (row.name, "text"),
            (row.split, "muted"),
            (row.family, "muted"),
            (share(rate), "accent" if teaches else "muted"),
            (bar(rate or 0.0, 10) if rate is not None else "", "good" if teaches else "muted"),
            (str(row.num_graded), "text"),
            (str(failed), "bad" if failed else "muted"),
        )

    def headline(self, page: TasksPage | None) -> Sequence[Span]:
        """How many teach something."""
        tasks = page.tasks if page else ()
        tried = [t for t in tasks if t.rate is not None]
        never, always = sum(t.rate == 0 for t in tried), sum(t.rate == 1 for t in tried)
        return (
            (f"{len(tasks)} tasks", "bold"),
            (f"   {len(tried)} tried   {never} never solved   {always} always solved", "$muted"),
        )

    def story(self, row: TaskLine) -> list[Paragraph]:
        """Rates by harness, then the instruction."""
        lines: list[Paragraph] = []
        for s in row.solved:
            rate = share(s.num_passed / s.num_graded if s.num_graded else None)
            text = f"{s.harness:<16} solved {rate:>5}   mean reward {reward(s.mean)}   {s.num_graded} graded"
            lines.append((text + (f"   ✗ {s.num_failed} failed" if s.num_failed else ""), "text"))
        if not lines:
            lines.append(("This run has not tried it.", "muted"))
        return [*lines, ("", "text"), (row.instruction or "Its instruction is not in the record.", "text")]
