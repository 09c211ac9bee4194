"""View 1: every run of the record, newest first, and more about the one under the cursor."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from tui.pages.snapshot import RunLine, Snapshot
from tui.text import RUN_LOOKS, duration, reward
from tui.views.view import ActWanted, LookWanted, View, fields, run_span
from tui.widgets.table import Cell, Column, Listing, Shape

COLUMNS = (
    Column("Run", 14, grow=2),
    Column("Name", 10, grow=2),
    Column("State", 10),
    Column("Phase", 11, grow=1),
    Column("Step", 7, right=True),
    Column("Reward", 6, right=True),
    Column("Age", 5, right=True),
)


class RunsView(View):
    """The list of runs. Moving the cursor chooses the run that the other views show."""

    BINDINGS = [("enter", "open", "Rollouts"), ("r", "resume", "Resume"), ("n", "new", "New run")]  # noqa: RUF012  (Textual's own idiom)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hides the keys that need a run while there is none."""
        return not (action in ("open", "resume") and self.screen.has_class("-no-record"))

    def compose_body(self) -> ComposeResult:
        """The list above, details of one run below."""
        shape = Shape(COLUMNS, lambda run: run.id, self._cells, "No runs in this record yet.")
        yield Listing(shape, id="runs-list")
        yield Static(id="run-details", classes="details", markup=False)

    def on_mount(self) -> None:
        """State before the first snapshot."""
        self._snapshot = Snapshot()

    @property
    def focus_target(self) -> Widget:
        """The list."""
        return self._list

    @property
    def _list(self) -> Listing[RunLine]:
        return self.query_one("#runs-list", Listing)

    def show(self, snapshot: Snapshot) -> None:
        """Draws the runs and puts the cursor on the chosen one."""
        self._snapshot = snapshot
        self._list.show(snapshot.runs)
        live = sum(run.is_live for run in snapshot.runs)
        self.say((f"{len(snapshot.runs)} runs", "bold"), (f"   {live} live   in {snapshot.home}", "$muted"))
        self._detail(self._list.current)

    def filter(self, text: str) -> None:
        """Filters by every column."""
        self.filter_text = text
        self._list.filter(text)
        self.show(self._snapshot)

    def copied(self) -> str:
        """The run's id."""
        return self._list.current.id if self._list.current else ""

    def action_open(self) -> None:
        """Shows the rollouts of the run."""
        self._list.action_open()

    def action_new(self) -> None:
        """Opens the form for a new run."""
        self.post_message(ActWanted("new run"))

    def action_resume(self) -> None:
        """Goes on with the run."""
        self.post_message(ActWanted("resume"))

    @on(Listing.Moved, "#runs-list")
    def _moved(self, message: Listing.Moved) -> None:
        if self._list.current:
            self._detail(self._list.current)
            view = "rollouts" if isinstance(message, Listing.Opened) else ""
            self.post_message(LookWanted(view, run_id=self._list.current.id, rollout_id=None, only=None))

    def _cells(self, run: RunLine) -> tuple[Cell, ...]:
        glyph, kind = RUN_LOOKS[run.word]
        return (
            (run.id, "text"),
            (run.name, "text"),
            (f"{glyph} {run.word}", kind),
            (run.phase or "–", "text" if run.is_live else "muted"),
            (f"{run.steps_done}/{run.num_steps}" if run.num_steps else str(run.steps_done), "text"),
            (reward(run.last_reward), "accent"),
            (duration(self._snapshot.now - run.created_at), "muted"),
        )

    def _detail(self, run: RunLine | None) -> None:
        details = self.query_one("#run-details", Static)
        if run is None:
            details.update("", layout=False)
            return
        took = (run.ended_at or self._snapshot.now) - run.created_at
        message = run.message
        if run.word == "lost":
            message = "its supervisor is gone; nothing recorded is lost: r goes on (or `corral resume`)"
        if run.word == "paused":
            message = "no new rollouts begin: `:` unpause goes on (or `corral unpause`)"
        lines = (
            fields(("run", run.id), ("name", run.name), ("seed", str(run.seed)), ("took", duration(took))),
            fields(("harnesses", run.harnesses), ("pack", run.pack), ("phase", run.phase)),
            Content.assemble(run_span(run), ("   " + message, "")),
        )
        details.update(Content("\n").join(lines), layout=False)
