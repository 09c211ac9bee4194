"""A view that is a list with the whole story of the row under the cursor below it; most views are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar

from textual import on
from textual.app import ComposeResult
from textual.widget import Widget

from tui.pages.snapshot import Snapshot
from tui.views.view import Span, View
from tui.widgets.pager import Pager, Paragraph
from tui.widgets.table import Cell, Column, Listing, Shape

T = TypeVar("T")


class TableView(View, Generic[T]):
    """Give it columns and say how a page becomes rows, cells and a story; it keeps cursor, filter and focus."""

    COLUMNS: ClassVar[tuple[Column, ...]]
    EMPTY: ClassVar[str] = "Nothing here yet."

    def compose_body(self) -> ComposeResult:
        """The list above, the story below."""
        yield Listing(Shape(self.COLUMNS, self.key, self.cells, self.EMPTY), id=f"{self.id}-list")
        story = Pager(id=f"{self.id}-story")
        story.add_class("story")
        yield story

    def on_mount(self) -> None:
        """State before the first snapshot."""
        self.snapshot = Snapshot()

    @property
    def rows_list(self) -> Listing[T]:
        """The list."""
        return self.query_one(f"#{self.id}-list", Listing)

    @property
    def focus_target(self) -> Widget:
        """The list."""
        return self.rows_list

    @property
    def current(self) -> T | None:
        """The row under the cursor."""
        return self.rows_list.current

    def show(self, snapshot: Snapshot) -> None:
        """Draws the rows of a snapshot."""
        self.snapshot = snapshot
        self.rows_list.show(self.rows(snapshot.page))
        self.say(*self.headline(snapshot.page))
        self._tell()

    def filter(self, text: str) -> None:
        """Filters by every column."""
        self.filter_text = text
        self.rows_list.filter(text)
        self.show(self.snapshot)

    def copied(self) -> str:
        """What names the row."""
        return self.key(self.current) if self.current is not None else ""

    @on(Listing.Moved)
    def _moved(self, message: Listing.Moved) -> None:
        self._tell()
        if isinstance(message, Listing.Opened) and self.current is not None:
            self.opened(self.current)

    def _tell(self) -> None:
        current = self.current
        self.query_one(f"#{self.id}-story", Pager).show(self.story(current) if current is not None else [])

    # ------------------------------------------------------------------ what a view says of itself

    def rows(self, page: Any) -> Sequence[T]:
        """The rows of a page; `page` is None until it was read."""
        raise NotImplementedError

    def key(self, row: T) -> str:
        """What names a row; unique."""
        raise NotImplementedError

    def cells(self, row: T) -> tuple[Cell, ...]:
        """The cells of a row."""
        raise NotImplementedError

    def headline(self, page: Any) -> Sequence[Span]:
        """The title line."""
        raise NotImplementedError

    def story(self, row: T) -> list[Paragraph]:
        """Everything about a row."""
        raise NotImplementedError

    def opened(self, row: T) -> None:
        """Enter on a row; nothing unless a view says otherwise."""


def facts(*pairs: tuple[str, str]) -> Paragraph:
    """`name value   name value` as a quiet paragraph; empty values are left out."""
    return ("   ".join(f"{name} {value}".strip() for name, value in pairs if value), "muted")
