"""The histogram of training rewards as a filter: enter on a bar lists its rollouts. Below: what rewards are made of."""

from __future__ import annotations

from collections.abc import Sequence

from tui.pages.rewards import Bucket, RewardsPage
from tui.pages.snapshot import Only
from tui.text import bar
from tui.views.table_view import TableView
from tui.views.view import LookWanted, Span
from tui.widgets.pager import Paragraph
from tui.widgets.table import Cell, Column

BAR = 28


class RewardsView(TableView[Bucket]):
    """One row a bar, the highest rewards on top."""

    BINDINGS = [("enter", "open", "Rollouts")]  # noqa: RUF012
    COLUMNS = (
        Column("Reward", 13),
        Column("Rollouts", 8, right=True),
        Column("", BAR),
        Column("By harness", 8, grow=1),
    )
    EMPTY = "No graded training rollout yet."

    def rows(self, page: RewardsPage | None) -> Sequence[Bucket]:
        """From full reward down."""
        self._most = max((b.total for b in page.buckets), default=0) if page else 0
        return tuple(reversed(page.buckets)) if page else ()

    def key(self, row: Bucket) -> str:
        """Its lower end."""
        return f"{row.low:.4f}"

    def cells(self, row: Bucket) -> tuple[Cell, ...]:
        """The bar's length is its share of the fullest bucket."""
        is_last = self._is_last(row)
        name = f"{row.low:.2f} full" if is_last and row.low == 1 else f"{row.low:.2f} – {row.high:.2f}"
        by_harness = "  ".join(f"{harness} {n}" for harness, n in sorted(row.counts.items()))
        return (
            (name, "text" if row.total else "muted"),
            (str(row.total), "text" if row.total else "muted"),
            (bar(row.total / self._most if self._most else 0, BAR), "good" if is_last else "accent"),
            (by_harness, "muted"),
        )

    def _is_last(self, row: Bucket) -> bool:
        page = self.snapshot.page
        return isinstance(page, RewardsPage) and bool(page.buckets) and row is page.buckets[-1]

    def headline(self, page: RewardsPage | None) -> Sequence[Span]:
        """All of them, and how many are full or nothing."""
        buckets = page.buckets if page else ()
        total = sum(b.total for b in buckets)
        spans: list[Span] = [("Training rewards", "bold"), (f"   {total} graded", "$muted")]
        if total:
            full, none = buckets[-1].total / total, buckets[0].total / total
            spans.append((f"   {100 * full:.0f} % full   {100 * none:.0f} % in the lowest bar", "$muted"))
        return spans

    def story(self, row: Bucket) -> list[Paragraph]:
        """The parts of rewards, whatever bar the cursor is on."""
        page = self.snapshot.page
        parts = page.parts if isinstance(page, RewardsPage) else {}
        lines: list[Paragraph] = [("Mean of each part over the newest graded rollouts", "muted")]
        for harness, own in parts.items():
            for name, mean in own.items():
                lines.append((f"{harness:<16} {name:<20} {mean:5.2f}  {bar(mean, 20)}", "text"))
        return lines

    def opened(self, row: Bucket) -> None:
        """Lists the rollouts of the bar."""
        high = float("inf") if self._is_last(row) else row.high
        self.post_message(LookWanted("rollouts", only=Only(low=row.low, high=high)))

    def action_open(self) -> None:
        """Lists the rollouts of the bar."""
        self.rows_list.action_open()
