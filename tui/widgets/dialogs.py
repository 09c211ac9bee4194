"""What lies over the views: help, a question, the filter line, and what is said when there is nothing to show."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

KEYS: tuple[tuple[str, str], ...] = (
    ("1 – 9", "the views; the line on top says which one is in front"),
    (":", "any view or act by name, further views too"),
    ("j k  g G", "down and up, first and last (also arrows, Home, End)"),
    ("enter esc", "open what the cursor is on; clear, then go back"),
    ("/", "filter a list; find in a text (enter: next place)"),
    ("space  y", "mark rows for an act; copy the id under the cursor"),
    ("f", "freeze the screen, or go on"),
    ("s", "stop the run: what is under way ends first"),
    ("x r u o", "in Rollouts: kill, retry, its group, its output; in Runs: r, n"),
    ("n p e x r", "in Calls: next, previous; all, only what is new; raw bytes"),
    ("o Y", "in Calls, Tree: open the text in $EDITOR, copy it"),
    ("n p  c b", "in Tree: next fork; colours; two branches; ← → tokens"),
    ("m e v", "in Curve: next metric; smoothing; logarithms; ← → points"),
    ("l p t", "in Log: level, part, go to a time; in Sandboxes l: log"),
    ("q", "leave; the run goes on"),
)
LEGEND = "▲ slow: quiet for a quarter of its time limit;  ! hung: for half"


class Help(ModalScreen[None]):
    """Every key; any of esc, ?, q and enter closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape,question_mark,q,enter", "close", "Close"),
    ]

    def compose(self) -> ComposeResult:
        """A table of keys."""
        lines = [Content.assemble((f"{keys:<11}", "bold $accent"), text) for keys, text in KEYS]
        with Vertical(classes="dialog") as box:
            box.border_title = "Keys"
            yield Static(Content("\n").join(lines), markup=False)
            yield Static(f"\n{LEGEND}", classes="quiet", markup=False)

    def action_close(self) -> None:
        """Back to the views."""
        self.dismiss()


class Confirm(ModalScreen[bool]):
    """A question answered by y or n; everything else means no."""

    BINDINGS: ClassVar[list[BindingType]] = [("y", "answer(True)", "Yes"), ("n,escape,q", "answer(False)", "No")]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        """The question and its two keys."""
        keys = Content.assemble(("y", "bold $accent"), " yes     ", ("n", "bold $accent"), " no")
        with Vertical(classes="dialog") as box:
            box.border_title = self._title
            yield Static(self._text, markup=False)
            yield Static(Content("\n") + keys, markup=False)

    def action_answer(self, yes: bool) -> None:
        """Closes with the answer."""
        self.dismiss(yes)


class Ask(ModalScreen[str | None]):
    """One line to type; esc gives None."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "close", "Close")]

    def __init__(self, title: str, text: str, suggestion: str = "") -> None:
        super().__init__()
        self._title = title
        self._text = text
        self._suggestion = suggestion

    def compose(self) -> ComposeResult:
        """What is asked, the line, and how to leave it."""
        with Vertical(classes="dialog") as box:
            box.border_title = self._title
            yield Static(self._text, markup=False)
            yield Input(self._suggestion, id="ask-line", compact=True)
            yield Static("\nenter does it     esc leaves it", classes="quiet", markup=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Closes with what was typed."""
        event.stop()
        self.dismiss(event.value)

    def action_close(self) -> None:
        """Closes with nothing."""
        self.dismiss(None)


class FilterLine(Input):
    """The line that `/` opens; what it holds is applied while typing, and `done` is called with it on Enter."""

    def __init__(self, done: Callable[[str], None]) -> None:
        super().__init__(id="filter", placeholder="filter: words that must all be in a row", compact=True)
        self._done = done
        self.display = False  # set here and not by a class: a style is applied later, and keys come at once

    async def action_submit(self) -> None:
        """Done at once, not by a message; a second Enter that came in the same moment was for the row below."""
        if self.display:
            self._done(self.value)
        else:
            self.app.simulate_key("enter")


class Notice(Static):
    """Shown instead of the views: the first run, or a record that cannot be read."""

    def __init__(self) -> None:
        super().__init__(id="notice", markup=False)

    def first_run(self, home: str, can_start: bool, is_starting: bool) -> None:
        """Says how to begin."""
        start: list[Content | str | tuple[str, str]] = [("corral demo", "bold $accent"), "   in a shell"]
        if can_start:
            start = ["press ", ("d", "bold $accent"), ", or type ", ("corral demo", "bold $accent"), " in a shell"]
        if is_starting:
            start = [("● starting the demo …", "$success"), "  this screen changes by itself"]
        self.update(
            Content.assemble(
                ("Nothing has been trained here yet.\n\n", "bold"),
                "The demo trains a small policy inside two real agent harnesses, on this\n",
                "machine alone, and shows here how its reward rises.\n\n  ",
                *start,
                (f"\n\nLooking for a record in {home}", "$muted"),
            )
        )

    def trouble(self, what: str, remedy: str) -> None:
        """Says what is wrong and what to do; goes away by itself when it is mended."""
        self.update(
            Content.assemble(
                ("✗ The record cannot be read\n\n", "bold $error"),
                (what + "\n\n", ""),
                ("→ " + remedy if remedy else "", "$accent"),
                ("\n\nLooking again every second.", "$muted"),
            )
        )
