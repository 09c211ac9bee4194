"""A list with a fixed header, aligned columns and a cursor; draws only the rows in sight, so length costs nothing.

Items come from above (`show`), what the user does goes up as `Moved` and `Opened`. The cursor stays on its item,
found by key, while the list changes around it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from tui.text import cut

T = TypeVar("T")
KINDS = ("title", "text", "muted", "accent", "good", "warn", "bad", "alarm", "cursor", "cursor-far")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `width` cells; with `grow`, also that share of the cells left over. `right` aligns numbers."""

    title: str
    width: int
    grow: int = 0
    right: bool = False


Cell = tuple[str, str]
"""(text, kind): plain text on one line and one of KINDS."""


@dataclass(frozen=True, slots=True)
class Shape(Generic[T]):
    """How items become rows. `empty` is what an empty list says."""

    columns: tuple[Column, ...]
    key: Callable[[T], str]
    cells: Callable[[T], tuple[Cell, ...]]
    empty: str = "Nothing here yet."


class Listing(ScrollView, Generic[T], can_focus=True):
    """The list. `items` and `filter_text` in; `current` is the item under the cursor."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"listing--{kind}" for kind in KINDS}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "move(1)", "Down", show=False),
        Binding("k,up", "move(-1)", "Up", show=False),
        Binding("g,home", "go(False)", "First", show=False),
        Binding("G,end", "go(True)", "Last", show=False),
        Binding("space", "mark", "Mark", show=False),
        Binding("pagedown,ctrl+d", "page(1)", "Page down", show=False),
        Binding("pageup,ctrl+u", "page(-1)", "Page up", show=False),
    ]

    class Moved(Message):
        """The user moved the cursor."""

        def __init__(self, listing: Listing[Any]) -> None:
            super().__init__()
            self.listing = listing

        @property
        def control(self) -> Listing[Any]:
            """The list, for `@on(..., "#id")`."""
            return self.listing

    class Opened(Moved):
        """Enter, or a click on the row under the cursor."""

    def __init__(self, shape: Shape[T], id: str) -> None:
        super().__init__(id=id)
        self._shape = shape
        self._all: Sequence[T] = ()
        self._items: Sequence[T] = ()
        self._is_told = False
        self._filter = ""
        self._cursor = 0
        self._marked: set[str] = set()
        self.is_following = False

    # ------------------------------------------------------------------ state in

    def show(self, items: Sequence[T]) -> None:
        """Draws these items; the cursor stays on its item, or on the last one when following."""
        self._all, self._is_told = items, True
        self._refilter()

    def filter(self, text: str) -> None:
        """Shows only rows that contain every word of `text`."""
        self._filter = text.lower()
        self._refilter()

    @property
    def current(self) -> T | None:
        """The item under the cursor."""
        return self._items[self._cursor] if self._items else None

    @property
    def chosen(self) -> list[str]:
        """Keys of the marked items in the order of the list; without marks, the key of the item under the cursor."""
        keys = [self._shape.key(item) for item in self._all]
        marked = [key for key in keys if key in self._marked]
        return marked or ([self._shape.key(self.current)] if self.current is not None else [])

    @property
    def num_marked(self) -> int:
        """Items that are marked and still there."""
        return len(self._marked & {self._shape.key(item) for item in self._all}) if self._marked else 0

    def unmark(self) -> None:
        """Takes all marks away."""
        self._marked.clear()
        self.refresh()

    @property
    def num_shown(self) -> int:
        """Rows that pass the filter."""
        return len(self._items)

    @property
    def is_at_end(self) -> bool:
        """Whether the cursor is on the last row."""
        return self._cursor >= len(self._items) - 1

    def _refilter(self) -> None:
        key = self._shape.key(self.current) if self.current is not None else None
        words = self._filter.split()
        self._items = [i for i in self._all if self._matches(i, words)] if words else self._all
        place = next((n for n, i in enumerate(self._items) if self._shape.key(i) == key), None)
        last = max(0, len(self._items) - 1)
        self._cursor = last if self.is_following else min(self._cursor, last) if place is None else place
        self._resize()

    def _matches(self, item: T, words: list[str]) -> bool:
        text = " ".join(cell for cell, _ in self._shape.cells(item)).lower()
        return all(word in text for word in words)

    def _resize(self) -> None:
        self.virtual_size = Size(self.size.width, len(self._items) + 1)
        self._keep_in_sight()
        self.refresh()

    def on_resize(self, event: events.Resize) -> None:
        """Keeps the cursor in sight in the new size."""
        self._resize()

    def _keep_in_sight(self) -> None:
        room = max(1, self.size.height - 1)
        top = round(self.scroll_offset.y)
        if self._cursor < top:
            top = self._cursor
        elif self._cursor >= top + room:
            top = self._cursor - room + 1
        top = max(0, min(top, len(self._items) - room))
        self.scroll_to(0, top, animate=False, force=True, immediate=True)

    # ------------------------------------------------------------------ keys

    def action_move(self, rows: int) -> None:
        """Moves the cursor."""
        self.put_cursor(self._cursor + rows)

    def action_page(self, pages: int) -> None:
        """Moves the cursor by what is in sight."""
        self.put_cursor(self._cursor + pages * max(1, self.size.height - 2))

    def action_go(self, last: bool) -> None:
        """Moves the cursor to one end."""
        self.put_cursor(len(self._items) - 1 if last else 0)

    def action_mark(self) -> None:
        """Marks the item under the cursor, or takes its mark away, and goes down."""
        if self.current is not None:
            self._marked ^= {self._shape.key(self.current)}
            self.action_move(1)

    def action_open(self) -> None:
        """Tells the view that the item was chosen."""
        if self._items:
            self.post_message(self.Opened(self))

    def put_cursor(self, row: int) -> None:
        """Puts the cursor on a row, or the nearest there is."""
        self._cursor = max(0, min(row, len(self._items) - 1))
        self._keep_in_sight()
        self.refresh()
        self.post_message(self.Moved(self))

    def on_click(self, event: events.Click) -> None:
        """A first click moves the cursor, a click on the cursor opens."""
        row = event.y - 1 + round(self.scroll_offset.y)
        if event.y < 1 or row >= len(self._items):
            return
        if row == self._cursor:
            self.action_open()
        else:
            self.put_cursor(row)

    # ------------------------------------------------------------------ drawing

    def render_line(self, y: int) -> Strip:
        """The header on the first line, rows below it."""
        width = self.scrollable_content_region.width
        base = self.rich_style
        if y == 0:
            cells = tuple((c.title, "title") for c in self._shape.columns)
            return self._strip(cells, width, base)
        row = y - 1 + round(self.scroll_offset.y)
        if row < len(self._items):
            at_cursor = row == self._cursor
            style = base
            if at_cursor:
                style = self.get_component_rich_style("listing--cursor" if self.has_focus else "listing--cursor-far")
            item = self._items[row]
            sign = "◆" if self._shape.key(item) in self._marked else "▎" if at_cursor else " "
            return self._strip(self._shape.cells(item), width, style, sign)
        if self._is_told and not self._items and 2 <= y < 2 + len(self._shape.empty.split("\n")):
            text = "Nothing matches the filter." if self._filter and self._all else self._shape.empty
            lines = [*text.split("\n"), "", "", "", "", "", ""]
            muted = base + self.get_component_rich_style("listing--muted", partial=True)
            return Strip([Segment(cut(f" {lines[y - 2]}", width), muted)], width)
        return Strip.blank(width, base)

    def _strip(self, cells: Sequence[Cell], width: int, base: Style, sign: str = " ") -> Strip:
        segments = [Segment(sign, base)]
        used = 1
        gap_cells, widths = self._widths(width)
        for column, (text, kind), cells_wide in zip(self._shape.columns, cells, widths, strict=True):
            style = base + self.get_component_rich_style(f"listing--{kind}", partial=True)
            gap = gap_cells if used > 1 else 0
            segments += [Segment(" " * gap, base), Segment(cut(text, cells_wide, column.right), style)]
            used += gap + cells_wide
        segments.append(Segment(" " * max(0, width - used), base))
        return Strip(segments).crop(0, width)

    def _widths(self, width: int) -> tuple[int, list[int]]:
        """(cells between columns, cells of each): the gap closes first; what rounding leaves goes to the first."""
        columns = self._shape.columns
        room = width - 2 - sum(c.width for c in columns)
        wanted = sum(c.grow > 0 for c in columns) * 8
        gap = 2 if room >= 2 * (len(columns) - 1) + wanted else 1
        left = max(0, room - gap * (len(columns) - 1))
        shares = sum(c.grow for c in columns)
        added = [left * c.grow // shares if shares else 0 for c in columns]
        if shares:
            added[next(n for n, c in enumerate(columns) if c.grow)] += left - sum(added)
        return gap, [c.width + more for c, more in zip(columns, added, strict=True)]
