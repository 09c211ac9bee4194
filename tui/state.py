"""What the views show, as plain data read from the record. No Textual here, and no writing.

`Reader.poll` gives one `Snapshot`; every view draws only from it. All text in a snapshot has gone through
`text.plain`, so that no view can pass a control sequence on. The record is read again only when it has changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from appliance import pages
from appliance.errors import StoreError
from appliance.schema import rollout_from_row
from appliance.store import Run, Store
from appliance.types import Purpose, Rollout, RolloutState, RunState
from tui.calldata import CallText, read_calls
from tui.curvedata import EVALUATIONS, Curve, read_curve
from tui.heartbeat import attended_run
from tui.recordpages import checkpoints, rewards, settings, tasks, traffic
from tui.text import plain, plain_line
from tui.treedata import TreePage, read_tree

LIVE = (RolloutState.STARTING, RolloutState.RUNNING, RolloutState.GRADING)
MAX_EVENTS = 5000
SLOW_SHARE, HUNG_SHARE = 0.25, 0.5
"""A live rollout is slow, or hung, when it has been quiet for this share of the time its phase may take."""
FALLBACK_DEADLINE_S = 60.0
ROLLOUT_VIEWS = ("rollouts", "calls", "tree")
RECORD_PAGES: dict[str, Callable[[Store, Run], object]] = {
    "traffic": traffic,
    "rewards": rewards,
    "tasks": tasks,
    "checkpoints": checkpoints,
    "settings": settings,
}
"""View → what it reads of the record while it is in front."""


@dataclass(frozen=True, slots=True)
class RunLine:
    """A run. `word` is its state, or `lost` when it should run and no supervisor has it.

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
        return self.word in (RunState.RUNNING, RunState.DRAINING)


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
class Only:
    """Which rollouts the list is narrowed to: those of a training step, or with a reward in [low, high)."""

    step: int | None = None
    low: float | None = None
    high: float | None = None

    @property
    def text(self) -> str:
        """For the title of the list."""
        return f"step {self.step}" if self.step is not None else f"reward {self.low:.2g} to {self.high:.2g}"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the view in front looks at. `run_id` None means the run that works now, or else the newest."""

    run_id: str | None = None
    rollout_id: int | None = None
    view: str = "runs"
    only: Only | None = None


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
    page: object = None
    """What a view beyond the first five draws; its own type, None while it was not read yet."""


class Reader:
    """Reads the record under `home`, which may not be there yet, may be replaced, or may be a newer one."""

    def __init__(self, home: Path, clock: Callable[[], float] = time.time) -> None:
        self.home = home
        self.path = home / "record.db"
        self._clock = clock
        self._store: Store | None = None
        self._inode = 0
        self._seen: tuple[object, ...] = ()
        self._last = Snapshot()
        self._calls_of: tuple[object, ...] = ()
        self._calls_read: tuple[CallText, ...] = ()
        self._tree_of: tuple[object, ...] = ()
        self._tree_read = TreePage()

    def close(self) -> None:
        """Closes the record; safe to call twice."""
        if self._store is not None:
            self._store.close()
        self._store = None
        self._seen = self._calls_of = self._tree_of = ()
        self._last = Snapshot()

    def poll(self, wanted: Wanted) -> Snapshot:
        """The record as it is now; never raises for a record that is missing or cannot be read."""
        now, shown = self._clock(), plain_line(str(self.home))
        if not self.path.exists():
            self.close()
            return Snapshot(now=now, home=shown, is_missing=True)
        try:
            store = self._open()
            attended = attended_run(self.home)
            seen = (store.rows("PRAGMA data_version")[0][0], wanted, attended)
            if seen != self._seen:
                self._last = self._read(store, wanted, attended)
                self._seen = seen
        except StoreError as error:
            self.close()
            return Snapshot(now=now, home=shown, problem=(plain(error.message), plain(error.remedy)))
        return replace(self._last, now=now, home=shown)

    def _open(self) -> Store:
        inode = self.path.stat().st_ino
        if self._store is None or inode != self._inode:
            self.close()
            self._store, self._inode = Store.open(self.path, readonly=True), inode
        return self._store

    def _read(self, store: Store, wanted: Wanted, attended: str | None) -> Snapshot:
        """What the view in front needs; what only other views show stays as it was read last."""
        found = store.runs()
        lines = tuple(_run_line(run, store, attended) for run in found)
        chosen = _choose(lines, wanted.run_id)
        if chosen is None:
            return Snapshot(runs=lines)
        run = found[lines.index(chosen)]
        last = self._last if self._last.run is not None and self._last.run.id == chosen.id else Snapshot()
        base = replace(
            last, runs=lines, run=chosen, counts=pages.counts(store, run.id), only=wanted.only, page=None, problem=None
        )
        if wanted.view in ROLLOUT_VIEWS:
            base = self._with_rollouts(store, run, wanted, base)
        elif wanted.view == "curve":
            groups = pages.groups(store, run.id)
            tested = [r for purpose in EVALUATIONS for r in store.rollouts(run.id, purpose)]
            base = replace(base, curve=read_curve(groups, tested, store.steps(run.id), chosen.num_steps))
        elif wanted.view == "log":
            base = replace(base, events=_events(store, run.id, last.events))
        elif wanted.view in RECORD_PAGES:
            base = replace(base, page=RECORD_PAGES[wanted.view](store, run))
        return base

    def _with_rollouts(self, store: Store, run: Run, wanted: Wanted, base: Snapshot) -> Snapshot:
        shown = matching(store, run.id, wanted.only) if wanted.only else pages.screenful(store, run.id)
        rollouts = _ordered([_rollout_line(r, run.config) for r in shown])
        opened = next((r for r in rollouts if r.id == wanted.rollout_id), None)
        if opened is None and wanted.rollout_id is not None:  # it is not on the page
            other = pages.one(store, wanted.rollout_id)
            opened = _rollout_line(other, run.config) if other and other.plan.run_id == run.id else None
        base = replace(base, rollouts=rollouts, rollout=opened)
        if wanted.view == "calls":
            return replace(base, calls=self._calls(store, opened))
        if wanted.view == "tree" and opened is not None:
            return replace(base, page=self._tree(store, opened))
        return base

    def _calls(self, store: Store, opened: RolloutLine | None) -> tuple[CallText, ...]:
        """The calls of the rollout that is open; those of an unchanged one are not read again."""
        if opened is None:
            return ()
        key = (opened.id, opened.attempt, opened.num_calls, opened.is_live)
        if key != self._calls_of:
            self._calls_of, self._calls_read = key, read_calls(store, opened.id)
        return self._calls_read

    def _tree(self, store: Store, opened: RolloutLine) -> TreePage:
        """The tree of the rollout that is open; it is recovered again only when a call was added or it has ended."""
        key = (opened.id, opened.attempt, opened.num_calls, opened.is_live)
        if key != self._tree_of:
            self._tree_of, self._tree_read = key, read_tree(store, self.home, opened.id)
        return self._tree_read


def matching(store: Store, run_id: str, only: Only) -> list[Rollout]:
    """The newest training rollouts of a step, or with a reward in a range."""
    if only.step is not None:
        return store.rollouts(run_id, Purpose.TRAIN, only.step)
    sql = "SELECT * FROM rollouts WHERE run_id=?1 AND purpose='train' AND reward>=?2 AND reward<?3"
    found = store.rows(f"{sql} ORDER BY id DESC LIMIT ?4", run_id, only.low, only.high, pages.PAGE)
    return [rollout_from_row(row) for row in found]


def _choose(lines: tuple[RunLine, ...], run_id: str | None) -> RunLine | None:
    """The wanted run, else the one that works now, else the newest."""
    wanted = [line for line in lines if line.id == run_id]
    live = [line for line in lines if line.is_live]
    return next(iter([*wanted, *live, *lines]), None)


def _ordered(rollouts: list[RolloutLine]) -> tuple[RolloutLine, ...]:
    """Live ones first, the longest under way on top; then what ended, newest first; then what waits."""
    live = sorted((r for r in rollouts if r.is_live), key=lambda r: r.started_at or 0.0)
    ended = sorted((r for r in rollouts if r.ended_at is not None and not r.is_live), key=lambda r: -(r.ended_at or 0))
    waiting = [r for r in rollouts if not r.is_live and r.ended_at is None]
    return (*live, *ended, *waiting)


def _section(config: Mapping[str, object], name: str) -> Mapping[str, object]:
    found = config.get(name)
    return found if isinstance(found, dict) else {}


def _number(value: object, otherwise: float) -> float:
    return float(value) if isinstance(value, int | float) else otherwise


def _run_line(run: Run, store: Store, attended: str | None) -> RunLine:
    is_lost = run.state in (RunState.RUNNING, RunState.DRAINING) and attended is not None and attended != run.id
    harnesses = run.config.get("harnesses")
    names = harnesses if isinstance(harnesses, list | tuple) else ()
    return RunLine(
        id=plain_line(run.id),
        name=plain_line(run.name),
        word="lost" if is_lost else str(run.state),
        phase=plain_line(run.phase),
        message=plain_line(run.message),
        seed=run.seed,
        harnesses=plain_line(", ".join(str(name) for name in names)),
        pack=plain_line(str(_section(run.config, "tasks").get("pack", ""))),
        steps_done=pages.steps_done(store, run.id),
        num_steps=int(_number(_section(run.config, "train").get("steps"), 0)),
        last_reward=pages.last_reward(store, run.id),
        created_at=run.created_at,
        ended_at=run.ended_at,
    )


def _rollout_line(rollout: Rollout, config: Mapping[str, object]) -> RolloutLine:
    plan, limits = rollout.plan, _section(config, "rollout")
    key = "grade_timeout_s" if rollout.state is RolloutState.GRADING else "timeout_s"
    parts = "  ".join(f"{name} {value:.2f}" for name, value in rollout.reward_parts.items())
    return RolloutLine(
        id=rollout.id,
        state=rollout.state,
        task=plain_line(plan.task),
        harness=plain_line(plan.harness),
        purpose=str(plan.purpose).removeprefix("eval_"),
        step=plan.step,
        attempt=rollout.attempt,
        policy_version=rollout.policy_version,
        num_calls=rollout.num_calls,
        num_tokens=rollout.num_sampled_tokens,
        reward=rollout.reward,
        reward_parts=plain_line(parts),
        failure=plain_line(rollout.failure),
        failure_detail=plain_line(rollout.failure_detail),
        started_at=rollout.started_at,
        ended_at=rollout.ended_at,
        last_event_at=rollout.last_event_at,
        deadline_s=_number(limits.get(key), FALLBACK_DEADLINE_S),
    )


def _events(store: Store, run_id: str, last: tuple[EventLine, ...]) -> tuple[EventLine, ...]:
    """The newest events of the run and of no run, oldest first; only what came after `last` is read."""
    after = last[-1].id if last else 0
    newest = "SELECT * FROM (SELECT id, at, level, part, message, rollout_id FROM events WHERE run_id {} AND id>?3"
    newest += " ORDER BY id DESC LIMIT ?2)"  # each half by the index; an OR would sort every event there is
    sql = f"{newest.format('= ?1')} UNION ALL {newest.format('IS NULL')} ORDER BY id DESC LIMIT ?2"
    found = store.rows(sql, run_id, MAX_EVENTS, after)
    more = tuple(
        EventLine(
            row["id"], row["at"], plain_line(row["level"]), plain_line(row["part"]), plain(row["message"]),
            row["rollout_id"],
        )
        for row in reversed(found)
    )  # fmt: skip
    return (*last, *more)[-MAX_EVENTS:]
