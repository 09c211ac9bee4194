"""How much of what was sampled is trained, and what other ways of logging would have kept. Pure.

The comparison is ClawGym II's (arXiv 2608.16798, "trajectory recovery matters"): *last call only* keeps what stands on
the path of a rollout's last call, *outcome only* keeps its last answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from appliance.trees.recovery import Recovered
from appliance.types import Said


@dataclass(frozen=True, slots=True)
class Use:
    """Token counts, added over rollouts with `+`.

    sampled_tokens · trained_tokens: those of them in a row of a graded rollout · call_tokens: all prompts and answers
    as a log of calls holds them (flat) · tree_tokens: the same, each once (unique) · last_call_tokens,
    outcome_tokens: sampled tokens that the two other ways of logging would keep.
    """

    sampled_tokens: int = 0
    trained_tokens: int = 0
    call_tokens: int = 0
    tree_tokens: int = 0
    last_call_tokens: int = 0
    outcome_tokens: int = 0

    def __add__(self, other: Use) -> Use:
        return Use(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Use)))

    def metrics(self) -> dict[str, float]:
        """By name, as a step's metrics hold them."""
        return {f.name: float(getattr(self, f.name)) for f in fields(Use)}


def of_metrics(steps: Sequence[dict[str, float]]) -> Use:
    """The sum over steps that hold these metrics; what an older Corral did not count is 0."""
    return Use(*(int(sum(m.get(f.name, 0.0) for m in steps)) for f in fields(Use)))


def use(calls: Sequence[Said], found: Recovered, is_trained: bool = True) -> Use:
    """The counts of one rollout; `is_trained`: it has a grade."""
    samples = [c.call.sample for c in calls if c.call.sample is not None]
    if not samples:
        return Use()
    order = [(c.call.started_at, c.call.sequence) for c in calls if c.call.sample is not None]
    last = order.index(max(order))
    way = found.tree.path(found.tree.leaves[last])
    return Use(
        sampled_tokens=sum(len(s.sampled_ids) for s in samples),
        trained_tokens=sum(int(row.mask.sum()) for row in found.rows) if is_trained else 0,
        call_tokens=sum(len(s.prompt_ids) + len(s.sampled_ids) for s in samples),
        tree_tokens=found.tree.num_unique_tokens,
        last_call_tokens=sum(len(node.ids) for n in way if (node := found.tree.nodes[n]).call >= 0),
        outcome_tokens=len(samples[last].sampled_ids),
    )


def shares(total: Use) -> dict[str, float | None]:
    """Shares of the sampled tokens by way of logging, and flat tokens a unique one; None without any."""
    sampled, unique = total.sampled_tokens, total.tree_tokens
    return {
        "trained": total.trained_tokens / sampled if sampled else None,
        "last_call_only": total.last_call_tokens / sampled if sampled else None,
        "outcome_only": total.outcome_tokens / sampled if sampled else None,
        "flat_per_unique": total.call_tokens / unique if unique else None,
    }
