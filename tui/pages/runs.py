"""The runs of a record as lines, and which of them is shown. No Textual."""

from __future__ import annotations

from collections.abc import Mapping

from appliance.record import queries
from appliance.record.store import Run, Store
from appliance.types import RunState
from tui.pages.snapshot import RunLine
from tui.text import plain_line


def choose(lines: tuple[RunLine, ...], run_id: str | None) -> RunLine | None:
    """The wanted run, else the one that works now, else the newest."""
    wanted = [line for line in lines if line.id == run_id]
    live = [line for line in lines if line.is_live]
    return next(iter([*wanted, *live, *lines]), None)


def section(config: Mapping[str, object], name: str) -> Mapping[str, object]:
    """A table of a recorded configuration; empty where it has none."""
    found = config.get(name)
    return found if isinstance(found, dict) else {}


def number(value: object, otherwise: float) -> float:
    """A recorded number, or `otherwise` where something else was recorded."""
    return float(value) if isinstance(value, int | float) else otherwise


def run_line(run: Run, store: Store, attended: str | None) -> RunLine:
    """A run; `attended` is the one that a live supervisor works on, None when this machine cannot tell."""
    is_lost = run.state in (RunState.RUNNING, RunState.DRAINING) and attended is not None and attended != run.id
    is_paused = run.state is RunState.RUNNING and not is_lost and store.is_paused(run.id)
    harnesses = run.config.get("harnesses")
    names = harnesses if isinstance(harnesses, list | tuple) else ()
    return RunLine(
        id=plain_line(run.id),
        name=plain_line(run.name),
        word="lost" if is_lost else "paused" if is_paused else str(run.state),
        phase=plain_line(run.phase),
        message=plain_line(run.message),
        seed=run.seed,
        harnesses=plain_line(", ".join(str(name) for name in names)),
        pack=plain_line(str(section(run.config, "tasks").get("pack", ""))),
        steps_done=queries.steps_done(store, run.id),
        num_steps=int(number(section(run.config, "train").get("steps"), 0)),
        last_reward=queries.last_reward(store, run.id),
        created_at=run.created_at,
        ended_at=run.ended_at,
    )
