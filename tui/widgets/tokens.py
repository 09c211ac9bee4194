"""Tokens with their likelihood as colour and as dress: what was unlikely is underlined, so it reads without colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from tui.pages.tree import TokenText
from tui.text import cut

KINDS = ("prompt", "likely", "fair", "unlikely", "rare", "raised", "lowered", "unmoved", "picked")
LIKELY, FAIR, UNLIKELY = 0.8, 0.4, 0.1
"""Probabilities from which a token is called so."""
Piece = tuple[str, str]
"""(text without line ends, one of KINDS)."""


def kind_by_logprob(token: TokenText) -> str:
    """How likely the policy found it."""
    if token.logprob is None:
        return "prompt"
    probability = math.exp(min(0.0, token.logprob))
    steps = ((LIKELY, "likely"), (FAIR, "fair"), (UNLIKELY, "unlikely"))
    return next((kind for least, kind in steps if probability >= least), "rare")


def kind_by_advantage(token: TokenText, advantage: float | None) -> str:
    """What training does to it: every sampled token of a rollout carries the rollout's advantage."""
    if token.logprob is None:
        return "prompt"
    if not advantage:
        return "unmoved"
    return "raised" if advantage > 0 else "lowered"


def lines_of(pieces: Sequence[Piece], width: int) -> list[list[Piece]]:
    """Pieces laid out in lines of at most `width` cells; line ends inside a token are drawn as ↵ and kept."""
    lines: list[list[Piece]] = [[]]
    used = 0
    for text, kind in pieces:
        parts = text.split("\n")
        for number, part in enumerate(parts):
            shown = part + ("↵" if number < len(parts) - 1 else "")
            while shown:
                head = _head(shown, width - used)
                if not head:
                    lines.append([])
                    used = 0
                    continue
                lines[-1].append((head, kind))
                used += cell_len(head)
                shown = shown[len(head) :]
            if number < len(parts) - 1:
                lines.append([])
                used = 0
    return lines


def _head(text: str, width: int) -> str:
    """The longest start of `text` that has at most `width` cells; at least one character at the start of a line."""
    if cell_len(text) <= width:
        return text
    used = 0
    for place, char in enumerate(text):
        used += cell_len(char)
        if used > width:
            return text[:place]
    return text


class TokenPager(ScrollView, can_focus=True):
    """The tokens of a node. `show` replaces title and pieces."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"tokens--{kind}" for kind in (*KINDS, "title")}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "roll(1)", "Down", show=False),
        Binding("k,up", "roll(-1)", "Up", show=False),
        Binding("space,pagedown,ctrl+d", "roll(10)", "Page down", show=False),
        Binding("pageup,ctrl+u", "roll(-10)", "Page up", show=False),
    ]

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self._title = ""
        self._pieces: tuple[Piece, ...] = ()
        self._lines: list[list[Piece]] = []

    def show(self, title: str, pieces: Sequence[Piece]) -> None:
        """Draws these; the same again stays where it was scrolled to."""
        if (title, tuple(pieces)) == (self._title, self._pieces):
            return
        is_other = title != self._title or [text for text, _ in pieces] != [text for text, _ in self._pieces]
        self._title, self._pieces = title, tuple(pieces)
        self._lay_out()
        if is_other:
            self.scroll_to(0, 0, animate=False, immediate=True)
        self._bring_into_sight()

    def _bring_into_sight(self) -> None:
        """Rolls to the picked token where it is out of sight."""
        place = next((n for n, line in enumerate(self._lines) if any(kind == "picked" for _, kind in line)), None)
        top, height = round(self.scroll_offset.y), max(1, self.size.height - 1)
        if place is not None and not top <= place < top + height:
            self.scroll_to(0, max(0, place - height // 2), animate=False, immediate=True)

    def _lay_out(self) -> None:
        width = max(8, self.scrollable_content_region.width - 2)
        self._lines = lines_of(self._pieces, width)
        self.virtual_size = Size(self.size.width, len(self._lines) + 1)
        self.refresh()

    def on_resize(self, event: events.Resize) -> None:
        """Lays out anew."""
        self._lay_out()

    def action_roll(self, lines: int) -> None:
        """Scrolls by lines."""
        self.scroll_relative(y=lines, animate=False, immediate=True)

    def render_line(self, y: int) -> Strip:
        """The title, then one laid out line."""
        width = self.scrollable_content_region.width
        place = y + round(self.scroll_offset.y) - 1
        if y == 0:
            style = self.rich_style + self.get_component_rich_style("tokens--title", partial=True)
            return Strip([Segment(cut(f" {self._title}", width), style)], width)
        if not 0 <= place < len(self._lines):
            return Strip.blank(width, self.rich_style)
        segments = [Segment(" ", self.rich_style)]
        for text, kind in self._lines[place]:
            style = self.rich_style + self.get_component_rich_style(f"tokens--{kind}", partial=True)
            segments.append(Segment(text, style))
        return Strip(segments).adjust_cell_length(width, self.rich_style)
