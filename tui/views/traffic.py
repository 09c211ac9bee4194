"""The traffic of the proxy: the newest calls of a run over all its rollouts. Enter opens the rollout's calls."""

from __future__ import annotations

import time
from collections.abc import Sequence

from tui.pages.traffic import TrafficLine, TrafficPage
from tui.text import count
from tui.views.table_view import TableView, facts
from tui.views.view import LookWanted, Span
from tui.widgets.pager import Paragraph
from tui.widgets.table import Cell, Column


class TrafficView(TableView[TrafficLine]):
    """The list of calls."""

    BINDINGS = [("enter", "open", "Calls")]  # noqa: RUF012
    COLUMNS = (
        Column("Time", 8),
        Column("Rollout", 7, right=True),
        Column("Call", 4, right=True),
        Column("Harness", 8, grow=1),
        Column("Task", 10, grow=3),
        Column("Wire", 9),
        Column("In", 6, right=True),
        Column("Out", 5, right=True),
        Column("Took", 6, right=True),
        Column("End", 7),
    )
    EMPTY = "No call yet: they appear when a harness asks the model."

    def rows(self, page: TrafficPage | None) -> Sequence[TrafficLine]:
        """Newest first."""
        return page.calls if page else ()

    def key(self, row: TrafficLine) -> str:
        """The call's number in the record."""
        return str(row.id)

    def copied(self) -> str:
        """The rollout of the call."""
        return str(self.current.rollout_id) if self.current else ""

    def cells(self, row: TrafficLine) -> tuple[Cell, ...]:
        """A call that was not delivered stands out by glyph and word."""
        end: Cell = (row.stop_reason or "–", "warn" if row.stop_reason == "length" else "muted")
        if not row.is_delivered:
            end = ("✗ lost", "bad")
        return (
            (time.strftime("%H:%M:%S", time.localtime(row.started_at)), "muted"),
            (str(row.rollout_id), "text"),
            (str(row.sequence), "text"),
            (row.harness, "text"),
            (row.task, "text"),
            (row.wire, "muted"),
            (count(row.num_prompt_tokens), "text"),
            (count(row.num_sampled_tokens), "accent"),
            (f"{row.seconds:.1f}s", "warn" if row.seconds > 30 else "text"),
            end,
        )

    def headline(self, page: TrafficPage | None) -> Sequence[Span]:
        """How many, how fast."""
        calls = page.calls if page else ()
        spans: list[Span] = [("Calls", "bold"), (f"   {len(calls)} newest", "$muted")]
        if calls:
            waits = sorted(call.seconds for call in calls)
            spans.append((f"   median {waits[len(waits) // 2]:.1f} s, slowest {waits[-1]:.1f} s", "$muted"))
            lost = sum(not call.is_delivered for call in calls)
            spans.append((f"   ✗ {lost} not delivered" if lost else "", "$error"))
        return spans

    def story(self, row: TrafficLine) -> list[Paragraph]:
        """What the record knows of the call besides its bodies."""
        version = "a teacher" if row.version is None else f"version {row.version}"
        lines: list[Paragraph] = [
            facts(("call", str(row.sequence)), ("of rollout", str(row.rollout_id)), ("answered by", version)),
            facts(
                ("tokens in", str(row.num_prompt_tokens)),
                ("out", str(row.num_sampled_tokens)),
                ("end", row.stop_reason),
            ),
        ]
        if not row.is_delivered:
            lines.append(("✗ the harness did not take the answer: the call is kept and not trained on", "bad"))
        return [*lines, (f"lineage {row.lineage}" if row.lineage else "no lineage headers", "muted")]

    def opened(self, row: TrafficLine) -> None:
        """Shows the calls of the rollout."""
        self.post_message(LookWanted("calls", rollout_id=row.rollout_id, call=row.sequence))

    def action_open(self) -> None:
        """Shows the calls of the rollout."""
        self.rows_list.action_open()
