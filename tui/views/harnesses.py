"""Harness files at hand: which are whole, which are broken and why, and their text. `e` opens one in $EDITOR."""

from __future__ import annotations

from collections.abc import Sequence

from tui.pages.harnesses import HarnessesPage, HarnessLine
from tui.views.table_view import TableView, facts
from tui.views.view import ActWanted, Span
from tui.widgets.pager import Paragraph
from tui.widgets.table import Cell, Column


class HarnessesView(TableView[HarnessLine]):
    """The list of files; broken ones on top."""

    BINDINGS = [("e", "edit", "Edit")]  # noqa: RUF012
    COLUMNS = (
        Column("Harness", 18),
        Column("State", 8),
        Column("Version", 12),
        Column("Wire", 10),
        Column("In this run", 11),
        Column("File", 12, grow=1),
    )
    EMPTY = "Reading the harness files …"

    def rows(self, page: HarnessesPage | None) -> Sequence[HarnessLine]:
        """By name, after what is broken."""
        return page.harnesses if page else ()

    def key(self, row: HarnessLine) -> str:
        """Its file."""
        return row.file

    def cells(self, row: HarnessLine) -> tuple[Cell, ...]:
        """Glyph and word."""
        run = self.snapshot.run
        used = run is not None and row.name in run.harnesses.split(", ")
        return (
            (row.name, "text"),
            ("✗ broken", "bad") if row.problem else ("✓ whole", "muted"),
            (row.version, "text"),
            (row.wire, "text"),
            ("● used" if used else "", "good"),
            (row.file, "muted"),
        )

    def headline(self, page: HarnessesPage | None) -> Sequence[Span]:
        """How many are broken."""
        lines = page.harnesses if page else ()
        broken = sum(bool(line.problem) for line in lines)
        told: Span = (f"   ✗ {broken} broken", "$error") if broken else ("   all whole", "$muted")
        return (
            (f"{len(lines)} harnesses", "bold"),
            told,
            ("   a changed file counts from the next rollout on", "$muted"),
        )

    def story(self, row: HarnessLine) -> list[Paragraph]:
        """What is wrong, then the file."""
        wrong: list[Paragraph] = [(row.problem, "bad"), ("", "text")] if row.problem else []
        return [*wrong, facts(("file", row.file)), (row.text, "text")]

    def action_edit(self) -> None:
        """Opens the file in $EDITOR."""
        if self.current:
            self.post_message(ActWanted("edit", self.current.file))
