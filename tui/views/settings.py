"""The effective configuration of the chosen run: every key, its value and what decided it."""

from __future__ import annotations

from collections.abc import Sequence

from tui.pages.settings import Setting, SettingsPage
from tui.views.table_view import TableView, facts
from tui.views.view import Span
from tui.widgets.pager import Paragraph
from tui.widgets.table import Cell, Column


class SettingsView(TableView[Setting]):
    """The list of keys; what is not a default stands out."""

    COLUMNS = (
        Column("Key", 26),
        Column("Value", 14, grow=1),
        Column("Decided by", 14),
        Column("Meaning", 10, grow=3),
    )
    EMPTY = "No configuration was read yet."

    def rows(self, page: SettingsPage | None) -> Sequence[Setting]:
        """In the order of the configuration."""
        return page.settings if page else ()

    def key(self, row: Setting) -> str:
        """The key."""
        return row.key

    def copied(self) -> str:
        """As `--set` takes it."""
        return f"{self.current.key}={self.current.value}" if self.current else ""

    def cells(self, row: Setting) -> tuple[Cell, ...]:
        """Defaults are quiet."""
        is_default = row.source == "default"
        return (
            (row.key, "muted" if is_default else "text"),
            (row.value, "text" if is_default else "accent"),
            (row.source if is_default else f"● {row.source}", "muted" if is_default else "accent"),
            (row.meaning, "muted"),
        )

    def headline(self, page: SettingsPage | None) -> Sequence[Span]:
        """How many were set."""
        settings = page.settings if page else ()
        changed = sum(s.source != "default" for s in settings)
        name = self.snapshot.run.name if self.snapshot.run else ""
        return (
            (f"Configuration of {name}", "bold"),
            (f"   {len(settings)} keys   {changed} set by the run", "$muted"),
        )

    def story(self, row: Setting) -> list[Paragraph]:
        """The whole value and meaning."""
        return [
            (f"{row.key} = {row.value}", "tool"),
            (row.meaning, "text"),
            facts(("decided by", row.source), ("default", row.default)),
        ]
