"""A long text with styled lines, folded to the width; scrolls with the keys of a pager and finds words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from tui.text import cut, fold

KINDS = ("text", "muted", "system", "user", "assistant", "tool", "bad", "found")
Paragraph = tuple[str, str]
"""(plain text of any length, one of KINDS)."""


class Pager(ScrollView, can_focus=True):
    """The text. `show` replaces it and goes to its top, unless it is the same text again."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"pager--{kind}" for kind in KINDS}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "roll(1)", "Down", show=False),
        Binding("k,up", "roll(-1)", "Up", show=False),
        Binding("g,home", "go(False)", "Top", show=False),
        Binding("G,end", "go(True)", "End", show=False),
        Binding("space,pagedown,ctrl+d", "page(1)", "Page down", show=False),
        Binding("pageup,ctrl+u", "page(-1)", "Page up", show=False),
    ]

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self._paragraphs: Sequence[Paragraph] = ()
        self._lines: list[Paragraph] = []
        self._found = ""

    def show(self, paragraphs: Sequence[Paragraph]) -> None:
        """Draws these paragraphs."""
        if tuple(paragraphs) == tuple(self._paragraphs):
            return
        self._paragraphs = tuple(paragraphs)
        self._fold()
        self.scroll_to(0, 0, animate=False, immediate=True)

    def find(self, text: str, again: bool = False) -> None:
        """Marks lines that contain `text` and rolls to the first one in or below sight (`again`: below)."""
        self._found = text.lower()
        top = round(self.scroll_offset.y) + int(again)
        places = [n for n, (line, _) in enumerate(self._lines) if self._found and self._found in line.lower()]
        if places:
            self.scroll_to(0, next((n for n in places if n >= top), places[0]), animate=False, immediate=True)
        self.refresh()

    def _fold(self) -> None:
        width = max(20, self.scrollable_content_region.width - 2)
        self._lines = [(line, kind) for text, kind in self._paragraphs for line in fold(text, width)]
        self.virtual_size = Size(self.size.width, len(self._lines))
        self.refresh()

    def on_resize(self, event: events.Resize) -> None:
        """Folds anew."""
        self._fold()

    def action_roll(self, lines: int) -> None:
        """Scrolls by lines."""
        self.scroll_relative(y=lines, animate=False, immediate=True)

    def action_page(self, pages: int) -> None:
        """Scrolls by what is in sight."""
        self.scroll_relative(y=pages * max(1, self.size.height - 2), animate=False, immediate=True)

    def action_go(self, last: bool) -> None:
        """Scrolls to one end."""
        self.scroll_to(0, len(self._lines) if last else 0, animate=False, immediate=True)

    def render_line(self, y: int) -> Strip:
        """One folded line."""
        width = self.scrollable_content_region.width
        place = y + round(self.scroll_offset.y)
        if place >= len(self._lines):
            return Strip.blank(width, self.rich_style)
        text, kind = self._lines[place]
        style = self.rich_style + self.get_component_rich_style(f"pager--{kind}", partial=True)
        if self._found and self._found in text.lower():
            style += self.get_component_rich_style("pager--found", partial=True)
        return Strip([Segment(cut(f" {text}", width), style)], width)
