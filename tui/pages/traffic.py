"""The newest calls through the proxy, as the traffic view draws them. No Textual; costs no more with more calls."""

from __future__ import annotations

from dataclasses import dataclass

from appliance.record.store import Run, Store
from tui.text import plain_line

MAX_CALLS = 300
RECENT_ROLLOUTS = 60
TRAFFIC = (
    "SELECT c.id, c.rollout_id, c.sequence, c.wire, c.num_prompt_tokens, c.num_sampled_tokens, c.stop_reason,"
    " c.policy_version, c.started_at, c.ended_at, c.delivered, c.lineage, r.task, r.harness"
    " FROM rollouts r JOIN calls c ON c.rollout_id=r.id AND c.attempt=r.attempt"
    " WHERE r.id IN (SELECT id FROM rollouts WHERE run_id=?1 AND num_calls>0 ORDER BY id DESC LIMIT ?2)"
    " ORDER BY c.ended_at DESC LIMIT ?3"
)


@dataclass(frozen=True, slots=True)
class TrafficLine:
    """One call as the proxy saw it. `version` is None for a teacher's."""

    id: int
    rollout_id: int
    task: str
    harness: str
    sequence: int
    wire: str
    num_prompt_tokens: int
    num_sampled_tokens: int
    stop_reason: str
    version: int | None
    started_at: float
    seconds: float
    is_delivered: bool
    lineage: str


@dataclass(frozen=True, slots=True)
class TrafficPage:
    """The newest calls of a run, newest first."""

    calls: tuple[TrafficLine, ...] = ()


def traffic(store: Store, run: Run) -> TrafficPage:
    """Calls of the rollouts that called last."""
    return TrafficPage(
        tuple(
            TrafficLine(
                row["id"], row["rollout_id"], plain_line(row["task"]), plain_line(row["harness"]), row["sequence"],
                plain_line(row["wire"]), row["num_prompt_tokens"], row["num_sampled_tokens"],
                plain_line(row["stop_reason"]), row["policy_version"], row["started_at"],
                row["ended_at"] - row["started_at"], bool(row["delivered"]), plain_line(row["lineage"]),
            )
            for row in store.rows(TRAFFIC, run.id, RECENT_ROLLOUTS, MAX_CALLS)
        )
    )  # fmt: skip
