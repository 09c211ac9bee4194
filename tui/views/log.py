"""View 4: what the parts of Corral said, newest last; follows the end until frozen."""

from __future__ import annotations

import time

from textual import on
from textual.app import ComposeResult
from textual.widget import Widget
from textual.widgets import Static

from tui.pages.log import moment
from tui.pages.snapshot import EventLine, Snapshot
from tui.text import LEVEL_LOOKS, plain_line
from tui.views.view import LookWanted, View
from tui.widgets.dialogs import Ask
from tui.widgets.table import Cell, Column, Listing, Shape

COLUMNS = (Column("Time", 8), Column("Level", 9), Column("Part", 10), Column("Message", 20, grow=1))
LEVELS = ("", "info", "warning", "error")
RANK = {"debug": 0, "info": 1, "warning": 2, "error": 3}


class LogView(View):
    """The list of events. `f` follows or freezes, `l` raises the level shown, `p` picks one part."""

    BINDINGS = [  # noqa: RUF012
        ("f", "freeze", "Follow/freeze"),
        ("l", "level", "Level"),
        ("p", "part", "Part"),
        ("t", "jump", "Time"),
    ]

    def compose_body(self) -> ComposeResult:
        """The list above, the whole message of one event below."""
        shape = Shape(COLUMNS, lambda event: str(event.id), _cells, "Nothing has been said yet.")
        yield Listing(shape, id="log-list")
        yield Static(id="event-details", classes="details", markup=False)

    def on_mount(self) -> None:
        """Follows the end from the start."""
        self._snapshot = Snapshot()
        self._level = ""
        self._part = ""
        self._frozen: tuple[EventLine, ...] | None = None
        self._at: float | None = None
        self._list.is_following = True

    @property
    def focus_target(self) -> Widget:
        """The list."""
        return self._list

    @property
    def _list(self) -> Listing[EventLine]:
        return self.query_one("#log-list", Listing)

    def show(self, snapshot: Snapshot) -> None:
        """Draws the newest events, or keeps what was there when frozen."""
        if snapshot.run != self._snapshot.run and (snapshot.run is None or self._run_changed(snapshot)):
            self._frozen = None
        self._snapshot = snapshot
        at = snapshot.wanted.log_at
        if at is not None:
            self._frozen = snapshot.events
        self._list.is_following = self._frozen is None
        everything = snapshot.events if self._frozen is None else self._frozen
        least = RANK.get(self._level, 0)
        shown = [
            e for e in everything if RANK.get(e.level, 3) >= least and (not self._part or e.part == self._part)
        ]  # fmt: skip
        self._list.show(shown)
        if at is not None and at != self._at:
            self._list.put_cursor(next((n for n, e in enumerate(shown) if e.at >= at), len(shown)))
        self._at = at
        mode = ("● following", "$success") if self._frozen is None else ("■ frozen", "$warning")
        if at is not None:
            mode = (f"■ from {time.strftime('%d %b %H:%M:%S', time.localtime(at))} (f follows)", "$warning")
        self.say(
            (f"{self._list.num_shown} events   ", "bold"),
            mode,
            (f"   level {self._level or 'all'}   part {self._part or 'all'}", "$muted"),
        )
        self._detail()

    def _run_changed(self, snapshot: Snapshot) -> bool:
        old, new = self._snapshot.run, snapshot.run
        return old is None or new is None or old.id != new.id

    def filter(self, text: str) -> None:
        """Filters by time, level, part and message."""
        self.filter_text = text
        self._list.filter(text)
        self.show(self._snapshot)

    def copied(self) -> str:
        """The event's rollout, or its message."""
        event = self._list.current
        if event is None:
            return ""
        return str(event.rollout_id) if event.rollout_id is not None else event.message

    def action_jump(self) -> None:
        """Asks for a time and goes there."""
        text = "A time (14:05 or 14:05:30), how long ago (10m, 2h), or a date and time"
        self.app.push_screen(Ask("Go to a time", text), self._jump)

    def _jump(self, typed: str | None) -> None:
        if not typed:
            return
        try:
            at = moment(typed, self._snapshot.now)
        except ValueError:
            self.notify(
                f"{plain_line(typed)}: not a time; for example 14:05, 10m or 2h", severity="warning", markup=False
            )
            return
        self._at = None
        self.post_message(LookWanted(log_at=at))

    def action_freeze(self) -> None:
        """Stops or follows."""
        if self._at is not None:
            self._frozen = None
            self.post_message(LookWanted(log_at=None))
            return
        self._frozen = self._snapshot.events if self._frozen is None else None
        self.show(self._snapshot)

    def action_level(self) -> None:
        """Shows all, then info and above, warnings and above, errors only."""
        self._level = LEVELS[(LEVELS.index(self._level) + 1) % len(LEVELS)]
        self.show(self._snapshot)

    def action_part(self) -> None:
        """Shows the next part alone, then all again."""
        parts = ["", *sorted({event.part for event in self._snapshot.events})]
        self._part = parts[(parts.index(self._part) + 1) % len(parts)] if self._part in parts else ""
        self.show(self._snapshot)

    @on(Listing.Moved, "#log-list")
    def _moved(self) -> None:
        at_end = self._list.current is not None and self._list.is_at_end
        if self._frozen is None and not at_end:
            self.action_freeze()
        self._detail()

    def _detail(self) -> None:
        event = self._list.current
        self.query_one("#event-details", Static).update(event.message if event else "", layout=False)


def _cells(event: EventLine) -> tuple[Cell, ...]:
    glyph, kind = LEVEL_LOOKS.get(event.level, LEVEL_LOOKS["error"])
    return (
        (time.strftime("%H:%M:%S", time.localtime(event.at)), "muted"),
        (f"{glyph} {event.level}", kind),
        (event.part, "accent"),
        (" ".join(event.message.split("\n")), "bad" if event.level == "error" else "text"),
    )
