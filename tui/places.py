"""Where things are: every view with its name, its number key and the view that `esc` leads back to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tui.calls import CallsView
from tui.checkpoints import CheckpointsView
from tui.curve import CurveView
from tui.doctor import DoctorView
from tui.hardware import HardwareView
from tui.harnesses import HarnessesView
from tui.log import LogView
from tui.rewards import RewardsView
from tui.rollouts import RolloutsView
from tui.runs import RunsView
from tui.sandboxes import SandboxesView
from tui.settings import SettingsView
from tui.tasks import TasksView
from tui.traffic import TrafficView
from tui.tree import TreeView
from tui.view import View


@dataclass(frozen=True, slots=True)
class Place:
    """A view. `key` is its number, empty where only the palette leads there; `back`: where esc leads."""

    name: str
    key: str
    back: str
    text: str
    build: Callable[[str], View]

    @property
    def title(self) -> str:
        """Its name as a heading."""
        return self.name.title()


PLACES: tuple[Place, ...] = (
    Place("runs", "1", "", "every run of this record", RunsView),
    Place("rollouts", "2", "runs", "rollouts of the run, live ones on top", RolloutsView),
    Place("curve", "3", "runs", "is it learning? reward by step, Pass@1", CurveView),
    Place("log", "4", "runs", "what every part said", LogView),
    Place("calls", "5", "rollouts", "what a harness asked and the model said", CallsView),
    Place("tree", "6", "rollouts", "where a rollout's calls part, token by token", TreeView),
    Place("rewards", "7", "runs", "histogram of rewards; enter lists a bar", RewardsView),
    Place("hardware", "8", "runs", "processor, memory, disk, GPUs and who uses them", HardwareView),
    Place("sandboxes", "9", "runs", "containers that live now, a shell, orphans", SandboxesView),
    Place("traffic", "", "runs", "the newest calls through the proxy", TrafficView),
    Place("tasks", "", "runs", "tasks and how often they are solved", TasksView),
    Place("checkpoints", "", "runs", "policy versions and their evaluations", CheckpointsView),
    Place("harnesses", "", "runs", "harness files; e edits one", HarnessesView),
    Place("settings", "", "runs", "the run's configuration and what decided it", SettingsView),
    Place("doctor", "", "runs", "checks of this machine with remedies", DoctorView),
)
BY_NAME = {place.name: place for place in PLACES}
