"""View 3: is it learning? Mean reward a step and harness, Pass@1 before and after, and what each step was made of."""

from __future__ import annotations

from rich.segment import Segment
from textual import on
from textual.app import ComposeResult
from textual.content import Content
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Static

from appliance.report import HarnessResult
from tui import chart
from tui.curvedata import Curve, StepLine
from tui.listing import Cell, Column, Listing, Shape
from tui.state import Only, Snapshot
from tui.text import cut, plain_line, reward, share
from tui.view import LookWanted, View

COLUMNS = (
    Column("Step", 6),
    Column("Reward", 6, right=True),
    Column("Graded", 7, right=True),
    Column("Failed", 6, right=True),
    Column("Zero-variance groups", 20),
    Column("Loss", 7, right=True),
    Column("Logprob gap", 11, right=True),
)
NUM_COLOURS = 4


class Chart(Widget):
    """The reward curve; `curve` in, characters out."""

    COMPONENT_CLASSES = {"chart--axis", *(f"chart--series-{n}" for n in range(NUM_COLOURS))}  # noqa: RUF012

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self.curve = Curve()
        self._grid: chart.Grid = []
        self._drawn: tuple[object, ...] = ()

    def show(self, curve: Curve) -> None:
        """Draws this curve."""
        if curve != self.curve:
            self.curve = curve
            self.refresh()

    def render_line(self, y: int) -> Strip:
        """One row of the chart."""
        width = self.size.width
        if self._drawn != (self.curve, self.size):
            self._drawn = (self.curve, self.size)
            self._grid = self._draw()
        if not self._grid:
            text = "The curve begins with the first graded rollout of step 1." if y == 1 else ""
            return Strip([Segment(cut(f" {text}", width), self._style("axis"))], width)
        cells = self._grid[y] if y < len(self._grid) else []
        styles = [self._style("axis"), *(self._style(f"series-{n}") for n in range(NUM_COLOURS))]
        styled = [Segment(char, styles[n % NUM_COLOURS + 1 if n >= 0 else 0]) for char, n in cells]
        return Strip(styled).simplify().adjust_cell_length(width, self.rich_style)

    def _draw(self) -> chart.Grid:
        series = {
            name: [(s.step, s.rewards[name]) for s in self.curve.steps if name in s.rewards]
            for name in self.curve.harnesses
        }
        size = (self.size.width, self.size.height)
        return chart.draw(series, self.curve.num_steps, size) if any(series.values()) else []

    def _style(self, name: str):  # type: ignore[no-untyped-def]  # rich's or Textual's style, by version
        return self.rich_style + self.get_component_rich_style(f"chart--{name}", partial=True)


class CurveView(View):
    """The chart, the evaluation table and the list of steps."""

    BINDINGS = [("enter", "open", "Its rollouts")]  # noqa: RUF012

    def compose_body(self) -> ComposeResult:
        """From the most to the least condensed."""
        yield Chart(id="chart")
        yield Static(id="results", markup=False)
        yield Listing(Shape(COLUMNS, lambda s: str(s.step), _cells, "No training step yet."), id="steps-list")

    def on_mount(self) -> None:
        """State before the first snapshot."""
        self._snapshot = Snapshot()
        self._drawn: Curve | None = None

    @on(Listing.Opened, "#steps-list")
    def _step_opened(self) -> None:
        """Lists the rollouts of the step."""
        step = self.query_one("#steps-list", Listing).current
        if step:
            self.post_message(LookWanted("rollouts", only=Only(step=step.step)))

    def action_open(self) -> None:
        """Lists the rollouts of the step."""
        self.query_one("#steps-list", Listing).action_open()

    @property
    def focus_target(self) -> Widget:
        """The list of steps."""
        return self.query_one("#steps-list", Listing)

    def show(self, snapshot: Snapshot) -> None:
        """Draws the curve of the chosen run."""
        self._snapshot = snapshot
        curve = snapshot.curve
        spans = [("Mean reward by step", "bold")]
        for index, name in enumerate(curve.harnesses):
            colour = ("$success", "$secondary", "$warning", "$accent")[index % NUM_COLOURS]
            spans += [(f"   {chart.MARKS[index % len(chart.MARKS)]} ", colour), (name, "")]
        self.say(*spans)
        self.query_one("#chart", Chart).show(curve)
        if curve != self._drawn:
            self.query_one("#results", Static).update(_results(curve))
            self._drawn = curve
        self.query_one("#steps-list", Listing).show(tuple(reversed(curve.steps)))

    def filter(self, text: str) -> None:
        """Filters the steps."""
        self.filter_text = text
        self.query_one("#steps-list", Listing).filter(text)
        self.show(self._snapshot)

    def copied(self) -> str:
        """The number of the step."""
        step = self.query_one("#steps-list", Listing).current
        return str(step.step) if step else ""


def _cells(step: StepLine) -> tuple[Cell, ...]:
    flat = f"{step.num_flat} of {step.num_groups}"
    warn = 2 * step.num_flat > step.num_groups
    return (
        (f"{'✓' if step.is_done else '●'} {step.step}", "accent" if step.is_done else "good"),
        (reward(step.reward), "text"),
        (f"{step.num_graded}/{step.num_rollouts}", "text"),
        (str(step.num_failed), "bad" if step.num_failed else "muted"),
        (f"▲ {flat}, most" if warn else f"  {flat}", "warn" if warn else "muted"),
        (_metric(step, "loss"), "muted"),
        (_metric(step, "logprob_gap"), "muted"),
    )


def _metric(step: StepLine, name: str) -> str:
    return f"{step.metrics[name]:.4f}" if name in step.metrics else "–"


def _results(curve: Curve) -> Content:
    if not curve.results:
        return Content.styled("Pass@1 on held-out tasks: not evaluated yet.", "$muted")
    progress = "".join(f"   {name} {ended}/{planned}" for name, (ended, planned) in curve.evaluated.items())
    head = f"{'Pass@1, 95 % CI':<20}{'before':<18}{'after':<18}gain"
    lines = [Content.styled(f"Held-out tasks{progress}", "$muted"), Content.styled(head, "$muted")]
    return Content("\n").join([*lines, *(_result(result) for result in curve.results)])


def _result(result: HarnessResult) -> Content:
    before = f"{share(result.before):<5}{_interval(result.before_interval):<13}"
    after = f"{share(result.after):<5}{_interval(result.after_interval):<13}"
    gain, sure = "", False
    if result.gain is not None:
        low, high = result.gain_interval or (0.0, 0.0)
        sure = low > 0
        known = f"  [{100 * low:+.0f}, {100 * high:+.0f}]" if result.gain_interval else ""
        gain = f"{100 * result.gain:+.0f}{known}"
    name = cut(plain_line(result.name), 20)
    return Content.assemble(name, (before, "$muted"), (after, ""), (gain, "bold $success" if sure else "$warning"))


def _interval(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f"  [{100 * interval[0]:.0f}, {100 * interval[1]:.0f}]"
