"""View 3: is it learning? Mean reward a step and harness, Pass@1 before and after, and what each step was made of."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rich.segment import Segment
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Static

from appliance.report.report import HarnessResult
from tui.pages.curve import Curve, StepLine
from tui.pages.snapshot import Only, Snapshot
from tui.text import cut, plain_line, reward, share
from tui.views.view import LookWanted, View
from tui.widgets import chart
from tui.widgets.table import Cell, Column, Listing, Shape

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
WEIGHTS = (0.0, 0.5, 0.8, 0.95)


@dataclass(frozen=True, slots=True)
class Look:
    """How curves are looked at. `metric` empty: the mean reward of each harness; `at`: the step under the cursor."""

    metric: str = ""
    weight: float = 0.0
    is_log: bool = False
    at: int | None = None


class Chart(Widget):
    """Curves of the steps; `curve` and how it is looked at in, characters out."""

    COMPONENT_CLASSES = {"chart--axis", *(f"chart--series-{n}" for n in range(NUM_COLOURS))}  # noqa: RUF012

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self.curve = Curve()
        self.look = Look()
        self._grid: chart.Grid = []
        self._drawn: tuple[object, ...] = ()

    def show(self, curve: Curve, look: Look) -> None:
        """Draws this curve."""
        if (curve, look) != (self.curve, self.look):
            self.curve, self.look = curve, look
            self.refresh()

    def render_line(self, y: int) -> Strip:
        """One row of the chart."""
        width = self.size.width
        if self._drawn != (self.curve, self.look, self.size):
            self._drawn = (self.curve, self.look, self.size)
            self._grid = self._draw()
        if not self._grid:
            text = "The curve begins with the first graded rollout of step 1." if y == 1 else ""
            return Strip([Segment(cut(f" {text}", width), self._style("axis"))], width)
        cells = self._grid[y] if y < len(self._grid) else []
        styles = [self._style("axis"), *(self._style(f"series-{n}") for n in range(NUM_COLOURS))]
        styled = [Segment(char, styles[n % NUM_COLOURS + 1 if n >= 0 else 0]) for char, n in cells]
        return Strip(styled).simplify().adjust_cell_length(width, self.rich_style)

    def _draw(self) -> chart.Grid:
        look, size = self.look, (self.size.width, self.size.height)
        series = self.curve.series(look.metric)
        if not any(series.values()):
            return []
        values = [y for points in series.values() for _, y in points]
        scale = chart.Scale() if not look.metric and not look.is_log else chart.scale_of(values, look.is_log)
        if scale.is_log:
            series = {name: [p for p in points if p[1] > 0] for name, points in series.items()}
        drawn = {name: chart.smoothed(points, look.weight) for name, points in series.items() if points}
        return chart.draw(drawn, self.curve.num_steps, size, scale, look.at)

    def _style(self, name: str):  # type: ignore[no-untyped-def]  # rich's or Textual's style, by version
        return self.rich_style + self.get_component_rich_style(f"chart--{name}", partial=True)


class CurveView(View):
    """The chart, the evaluation table and the list of steps."""

    BINDINGS = [  # noqa: RUF012
        ("enter", "open", "Its rollouts"),
        ("m", "metric(1)", "Metric"),
        Binding("M", "metric(-1)", "Metric before", show=False),
        ("e", "smooth", "Smooth"),
        ("v", "logarithm", "Log"),
        Binding("right", "point(1)", "Next point", show=False),
        Binding("left", "point(-1)", "Point before", show=False),
    ]

    def compose_body(self) -> ComposeResult:
        """From the most to the least condensed."""
        yield Chart(id="chart")
        yield Static(id="results", markup=False)
        yield Listing(Shape(COLUMNS, lambda s: str(s.step), _cells, "No training step yet."), id="steps-list")

    def on_mount(self) -> None:
        """State before the first snapshot."""
        self._snapshot = Snapshot()
        self._drawn: Curve | None = None
        self._look = Look()

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
        look = self._look
        if look.metric and look.metric not in curve.metrics:  # another run
            self._look = look = replace(look, metric="")
        spans = [(look.metric or "Mean reward by step", "bold")]
        spans += [(f"   smoothed {look.weight:g}", "$accent")] if look.weight else []
        spans += [("   log scale", "$accent")] if look.is_log else []
        if look.metric:
            spans.append((f"   {curve.metrics.index(look.metric) + 1} of {len(curve.metrics)} metrics", "$muted"))
        for index, name in enumerate(() if look.metric else curve.harnesses):
            colour = ("$success", "$secondary", "$warning", "$accent")[index % NUM_COLOURS]
            spans += [(f"   {chart.MARKS[index % len(chart.MARKS)]} ", colour), (name, "")]
        self.say(*spans)
        if curve != self._drawn:
            self.query_one("#results", Static).update(_results(curve))
            self._drawn = curve
        self.query_one("#steps-list", Listing).show(tuple(reversed(curve.steps)))
        self._draw_chart()

    def _draw_chart(self) -> None:
        step = self.query_one("#steps-list", Listing).current
        chart_widget = self.query_one("#chart", Chart)
        chart_widget.show(self._snapshot.curve, replace(self._look, at=step.step if step else None))

    @on(Listing.Moved, "#steps-list")
    def _moved(self) -> None:
        self._draw_chart()

    def action_metric(self, places: int) -> None:
        """Shows another of the metrics that the steps recorded, under the names that TRL gives them."""
        names = ["", *self._snapshot.curve.metrics]
        here = names.index(self._look.metric) if self._look.metric in names else 0
        self._look = replace(self._look, metric=names[(here + places) % len(names)])
        self.show(self._snapshot)

    def action_smooth(self) -> None:
        """Takes the next weight of the exponential moving average."""
        here = WEIGHTS.index(self._look.weight)
        self._look = replace(self._look, weight=WEIGHTS[(here + 1) % len(WEIGHTS)])
        self.show(self._snapshot)

    def action_logarithm(self) -> None:
        """A logarithmic axis, or a linear one."""
        self._look = replace(self._look, is_log=not self._look.is_log)
        self.show(self._snapshot)

    def action_point(self, steps: int) -> None:
        """Goes to another step; the list has the newest on top."""
        self.query_one("#steps-list", Listing).action_move(-steps)

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
