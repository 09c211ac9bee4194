"""What the views show, as plain data. No Textual here, no reading and no writing.

`Reader.poll` gives one `Snapshot`; every view draws only from it. All text in a snapshot has gone through
`text.plain`, so that no view can pass a control sequence on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from appliance.types import RolloutState, RunState
from tui.pages.calls import CallText
from tui.pages.curve import Curve

LIVE = (RolloutState.STARTING, RolloutState.RUNNING, RolloutState.GRADING)
SLOW_SHARE, HUNG_SHARE = 0.25, 0.5
"""A live rollout is slow, or hung, when it has been quiet for this share of the time its phase may take."""


@dataclass(frozen=True, slots=True)
class RunLine:
    """A run. `word` is its state, `paused` when it runs and holds back, `lost` when it should run and nobody runs it.

    `last_reward` is the mean of the newest step with a grade; None before that.
    """

    id: str
    name: str
    word: str
    phase: str
    message: str
    seed: int
    harnesses: str
    pack: str
    steps_done: int
    num_steps: int
    last_reward: float | None
    created_at: float
    ended_at: float | None

    @property
    def is_live(self) -> bool:
        """Whether a supervisor works on it."""
        return self.word in (RunState.RUNNING, RunState.DRAINING, "paused")


@dataclass(frozen=True, slots=True)
class RolloutLine:
    """A rollout. `deadline_s` is what its present phase may take."""

    id: int
    state: RolloutState
    task: str
    harness: str
    purpose: str
    step: int
    attempt: int
    policy_version: int
    num_calls: int
    num_tokens: int
    reward: float | None
    reward_parts: str
    failure: str
    failure_detail: str
    started_at: float | None
    ended_at: float | None
    last_event_at: float | None
    deadline_s: float
    advantage: float | None = None
    """Within its group; read where the group is shown."""

    @property
    def is_live(self) -> bool:
        """Whether it is under way."""
        return self.state in LIVE

    def in_phase_s(self, now: float) -> float | None:
        """Seconds in its phase; for a finished one, seconds it took; None when it never started.

        The record keeps no start of the running phase, so that counts from the start of the attempt.
        """
        if self.started_at is None:
            return None
        if not self.is_live:
            return (self.ended_at or now) - self.started_at
        exact = self.state is RolloutState.GRADING and self.last_event_at is not None
        return now - (self.last_event_at if exact and self.last_event_at else self.started_at)

    def quiet_s(self, now: float) -> float | None:
        """Seconds since it last gave a sign of life; None unless it is live."""
        if not self.is_live or self.last_event_at is None:
            return None
        return max(0.0, now - self.last_event_at)

    def pace(self, now: float) -> str:
        """`` (fine), `slow` or `hung`."""
        quiet, taken = self.quiet_s(now), self.in_phase_s(now)
        if quiet is None or taken is None:
            return ""
        if quiet >= HUNG_SHARE * self.deadline_s or taken > 1.5 * self.deadline_s:
            return "hung"
        return "slow" if quiet >= SLOW_SHARE * self.deadline_s else ""


@dataclass(frozen=True, slots=True)
class EventLine:
    """One line of the log."""

    id: int
    at: float
    level: str
    part: str
    message: str
    rollout_id: int | None


@dataclass(frozen=True, slots=True)
class EngineLine:
    """What an engine last told of itself, at `at`. Shares are None until it has told enough."""

    number: int
    at: float
    running: int
    waiting: int
    cache_share: float | None
    hit_share: float | None


@dataclass(frozen=True, slots=True)
class Only:
    """Which rollouts the list is narrowed to: those of a training step, of one of its groups (with `harness` and
    `task`), or with a reward in [low, high)."""

    step: int | None = None
    harness: str = ""
    task: str = ""
    low: float | None = None
    high: float | None = None

    @property
    def text(self) -> str:
        """For the title of the list."""
        if self.task:
            return f"the group {self.task} × {self.harness}, step {self.step}"
        return f"step {self.step}" if self.step is not None else f"reward {self.low:.2g} to {self.high:.2g}"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the view in front looks at. `run_id` None means the run that works now, or else the newest."""

    run_id: str | None = None
    rollout_id: int | None = None
    view: str = "runs"
    only: Only | None = None
    call: int | None = None
    """The call that the calls view goes to; None: where the cursor is."""
    log_at: float | None = None
    """Where the log is looked at, in Unix seconds; None follows its end."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything on screen. `problem` is (what is wrong, what to do) when the record cannot be read."""

    now: float = 0.0
    home: str = ""
    is_missing: bool = False
    problem: tuple[str, str] | None = None
    runs: tuple[RunLine, ...] = ()
    run: RunLine | None = None
    rollouts: tuple[RolloutLine, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    """All rollouts of the run by state; `rollouts` holds only the newest of a long run."""
    curve: Curve = field(default_factory=Curve)
    events: tuple[EventLine, ...] = ()
    rollout: RolloutLine | None = None
    calls: tuple[CallText, ...] = ()
    only: Only | None = None
    wanted: Wanted = field(default_factory=Wanted)
    engines: tuple[EngineLine, ...] = ()
    is_locked: bool = False
    """Another process holds the record: what is shown is what was read before."""
    page: object = None
    """What a view beyond the first five draws; its own type, None while it was not read yet."""
