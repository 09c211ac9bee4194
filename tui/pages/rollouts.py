"""The rollouts of a run as lines, in the order in which they matter. No Textual."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from appliance.errors import ApplianceError
from appliance.record import queries
from appliance.record.schema import rollout_from_row
from appliance.record.store import Run, Store
from appliance.types import Purpose, Rollout, RolloutState
from tui.pages.runs import number, section
from tui.pages.snapshot import Only, RolloutLine
from tui.text import plain, plain_line

FALLBACK_DEADLINE_S = 60.0


def matching(store: Store, run_id: str, only: Only) -> list[Rollout]:
    """The newest training rollouts of a step, of a group, or with a reward in a range."""
    if only.step is not None:
        step, wanted = store.rollouts(run_id, Purpose.TRAIN, only.step), (only.task, only.harness)
        return [r for r in step if not only.task or (plain_line(r.plan.task), plain_line(r.plan.harness)) == wanted]
    sql = "SELECT * FROM rollouts WHERE run_id=?1 AND purpose='train' AND reward>=?2 AND reward<?3"
    found = store.rows(f"{sql} ORDER BY id DESC LIMIT ?4", run_id, only.low, only.high, queries.PAGE)
    return [rollout_from_row(row) for row in found]


def with_advantages(lines: Sequence[RolloutLine], rollouts: list[Rollout], run: Run) -> list[RolloutLine]:
    """The lines of one group with what training moves each by; as they are while its configuration cannot be read."""
    from appliance.config.runconfig import from_record
    from appliance.train.step_rows import credits_of

    try:
        credits = credits_of(rollouts, from_record(run.config).train)
    except ApplianceError:
        return list(lines)
    return [replace(line, advantage=credits.get(line.id)) for line in lines]


def ordered(rollouts: list[RolloutLine]) -> tuple[RolloutLine, ...]:
    """Live ones first, the longest under way on top; then what ended, newest first; then what waits."""
    live = sorted((r for r in rollouts if r.is_live), key=lambda r: r.started_at or 0.0)
    ended = sorted((r for r in rollouts if r.ended_at is not None and not r.is_live), key=lambda r: -(r.ended_at or 0))
    waiting = [r for r in rollouts if not r.is_live and r.ended_at is None]
    return (*live, *ended, *waiting)


def rollout_line(rollout: Rollout, config: Mapping[str, object]) -> RolloutLine:
    """A rollout, with the deadline that the run's configuration gives its phase."""
    plan, limits = rollout.plan, section(config, "rollout")
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
        deadline_s=number(limits.get(key), FALLBACK_DEADLINE_S),
    )


def read_output(home: Path, rollout_id: int) -> str:
    """What the harness and the grader of a rollout wrote, as far as it was kept when the rollout ended."""
    store = Store.open(home / "record.db", readonly=True)
    try:
        found = store.rows("SELECT output, failure_detail FROM rollouts WHERE id=?", rollout_id)
    finally:
        store.close()
    told = [plain(str(row[name])) for row in found for name in ("failure_detail", "output") if row[name]]
    return "\n\n".join(told) or "Nothing is kept of what it wrote: it has not ended, or it wrote nothing."
