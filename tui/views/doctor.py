"""Doctor: every check of this machine with what was found and the exact remedy. They are made when it is opened."""

from __future__ import annotations

from collections.abc import Sequence

from tui.pages.doctor import CheckLine, DoctorPage
from tui.text import duration
from tui.views.table_view import TableView
from tui.views.view import PageWanted, Span
from tui.widgets.pager import Paragraph
from tui.widgets.table import Cell, Column


class DoctorView(TableView[CheckLine]):
    """The list of checks."""

    BINDINGS = [("r", "again", "Check again")]  # noqa: RUF012
    COLUMNS = (Column("Check", 11), Column("State", 8), Column("Found", 30, grow=1))
    EMPTY = "● checking this machine …"

    def rows(self, page: DoctorPage | None) -> Sequence[CheckLine]:
        """In the order in which a failure matters."""
        return page.checks if page else ()

    def key(self, row: CheckLine) -> str:
        """The check's name."""
        return row.name

    def cells(self, row: CheckLine) -> tuple[Cell, ...]:
        """Glyph and word."""
        state: Cell = ("✓ ok", "good") if row.is_ok else ("✗ fails", "bad")
        return ((row.name, "text"), state, (" ".join(row.found.split("\n")), "text" if row.is_ok else "bad"))

    def headline(self, page: DoctorPage | None) -> Sequence[Span]:
        """Whether all is well."""
        if page is None:
            return (("Doctor", "bold"), ("   checking …", "$muted"))
        failing = sum(not c.is_ok for c in page.checks)
        word: Span = (f"✗ {failing} of {len(page.checks)} fail", "$error") if failing else ("✓ all is well", "$success")
        ago = duration(max(0.0, self.snapshot.now - page.at))
        return (("Doctor   ", "bold"), word, (f"   {ago} ago", "$muted"))

    def story(self, row: CheckLine) -> list[Paragraph]:
        """What was found, and what to do."""
        found: list[Paragraph] = [(row.found, "text")]
        return found if row.is_ok else [*found, ("", "text"), (f"→ {row.remedy}", "tool")]

    def action_again(self) -> None:
        """Checks again."""
        self.post_message(PageWanted("doctor"))
