"""Where things are: every view with its name, its number key and the view that `esc` leads back to.

View `curve` is the class `CurveView` of `tui/views/curve.py`, and so are the others; a view's module is imported when
the view is first looked at or `load` was called, so that the first screen does not wait for the fourteen others.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from tui.views.view import View


@dataclass(frozen=True, slots=True)
class Place:
    """A view. `key` is its number, empty where only the palette leads there; `back`: where esc leads."""

    name: str
    key: str
    back: str
    text: str

    @property
    def title(self) -> str:
        """Its name as a heading."""
        return self.name.title()

    def build(self) -> View:
        """The view itself, made anew."""
        kind: type[View] = getattr(import_module(f"tui.views.{self.name}"), f"{self.title}View")
        return kind(self.name)


PLACES: tuple[Place, ...] = (
    Place("runs", "1", "", "every run of this record"),
    Place("rollouts", "2", "runs", "rollouts of the run, live ones on top"),
    Place("curve", "3", "runs", "is it learning? reward by step, Pass@1"),
    Place("log", "4", "runs", "what every part said"),
    Place("calls", "5", "rollouts", "what a harness asked and the model said"),
    Place("tree", "6", "rollouts", "where a rollout's calls part, token by token"),
    Place("rewards", "7", "runs", "histogram of rewards; enter lists a bar"),
    Place("hardware", "8", "runs", "processor, memory, disk, GPUs and who uses them"),
    Place("sandboxes", "9", "runs", "containers that live now, a shell, orphans"),
    Place("traffic", "", "runs", "the newest calls through the proxy"),
    Place("tasks", "", "runs", "tasks and how often they are solved"),
    Place("checkpoints", "", "runs", "policy versions and their evaluations"),
    Place("harnesses", "", "runs", "harness files; e edits one"),
    Place("settings", "", "runs", "the run's configuration and what decided it"),
    Place("doctor", "", "runs", "checks of this machine with remedies"),
)
BY_NAME = {place.name: place for place in PLACES}


def load() -> None:
    """Imports every view, so that none is slow to come up for the first time."""
    for place in PLACES:
        import_module(f"tui.views.{place.name}")
