"""View 2: the rollouts of the chosen run, live ones on top; slow ones and hung ones stand out by glyph and word."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev

from textual import on
from textual.app import ComposeResult
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from appliance.types import RolloutState
from tui.pages.rollouts import read_output
from tui.pages.snapshot import Only, RolloutLine, Snapshot
from tui.text import PACE_LOOKS, ROLLOUT_LOOKS, count, duration, reward
from tui.views.view import ActWanted, LookWanted, Span, TextWanted, View, fields, rollout_span
from tui.widgets.table import Cell, Column, Listing, Shape

COLUMNS = (
    Column("State", 10),
    Column("Time", 5, right=True),
    Column("Quiet", 9),
    Column("Task", 10, grow=5),
    Column("Harness", 7, grow=1),
    Column("For", 6),
    Column("Calls", 5, right=True),
    Column("Tokens", 6, right=True),
    Column("Reward", 6, grow=3),
)


class RolloutsView(View):
    """The list of rollouts. Enter shows the calls of one."""

    BINDINGS = [  # noqa: RUF012
        ("enter", "open", "Calls"),
        ("u", "group", "Group"),
        ("o", "output", "Out"),
        ("x", "act('kill')", "Kill"),
        ("r", "act('retry')", "Retry"),
    ]

    def compose_body(self) -> ComposeResult:
        """The list above, details of one rollout below."""
        empty = "No rollouts yet: they appear when the run has planned its first phase."
        yield Listing(Shape(COLUMNS, lambda r: str(r.id), self._cells, empty), id="rollouts-list")
        yield Static(id="rollout-details", classes="details", markup=False)

    def on_mount(self) -> None:
        """State before the first snapshot."""
        self._snapshot = Snapshot()

    @property
    def focus_target(self) -> Widget:
        """The list."""
        return self._list

    @property
    def _list(self) -> Listing[RolloutLine]:
        return self.query_one("#rollouts-list", Listing)

    def show(self, snapshot: Snapshot) -> None:
        """Draws the rollouts of the chosen run."""
        self._snapshot = snapshot
        self._list.show(snapshot.rollouts)
        now, rollouts = snapshot.now, snapshot.rollouts
        paces = [r.pace(now) for r in rollouts if r.is_live]
        counts = snapshot.counts
        spans = [(f"{len(paces)} live", "bold")]
        for pace, style in (("slow", "$warning"), ("hung", "bold $error")):
            if pace in paces:
                spans.append((f"   {PACE_LOOKS[pace][0]} {paces.count(pace)} {pace}", style))
        failed = counts.get(RolloutState.FAILED, 0)
        spans.append((f"   {counts.get(RolloutState.GRADED, 0)} graded", "$muted"))
        spans.append((f"   {failed} failed", "$error" if failed else "$muted"))
        spans.append((f"   {counts.get(RolloutState.PLANNED, 0)} waiting", "$muted"))
        if snapshot.only is not None:
            spans = [(f"{len(rollouts)} rollouts", "bold"), (f"   only {snapshot.only.text} (esc: all)", "$accent")]
            spans += spread(rollouts)
        if self._list.num_marked:
            spans.append((f"   ◆ {self._list.num_marked} marked", "$accent"))
        self.say(*spans)
        self._detail(self._list.current)

    def filter(self, text: str) -> None:
        """Filters by every column, so `hung`, `pi` or `train 3` work."""
        self.filter_text = text
        self._list.filter(text)
        self.show(self._snapshot)

    def copied(self) -> str:
        """The rollout's id."""
        return " ".join(self._list.chosen)

    def clear(self) -> bool:
        """Takes marks away, or shows all rollouts again; whether there was something to clear."""
        if self._list.num_marked:
            self._list.unmark()
            self.show(self._snapshot)
            return True
        if self._snapshot.only is not None:
            self.post_message(LookWanted(only=None))
            return True
        return False

    def action_act(self, name: str) -> None:
        """Kills or retries the marked rollouts, or the one under the cursor."""
        self.post_message(ActWanted(name, self.copied()))

    def action_group(self) -> None:
        """Lists the rollouts that this one is compared with."""
        current = self._list.current
        if current and current.purpose == "train":
            only = Only(step=current.step, harness=current.harness, task=current.task)
            self.post_message(LookWanted(only=only))
        elif current:
            self.notify("only training rollouts are compared in groups", timeout=3, markup=False)

    def action_output(self) -> None:
        """Shows what its harness and its grader wrote."""
        if current := self._list.current:
            number = current.id
            self.post_message(TextWanted(f"Output of rollout {number}", lambda home: read_output(home, number)))

    def action_open(self) -> None:
        """Shows the calls of the rollout."""
        self._list.action_open()

    @on(Listing.Moved, "#rollouts-list")
    def _moved(self, message: Listing.Moved) -> None:
        current = self._list.current
        self._detail(current)
        if current and isinstance(message, Listing.Opened):
            self.post_message(LookWanted("calls", rollout_id=current.id, call=None))

    def _cells(self, rollout: RolloutLine) -> tuple[Cell, ...]:
        now = self._snapshot.now
        glyph, kind = ROLLOUT_LOOKS[rollout.state]
        pace, quiet = rollout.pace(now), rollout.quiet_s(now)
        quiet_kind = "muted"
        if pace:
            glyph, kind = PACE_LOOKS[pace]
            quiet_kind = kind
        ended: Cell = (reward(rollout.reward), "good" if (rollout.reward or 0) >= 1 else "text")
        if rollout.failure:
            ended = (rollout.failure, "bad")
        return (
            (f"{glyph} {rollout.state}", kind),
            (duration(rollout.in_phase_s(now)), "text" if rollout.is_live else "muted"),
            (_quiet(rollout, pace, quiet), quiet_kind),
            (rollout.task, "text"),
            (rollout.harness, "text"),
            (purpose(rollout), "muted"),
            (str(rollout.num_calls), "text"),
            (count(rollout.num_tokens), "text"),
            ended,
        )

    def _detail(self, rollout: RolloutLine | None) -> None:
        details = self.query_one("#rollout-details", Static)
        if rollout is None:
            details.update("", layout=False)
            return
        ended = rollout.failure or f"reward {reward(rollout.reward)}"
        more = rollout.failure_detail or rollout.reward_parts
        lines = (
            fields(("rollout", str(rollout.id)), ("task", rollout.task), ("harness", rollout.harness)),
            fields(
                ("for", rollout.purpose),
                ("step", str(rollout.step)),
                ("attempt", str(rollout.attempt)),
                ("policy version", str(rollout.policy_version)),
                ("advantage", "" if rollout.advantage is None else f"{rollout.advantage:+.3f}"),
            ),
            Content.assemble(rollout_span(rollout), f"   {ended}   ", (more, "$muted")),
        )
        details.update(Content("\n").join(lines), layout=False)


def _quiet(rollout: RolloutLine, pace: str, quiet: float | None) -> str:
    """For how long it is quiet; of one that has ended, in a list of its group, its advantage."""
    if quiet is not None:
        return f"{pace} {duration(quiet)}".strip()
    return "" if rollout.advantage is None else f"adv {rollout.advantage:+.2f}"


def spread(rollouts: Sequence[RolloutLine]) -> list[Span]:
    """Mean and standard deviation of their rewards; where all are equal, that they move nothing."""
    rewards = [r.reward for r in rollouts if r.reward is not None]
    if not rewards:
        return []
    told: list[Span] = [(f"   mean {fmean(rewards):.2f}", ""), (f" ± {pstdev(rewards):.2f}", "$muted")]
    is_flat = len(set(rewards)) == 1 and len({(r.task, r.harness, r.step) for r in rollouts}) == 1
    return [*told, ("   ▲ all equal: moves nothing", "$warning")] if is_flat else told


def purpose(rollout: RolloutLine) -> str:
    """What it was made for, in at most eight characters: `step 3`, `before`, `teach`."""
    return f"step {rollout.step}" if rollout.purpose == "train" else rollout.purpose
