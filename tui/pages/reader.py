"""Reads the record for the views: one `Snapshot` a poll, read anew only when it has changed. It writes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from appliance.errors import RecordLocked, StoreError
from appliance.record import queries
from appliance.record.heartbeat import attended_run
from appliance.record.store import Run, Store
from tui.pages.calls import CallText, read_calls
from tui.pages.checkpoints import checkpoints
from tui.pages.curve import EVALUATIONS, read_curve
from tui.pages.hardware import read_engines
from tui.pages.log import events_around, read_events
from tui.pages.rewards import rewards
from tui.pages.rollouts import matching, ordered, rollout_line, with_advantages
from tui.pages.runs import choose, run_line
from tui.pages.settings import settings
from tui.pages.snapshot import EventLine, RolloutLine, Snapshot, Wanted
from tui.pages.tasks import tasks
from tui.pages.traffic import traffic
from tui.pages.tree import TreePage, read_tree
from tui.text import plain, plain_line

PATIENCE_S = 1.0
"""A record that is locked for longer is said to be; the views go on with what they have."""
ROLLOUT_VIEWS = ("rollouts", "calls", "tree")
RECORD_PAGES: dict[str, Callable[[Store, Run], object]] = {
    "traffic": traffic,
    "rewards": rewards,
    "tasks": tasks,
    "checkpoints": checkpoints,
    "settings": settings,
}
"""View → what it reads of the record while it is in front."""


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

    def close(self, keep: bool = False) -> None:
        """Closes the record; safe to call twice. `keep` what was read last."""
        if self._store is not None:
            self._store.close()
        self._store = None
        self._seen = self._calls_of = self._tree_of = ()
        self._last = self._last if keep else Snapshot()

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
        except RecordLocked as error:
            self.close(keep=True)
            if not self._last.runs:
                return Snapshot(now=now, home=shown, problem=(plain(error.message), plain(error.remedy)))
            return replace(self._last, now=now, home=shown, is_locked=True)
        except StoreError as error:
            self.close()
            return Snapshot(now=now, home=shown, problem=(plain(error.message), plain(error.remedy)))
        return replace(self._last, now=now, home=shown)

    def _open(self) -> Store:
        inode = self.path.stat().st_ino
        if self._store is None or inode != self._inode:
            self.close(keep=inode == self._inode)
            self._store, self._inode = Store.open(self.path, readonly=True, patience_s=PATIENCE_S), inode
        return self._store

    def _read(self, store: Store, wanted: Wanted, attended: str | None) -> Snapshot:
        """What the view in front needs; what only other views show stays as it was read last."""
        found = store.runs()
        lines = tuple(run_line(run, store, attended) for run in found)
        chosen = choose(lines, wanted.run_id)
        if chosen is None:
            return Snapshot(runs=lines)
        run = found[lines.index(chosen)]
        last = self._last if self._last.run is not None and self._last.run.id == chosen.id else Snapshot()
        base = replace(
            last,
            runs=lines,
            run=chosen,
            counts=queries.counts(store, run.id),
            only=wanted.only,
            page=None,
            problem=None,
        )
        base = replace(base, wanted=wanted)
        if wanted.view in ROLLOUT_VIEWS:
            base = self._with_rollouts(store, run, wanted, base)
        elif wanted.view == "curve":
            groups = queries.groups(store, run.id)
            tested = [r for purpose in EVALUATIONS for r in store.rollouts(run.id, purpose)]
            base = replace(base, curve=read_curve(groups, tested, store.steps(run.id), chosen.num_steps))
        elif wanted.view == "log":
            base = replace(base, events=self._events(store, run.id, wanted, last))
        elif wanted.view == "hardware":
            base = replace(base, engines=read_engines(store, run.id))
        elif wanted.view in RECORD_PAGES:
            base = replace(base, page=RECORD_PAGES[wanted.view](store, run))
        return base

    def _with_rollouts(self, store: Store, run: Run, wanted: Wanted, base: Snapshot) -> Snapshot:
        shown = matching(store, run.id, wanted.only) if wanted.only else queries.screenful(store, run.id)
        lines = [rollout_line(r, run.config) for r in shown]
        is_group = wanted.only is not None and wanted.only.task
        rollouts = ordered(with_advantages(lines, shown, run) if is_group else lines)
        opened = next((r for r in rollouts if r.id == wanted.rollout_id), None)
        if opened is None and wanted.rollout_id is not None:  # it is not on the page
            other = queries.one(store, wanted.rollout_id)
            opened = rollout_line(other, run.config) if other and other.plan.run_id == run.id else None
        base = replace(base, rollouts=rollouts, rollout=opened)
        if wanted.view == "calls":
            return replace(base, calls=self._calls(store, opened))
        if wanted.view == "tree" and opened is not None:
            return replace(base, page=self._tree(store, opened))
        return base

    def _events(self, store: Store, run_id: str, wanted: Wanted, last: Snapshot) -> tuple[EventLine, ...]:
        if wanted.log_at is not None:
            return events_around(store, run_id, wanted.log_at)
        return read_events(store, run_id, last.events if last.wanted.log_at is None else ())

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
