"""Many rollouts at once, as the user steers them: pause, go on, end one, make one again.

The supervisor hands commands in and says how a rollout is made. Invariants: a rollout with a grade is never made again
(I8); one that was ended has failed by name and has no reward (I5).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import anyio

from appliance.errors import StoreError
from appliance.record.store import Store
from appliance.types import Rollout

PAUSE_POLL_S = 0.2
PROGRESS_S = 5.0
KILLED = "harness:killed"
Log = Callable[[str, str, str], None]
Make = Callable[[Rollout], Awaitable[None]]


@dataclass(slots=True)
class Steering:
    """One for a run. `is_paused` holds back rollouts that have not begun."""

    store: Store
    log: Log
    is_paused: bool = False
    _waiting: deque[Rollout] = field(default_factory=deque)
    _batch: dict[int, Rollout] = field(default_factory=dict)
    _scopes: dict[int, anyio.CancelScope] = field(default_factory=dict)
    _again: set[int] = field(default_factory=set)

    def take(self, kind: str, argument: str) -> None:
        """One command: `pause`, `unpause`, `kill ROLLOUT` or `retry ROLLOUT`; another is said to be unknown."""
        if kind in ("pause", "unpause"):
            self.is_paused = kind == "pause"
            told = "paused: no new rollouts until `unpause`" if self.is_paused else "going on after a pause"
            self.log("info", "supervisor", told)
        elif kind == "kill" and argument.isdigit():
            self._end(int(argument))
        elif kind == "retry" and argument.isdigit():
            self._remake(int(argument))
        else:
            self.log("warning", "supervisor", f"command {kind!r} {argument!r} is unknown: nothing was done")

    async def work(self, rollouts: Sequence[Rollout], parallel: int, draining: anyio.Event, make: Make) -> None:
        """Makes these rollouts, `parallel` at once, until all have an outcome or the run drains; says how far it is."""
        self._waiting = deque(rollouts)
        self._batch = {rollout.id: rollout for rollout in rollouts}
        started = told_at = time.monotonic()
        finished = 0

        async def worker() -> None:
            nonlocal finished, told_at
            while self._waiting and not draining.is_set():
                if self.is_paused:
                    await anyio.sleep(PAUSE_POLL_S)
                    continue
                is_made = await self._made(self._waiting.popleft(), make)
                finished += is_made  # not `+= await`: that adds to what was there before other workers' counts
                now = time.monotonic()
                if now - told_at >= PROGRESS_S and finished:
                    told_at = now
                    left = (len(self._batch) - finished) * (now - started) / finished
                    text = f"{finished}/{len(self._batch)} rollouts of this batch, about {left:.0f} s left"
                    self.log("info", "supervisor", text)

        async with anyio.create_task_group() as group:
            for _ in range(parallel):
                group.start_soon(worker)
        self._batch = {}

    async def _made(self, rollout: Rollout, make: Make) -> bool:
        """Makes a rollout that a command may end meanwhile; whether it has an outcome now."""
        with anyio.CancelScope() as scope:
            self._scopes[rollout.id] = scope
            try:
                await make(rollout)
            finally:
                del self._scopes[rollout.id]
        if not scope.cancelled_caught:
            self._again.discard(rollout.id)
            return True
        if rollout.id in self._again:
            self._again.discard(rollout.id)
            self._waiting.append(rollout)
            return False
        with suppress(StoreError):  # it was graded at that very moment
            self.store.fail(rollout.id, KILLED, "ended by request")
        self.log("warning", "harness", f"rollout={rollout.id} failed {KILLED}: ended by request")
        return True

    def _end(self, rollout_id: int) -> None:
        scope = self._scopes.get(rollout_id)
        if scope is None:
            self.log("warning", "supervisor", f"rollout={rollout_id} is not under way: nothing to end")
        else:
            scope.cancel()

    def _remake(self, rollout_id: int) -> None:
        """One under way is ended and begun again; a failed one waits for its turn while others of its batch go on."""
        if rollout_id in self._scopes:
            self._again.add(rollout_id)
            self._scopes[rollout_id].cancel()
        elif self._scopes and rollout_id in self._batch and self.store.plan_again(rollout_id):
            self._waiting.append(self._batch[rollout_id])
        else:
            told = f"rollout={rollout_id} cannot be made again: it is graded, waits, or its batch is over"
            self.log("warning", "supervisor", told)
            return
        self.log("info", "supervisor", f"rollout={rollout_id} is made again by request")
