"""What the views have in common: a title line, state from above, a filter, and something to copy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Static

from tui.pages.snapshot import RolloutLine, RunLine, Snapshot
from tui.text import ROLLOUT_LOOKS, RUN_LOOKS

Span = tuple[str, str]
"""(plain text, style: a theme colour such as `$success`, or nothing)."""

COLOURS = {
    "title": "$muted",
    "text": "",
    "muted": "$muted",
    "accent": "$accent",
    "good": "$success",
    "warn": "$warning",
    "bad": "$error",
    "alarm": "bold reverse $error",
}


class LookWanted(Message):
    """The user wants to look at something else: fields of `Wanted` that change, and the view that comes up for it."""

    def __init__(self, view: str = "", **changes: Any) -> None:
        super().__init__()
        self.view = view
        self.changes = changes


class PageWanted(Message):
    """The user wants a view's page read again."""

    def __init__(self, view: str) -> None:
        super().__init__()
        self.view = view


class ActWanted(Message):
    """The user wants something done: the name of an act and what it is done to."""

    def __init__(self, act: str, argument: str = "") -> None:
        super().__init__()
        self.act = act
        self.argument = argument


class TextWanted(Message):
    """The user wants to read a text of its own: a title and how it is read of Corral's home, in a thread."""

    def __init__(self, title: str, read: Callable[[Path], str]) -> None:
        super().__init__()
        self.title = title
        self.read = read


class View(Vertical):
    """One of them. `show` is called with every snapshot; `focus_target` takes the keys when it comes up."""

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self.filter_text = ""

    def compose(self) -> ComposeResult:
        """A title above the view's own widgets."""
        yield Static(classes="view-title", markup=False)
        yield from self.compose_body()

    def compose_body(self) -> ComposeResult:
        """The view's own widgets."""
        raise NotImplementedError

    @property
    def focus_target(self) -> Widget:
        """The widget that takes the keys."""
        raise NotImplementedError

    def show(self, snapshot: Snapshot) -> None:
        """Draws a snapshot."""
        raise NotImplementedError

    def filter(self, text: str) -> None:
        """Shows what contains `text`."""
        raise NotImplementedError

    def find_again(self) -> None:
        """Enter in the filter line; nothing to do for lists."""

    def clear(self) -> bool:
        """What esc clears before it goes back, such as marks; whether there was something."""
        return False

    def copied(self) -> str:
        """The id that `y` copies; empty when there is none."""
        return ""

    def say(self, *spans: Span) -> None:
        """Writes the title line."""
        filtered: tuple[Span, ...] = ()
        if self.filter_text:
            filtered = (("   filter: ", "$muted"), (self.filter_text, "$accent"))
        self.query_one(".view-title", Static).update(Content.assemble(*spans, *filtered), layout=False)


def fields(*pairs: tuple[str, str]) -> Content:
    """`name value   name value` with quiet names; empty values are left out."""
    spans: list[Span] = []
    for name, value in pairs:
        if value:
            spans += [(f"{name} " if name else "", "$muted"), (f"{value}   ", "")]
    return Content.assemble(*spans)


def run_span(run: RunLine) -> Span:
    """Glyph and word of a run's state."""
    glyph, kind = RUN_LOOKS[run.word]
    return f"{glyph} {run.word}", COLOURS[kind]


def rollout_span(rollout: RolloutLine) -> Span:
    """Glyph and word of a rollout's state."""
    glyph, kind = ROLLOUT_LOOKS[rollout.state]
    return f"{glyph} {rollout.state}", COLOURS[kind]
