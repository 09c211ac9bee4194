"""A text of its own over the views: a sandbox's log, a rollout's output. Scrolls and finds as every text does."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from tui.widgets.pager import Pager


class TextScreen(ModalScreen[None]):
    """The text, with its end in front: what was written last is what one looks for."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "close", "Close"),
        Binding("slash", "find", "Find", key_display="/"),
        Binding("y", "copy", "Copy"),
    ]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        """Title and text, the line to find with, the keys."""
        with Vertical(classes="text-screen") as box:
            box.border_title = self._title
            yield Pager(id="text-screen-pager")
            yield Input(id="text-screen-find", placeholder="find", compact=True)
            yield Static("/ finds (enter: next place)   y copies it all   esc closes", classes="quiet", markup=False)

    def on_mount(self) -> None:
        """The text takes the keys."""
        self._line.display = False
        self._pager.show([(self._text, "text")])
        self._pager.focus()
        self.call_after_refresh(self._pager.action_go, True)

    @property
    def _pager(self) -> Pager:
        return self.query_one("#text-screen-pager", Pager)

    @property
    def _line(self) -> Input:
        return self.query_one("#text-screen-find", Input)

    def action_find(self) -> None:
        """Opens the line to find with."""
        self._line.display = True
        self.set_focus(self._line)  # now: `y` in the same moment does not copy

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        self._pager.find(event.value)

    @on(Input.Submitted)
    def _next(self, event: Input.Submitted) -> None:
        event.stop()
        self._pager.find(event.value, again=True)

    def action_copy(self) -> None:
        """Copies the whole text to the clipboard of the terminal."""
        self.app.copy_to_clipboard(self._text)
        self.notify("copied the text", timeout=2, markup=False)

    def action_close(self) -> None:
        """Leaves the line to find with, then the text."""
        if self._line.display and self._line.has_focus:
            self._line.display = False
            self.set_focus(self._pager)
        else:
            self.dismiss(None)
