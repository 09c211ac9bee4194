"""The terminal UI: five views over the record. State comes down as snapshots from one poller, messages come up, and
only the App writes: one command, `stop`. Leaving it never touches a run.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from textual import on, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import ContentSwitcher, Footer, Input, Static

from appliance.errors import ApplianceError
from appliance.store import Store
from tui.calls import CallsView
from tui.curve import CurveView
from tui.dialogs import Confirm, FilterLine, Help, Notice
from tui.log import LogView
from tui.rollouts import RolloutsView
from tui.runs import RunsView
from tui.state import Reader, Snapshot, Wanted
from tui.theme import MUTED, THEME
from tui.view import RolloutOpened, RunChosen, View, run_span

POLL_S = 1.0
TABS = ("runs", "rollouts", "curve", "log", "calls")
BACK = {"calls": "rollouts", "rollouts": "runs", "curve": "runs", "log": "runs"}


class CorralApp(App[None]):
    """The application. `start_demo` is called, off the screen's thread, when the user asks for the demo."""

    CSS_PATH = "app.tcss"
    TITLE = "corral"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(n), f"tab('{name}')", name.title(), show=False) for n, name in enumerate(TABS, 1)),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("y", "copy_id", "Copy"),
        Binding("d", "demo", "Start the demo"),
        Binding("s", "stop", "Stop"),
        Binding("escape", "back", "Back", show=False),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("q", "quit", "Leave"),
        Binding("ctrl+c", "quit", "Leave", show=False, priority=True),
    ]

    def __init__(
        self,
        home: Path,
        readonly: bool = False,
        start_demo: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()
        self.animation_level = "none"
        self.register_theme(THEME)
        self.theme = "corral"
        self.home = home
        self.readonly = readonly
        self.snapshot = Snapshot()
        self._start_demo = start_demo
        self._is_starting = False
        self._reader = Reader(home, clock)
        self._wanted = Wanted()
        self._wake = asyncio.Event()
        self._polling = asyncio.Lock()

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Colours that every theme needs; a theme may set its own."""
        return {"muted": MUTED}

    # ------------------------------------------------------------------ the poller and what it feeds

    def compose(self) -> ComposeResult:
        """Tabs, a view or a notice, the filter line, the keys."""
        yield Static(id="tabs", markup=False)
        yield Notice()
        with ContentSwitcher(initial="runs", id="views"):
            yield RunsView("runs")
            yield RolloutsView("rollouts")
            yield CurveView("curve")
            yield LogView("log")
            yield CallsView("calls")
        yield FilterLine()
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        """Starts the poller."""
        self._view.focus_target.focus()
        self._poll()

    @work(exclusive=True)
    async def _poll(self) -> None:
        while True:
            await self.poll_once()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), POLL_S)
            self._wake.clear()

    async def poll_once(self) -> None:
        """Reads the record off the screen's thread and draws what it says."""
        async with self._polling:
            self.snapshot = await asyncio.to_thread(self._reader.poll, self._wanted)
        self._draw()

    def close(self) -> None:
        """Closes the record; for after the App has ended."""
        self._reader.close()

    @property
    def _view(self) -> View:
        base = self.screen_stack[0]
        return base.query_one(f"#{base.query_one('#views', ContentSwitcher).current}", View)

    @property
    def has_record(self) -> bool:
        """Whether there is a run to show."""
        return bool(self.snapshot.runs) and self.snapshot.problem is None

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
        current = base.query_one("#views", ContentSwitcher).current
        spans: list[tuple[str, str]] = [("corral ", "bold $accent")]
        for number, name in enumerate(TABS, 1):
            style = "reverse bold" if name == current and self.has_record else ""
            spans.append((f" {number} {name.title()} ", style))
        run = self.snapshot.run
        if self.readonly:
            spans.append(("  read-only", "$warning"))
        if run is not None and self.has_record:
            spans += [("  ", ""), run_span(run), (f" {run.name}", "$muted")]
            spans.append((f" · {run.phase}" if run.is_live and run.phase else "", "$muted"))
        base.query_one("#tabs", Static).update(Content.assemble(*spans), layout=False)

    # ------------------------------------------------------------------ messages from the views

    @on(RunChosen)
    def _run_chosen(self, message: RunChosen) -> None:
        self._look_at(Wanted(message.run.id))
        if message.enter:
            self.action_tab("rollouts")

    @on(RolloutOpened)
    def _rollout_opened(self, message: RolloutOpened) -> None:
        self._look_at(Wanted(self.snapshot.run.id if self.snapshot.run else None, message.rollout.id))
        self.action_tab("calls")

    def _look_at(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._wake.set()

    # ------------------------------------------------------------------ keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hides the keys that can do nothing now."""
        if action == "demo":
            return self._can_start and not self.has_record
        if action == "stop":
            return self.has_record and not self.readonly
        if action in ("tab", "filter", "copy_id", "back"):
            return self.has_record
        return True

    @property
    def _can_start(self) -> bool:
        return self._start_demo is not None and not self.readonly and self.snapshot.problem is None

    def action_tab(self, name: str) -> None:
        """Shows a view."""
        self._end_filter(keep=True)
        self.query_one("#views", ContentSwitcher).current = name
        self._view.show(self.snapshot)
        self._view.focus_target.focus()
        self._draw_tabs()

    async def action_back(self) -> None:
        """Clears the filter, or goes one view up."""
        name = self.query_one("#views", ContentSwitcher).current or ""
        if self._view.filter_text:
            self._end_filter(keep=False)
        elif name in BACK:
            self.action_tab(BACK[name])

    def action_filter(self) -> None:
        """Opens the filter line."""
        line = self.query_one(FilterLine)
        line.value = self._view.filter_text
        line.add_class("-open")
        line.focus()

    @on(Input.Changed, "#filter")
    def _filter_changed(self, event: Input.Changed) -> None:
        if self.query_one(FilterLine).has_class("-open"):
            self._view.filter(event.value)

    @on(Input.Submitted, "#filter")
    def _filter_done(self) -> None:
        self._view.find_again()
        self._end_filter(keep=True)

    def _end_filter(self, keep: bool) -> None:
        line = self.query_one(FilterLine)
        line.remove_class("-open")
        if not keep:
            self._view.filter("")
        self._view.focus_target.focus()

    def action_copy_id(self) -> None:
        """Copies the id under the cursor to the clipboard of the terminal."""
        if text := self._view.copied():
            self.copy_to_clipboard(text)
            self.notify(f"copied {text[:60]}", timeout=2, markup=False)

    def action_help(self) -> None:
        """Shows the keys."""
        self.push_screen(Help())

    def action_stop(self) -> None:
        """Asks, then leaves the command for the supervisor."""
        run = self.snapshot.run
        if run is None or not run.is_live:
            word = "lost its supervisor" if run and run.word == "lost" else f"is {run.word}" if run else "is gone"
            self.notify(f"nothing to stop: the run {word}", timeout=4, markup=False)
            return
        text = (
            f"{run.name} ({run.id}) starts no new rollouts, finishes those under way\n"
            "and keeps all it has recorded. `corral resume` goes on from there."
        )

        def answered(yes: bool | None) -> None:
            if yes:
                self._leave_stop(run.id)

        self.push_screen(Confirm("Stop this run?", text), answered)

    @work
    async def _leave_stop(self, run_id: str) -> None:
        try:
            await asyncio.to_thread(_write_stop, self.home, run_id)
        except ApplianceError as error:
            self.notify(f"not stopped: {error.message}", severity="error", markup=False)
            return
        self.notify("asked the supervisor to stop; rollouts under way end first", timeout=4, markup=False)

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
        self._wake.set()


def _write_stop(home: Path, run_id: str) -> None:
    store = Store.open(home / "record.db")
    try:
        store.command(run_id, "stop")
    finally:
        store.close()


def run(home: Path, readonly: bool, start_demo: Callable[[], None] | None = None) -> None:
    """Shows the terminal UI until the user leaves."""
    app = CorralApp(home, readonly, start_demo)
    try:
        app.run()
    finally:
        app.close()
