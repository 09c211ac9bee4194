"""The palette that `:` opens: every view and every act by its name; type a few letters, enter goes there or does it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input

from tui.widgets.table import Column, Listing, Shape

COLUMNS = (Column("", 18), Column("", 20, grow=1), Column("", 4))


@dataclass(frozen=True, slots=True)
class Entry:
    """Something to choose. `kind`: `view` or `act`; `key` is the key that does the same, where there is one."""

    kind: str
    name: str
    text: str
    key: str = ""


def best_first(entries: Sequence[Entry], typed: str) -> list[Entry]:
    """Entries that hold every typed word in name or text; first the name itself, names that begin so, that hold it."""
    words = typed.lower().split()
    found = [e for e in entries if all(word in f"{e.name} {e.text}".lower() for word in words)]
    if not words:
        return found
    whole = " ".join(words)
    return sorted(found, key=lambda e: (e.name != whole, not e.name.startswith(whole), words[0] not in e.name))


class Palette(ModalScreen[Entry | None]):
    """A line to type into and what fits it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "choose(False)", "Close"),
        Binding("enter", "choose(True)", "Choose", priority=True),
        Binding("down,ctrl+n", "move(1)", "Down", priority=True),
        Binding("up,ctrl+p", "move(-1)", "Up", priority=True),
    ]

    def __init__(self, entries: Sequence[Entry]) -> None:
        super().__init__()
        self._entries = entries

    def compose(self) -> ComposeResult:
        """The line, then the list."""
        shape = Shape(COLUMNS, lambda e: f"{e.kind}/{e.name}", _cells, "Nothing is called so.")
        with Vertical(classes="dialog palette") as box:
            box.border_title = "Go to, or do"
            yield Input(id="palette-line", placeholder="a view or an act", compact=True)
            yield Listing(shape, id="palette-list")

    def on_mount(self) -> None:
        """Everything, before anything is typed."""
        self.query_one("#palette-list", Listing).show(list(self._entries))
        self.query_one("#palette-line", Input).focus()

    @on(Input.Changed, "#palette-line")
    def _typed(self, event: Input.Changed) -> None:
        listing = self.query_one("#palette-list", Listing)
        listing.show(best_first(self._entries, event.value))
        listing.put_cursor(0)

    @on(Listing.Opened, "#palette-list")
    def _clicked(self) -> None:
        self.action_choose(True)

    def action_move(self, rows: int) -> None:
        """Moves the cursor while the line keeps the keys."""
        self.query_one("#palette-list", Listing).action_move(rows)

    def action_choose(self, yes: bool) -> None:
        """Closes with what the cursor is on, or with nothing."""
        self.dismiss(self.query_one("#palette-list", Listing).current if yes else None)


def _cells(entry: Entry) -> tuple[tuple[str, str], ...]:
    glyph = "→" if entry.kind == "view" else "▸"
    return (f"{glyph} {entry.name}", "text" if entry.kind == "view" else "accent"), (entry.text, "muted"), (
        entry.key, "muted")  # fmt: skip
