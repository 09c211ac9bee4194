"""The terminal UI: views over the record and the machine. State comes down as snapshots from one poller, messages come
up, and only the App writes: commands for the supervisor. Leaving it never touches a run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from textual import on, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import ContentSwitcher, Footer, Input, Static

from appliance.errors import ApplianceError
from tui.action_runner import Actor, InTerminal, lost_now
from tui.actions import ACTS
from tui.appearance import read_preferences
from tui.header import header, too_small
from tui.navigation import BY_NAME, PLACES, load
from tui.pages.snapshot import Snapshot
from tui.poller import Poller
from tui.theme import MONO, MUTED, THEME
from tui.views.view import ActWanted, LookWanted, PageWanted, TextWanted, View
from tui.widgets.dialogs import FilterLine, Help, Notice
from tui.widgets.palette import Entry, Palette


class CorralApp(App[None]):
    """The application. `start_demo` is called, off the screen's thread, when the user asks for the demo."""

    CSS_PATH = "app.tcss"
    TITLE = "corral"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(p.key, f"tab('{p.name}')", p.title, show=False, id=p.name) for p in PLACES if p.key),
        Binding("colon", "palette", "Go", key_display=":", id="palette"),
        Binding("slash", "filter", "Filter", key_display="/", id="filter"),
        Binding("y", "copy_id", "Copy", id="copy"),
        Binding("f", "freeze", "Freeze", show=False, id="freeze"),
        Binding("d", "demo", "Start the demo", id="demo"),
        Binding("s", "act('stop')", "Stop", id="stop"),
        Binding("escape", "back", "Back", show=False, id="back"),
        Binding("question_mark", "help", "Help", key_display="?", id="help"),
        Binding("q", "quit", "Leave", id="quit"),
        Binding("ctrl+c", "quit", "Leave", show=False, priority=True),
    ]

    def __init__(
        self,
        home: Path,
        readonly: bool = False,
        start_demo: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.time,
        in_terminal: InTerminal | None = None,
    ) -> None:
        super().__init__()
        self.animation_level = "none"
        self.register_theme(THEME)
        self.register_theme(MONO)
        self.home = home
        self.readonly = readonly
        self.snapshot = Snapshot()
        self._start_demo = start_demo
        self._is_starting = False
        self._poller = Poller(self, home, clock, self._took)
        self._actor = Actor(self, home, in_terminal)
        actions = [b.id for b in self.BINDINGS if isinstance(b, Binding) and b.id]
        self._preferences = read_preferences(home, self.available_themes, actions)
        self.theme = self._preferences.theme

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Colours that every theme needs; a theme may set its own."""
        return {"muted": MUTED}

    # ------------------------------------------------------------------ the poller and what it feeds

    def compose(self) -> ComposeResult:
        """Tabs, a view or a notice, the filter line, the keys."""
        yield Static(id="tabs", markup=False)
        yield Notice()
        with ContentSwitcher(initial="runs", id="views"):
            yield PLACES[0].build()  # the others are made when they are first looked at
        yield FilterLine(self._filter_done)
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        """Takes the user's keys and starts the poller."""
        self.set_keymap(self._preferences.keys)
        for problem in self._preferences.problems:
            self.notify(problem, severity="warning", timeout=15, markup=False)
        self._view.focus_target.focus()
        self._poll()

    @work(exclusive=True)
    async def _poll(self) -> None:
        await self._poller.once()
        await asyncio.to_thread(load)  # the first screen is there: now the other views' modules
        await self._poller.run()

    async def poll_once(self) -> None:
        """Reads the record off the screen's thread and draws what it says."""
        await self._poller.once()

    @property
    def is_reading(self) -> bool:
        """Whether the view in front still waits for what it shows of the machine."""
        return self._poller.is_reading

    def close(self) -> None:
        """Closes the record; for after the App has ended."""
        self._poller.close()

    @property
    def _view_name(self) -> str:
        return self.screen_stack[0].query_one("#views", ContentSwitcher).current or "runs"

    @property
    def _view(self) -> View:
        return self.screen_stack[0].query_one(f"#{self._view_name}", View)

    @property
    def has_record(self) -> bool:
        """Whether there is a run to show."""
        return bool(self.snapshot.runs) and self.snapshot.problem is None

    def _took(self, snapshot: Snapshot) -> None:
        before, self.snapshot = self.snapshot, snapshot
        self._draw()
        if lost_now(before, snapshot):
            self._actor.offer_resume(snapshot, self.readonly)

    def _draw(self) -> None:
        if not self.is_running:
            return
        notice, snapshot = self.screen_stack[0].query_one(Notice), self.snapshot
        if snapshot.problem:
            notice.trouble(*snapshot.problem)
        elif not snapshot.runs:
            notice.first_run(snapshot.home, self._can_start, self._is_starting)
        self.screen_stack[0].set_class(not self.has_record, "-no-record")
        if self.has_record:
            self._view.show(snapshot)
        self._draw_tabs()
        self.refresh_bindings()

    def _draw_tabs(self) -> None:
        base = self.screen_stack[0]
        marks = [("read-only", "$warning")] if self.readonly else []
        marks += [("! record locked", "$error")] if self.snapshot.is_locked else []
        marks += [("■ frozen (f goes on)", "$warning")] if self._poller.is_frozen else []
        line = header(self._view_name, self.snapshot.run, self.size.width, marks, self.has_record)
        line = too_small(self.size.width, self.size.height) or line
        base.query_one("#tabs", Static).update(line, layout=False)

    # ------------------------------------------------------------------ messages from the views

    @on(LookWanted)
    async def _look_wanted(self, message: LookWanted) -> None:
        self._poller.look_at(replace(self._poller.wanted, **message.changes))
        if message.view:
            await self.action_tab(message.view)

    @on(PageWanted)
    def _page_wanted(self, message: PageWanted) -> None:
        self._poller.read_again(message.view)

    @on(TextWanted)
    def _text_wanted(self, message: TextWanted) -> None:
        self._actor.read(message.title, message.read)

    @on(ActWanted)
    def _act_wanted(self, message: ActWanted) -> None:
        self._actor.act(message.act, message.argument, self.snapshot, self.readonly)

    # ------------------------------------------------------------------ keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hides the keys that can do nothing now."""
        if action == "demo":
            return self._can_start and not self.has_record
        if action == "act":
            return self.has_record and not self.readonly
        if action in ("tab", "filter", "copy_id", "back", "freeze"):
            return self.has_record
        return True

    @property
    def _can_start(self) -> bool:
        return self._start_demo is not None and not self.readonly and self.snapshot.problem is None

    async def action_tab(self, name: str) -> None:
        """Shows a view."""
        self._end_filter(keep=True)
        switcher = self.query_one("#views", ContentSwitcher)
        if not switcher.query(f"#{name}"):
            await switcher.mount(BY_NAME[name].build())
        switcher.current = name
        is_read = name == self._poller.wanted.view
        self._poller.look_at(replace(self._poller.wanted, view=name))
        if is_read:
            self._view.show(self.snapshot)
        self.screen.set_focus(self._view.focus_target)  # now, not by a message: the next key is already for the view
        self._draw_tabs()

    async def action_back(self) -> None:
        """Clears the filter, then what the view has marked, then goes one view up."""
        if self._view.filter_text:
            self._end_filter(keep=False)
        elif not self._view.clear() and BY_NAME[self._view_name].back:
            await self.action_tab(BY_NAME[self._view_name].back)

    def action_freeze(self) -> None:
        """Keeps the screen as it is while the record goes on, or goes on."""
        self._poller.freeze()
        self._draw_tabs()

    def action_palette(self) -> None:
        """Opens the palette."""
        entries = [Entry("view", p.name, p.text, p.key) for p in PLACES] if self.has_record else []
        entries += [] if self.readonly else [Entry("act", act.name, act.text, act.key) for act in ACTS]
        if not self.has_record:
            entries = [e for e in entries if e.name in ("start", "new run")]
        self.push_screen(Palette(entries), self._chosen)

    async def _chosen(self, entry: Entry | None) -> None:
        if entry is None:
            return
        if entry.kind == "view":
            await self.action_tab(entry.name)
        else:
            self.action_act(entry.name)

    def action_act(self, name: str) -> None:
        """Does something by its name, to the rollouts in front where it concerns rollouts."""
        has_rollout = self._view_name in ("rollouts", "calls", "tree") and name in ("kill", "retry")
        self._actor.act(name, self._view.copied() if has_rollout else "", self.snapshot, self.readonly)

    def action_filter(self) -> None:
        """Opens the filter line."""
        line = self.query_one(FilterLine)
        line.value = self._view.filter_text
        line.display = True
        self.screen.set_focus(line)

    @on(Input.Changed, "#filter")
    def _filter_changed(self, event: Input.Changed) -> None:
        if self.query_one(FilterLine).display:
            self._view.filter(event.value)

    def _filter_done(self, text: str) -> None:
        if text != self._view.filter_text:  # its last letter is not told yet
            self._view.filter(text)
        self._view.find_again()
        self._end_filter(keep=True)

    def _end_filter(self, keep: bool) -> None:
        line = self.query_one(FilterLine)
        line.display = False
        if not keep:
            self._view.filter("")
        self.screen.set_focus(self._view.focus_target)

    def action_copy_id(self) -> None:
        """Copies the id under the cursor to the clipboard of the terminal."""
        if text := self._view.copied():
            self.copy_to_clipboard(text)
            self.notify(f"copied {text[:60]}", timeout=2, markup=False)

    def action_help(self) -> None:
        """Shows the keys."""
        self.push_screen(Help())

    @work(exclusive=True, group="demo")
    async def action_demo(self) -> None:
        """Starts the demo."""
        if self._start_demo is None or self._is_starting:
            return
        self._is_starting = True
        self._draw()
        try:
            await asyncio.to_thread(self._start_demo)
        except ApplianceError as error:
            self._is_starting = False
            self.notify(f"the demo did not start: {error}", severity="error", timeout=20, markup=False)
        self._poller.wake()


def run(home: Path, readonly: bool, start_demo: Callable[[], None] | None = None) -> None:
    """Shows the terminal UI until the user leaves."""
    app = CorralApp(home, readonly, start_demo)
    try:
        app.run()
    finally:
        app.close()
