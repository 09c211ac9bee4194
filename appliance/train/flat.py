"""Steps that teach nothing: a loss of 0 for hours must not look like training (trl#3452, unsloth#2291). Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from appliance.types import Rollout, RolloutState


def flat_in_a_row(earlier: Sequence[Mapping[str, float]], now: Mapping[str, float]) -> int:
    """How many steps up to and with this one had no group whose rewards differ."""
    count = 0
    for metrics in [now, *reversed(earlier)]:
        if metrics.get("frac_reward_zero_std", 0.0) < 1.0:
            break
        count += 1
    return count


def likely_causes(rollouts: Sequence[Rollout]) -> str:
    """Why the rewards of a step's groups may all be equal, the likeliest first, from what its rollouts show."""
    rewards = [r.reward for r in rollouts if r.reward is not None]
    failed = Counter(r.failure for r in rollouts if r.state is RolloutState.FAILED)
    causes = []
    if sum(failed.values()) * 2 > len(rollouts):
        causes.append(f"most rollouts fail ({failed.most_common(1)[0][0]}): see `corral status`")
    if rewards and len(set(rewards)) == 1 and rewards[0] <= 0:
        causes.append(
            "no rollout earns anything: tasks too hard for this policy, a grader that never passes (corral tasks "
            "lint), or answers cut short (rollout.max_tokens, rollout.max_calls, rollout.timeout_s)"
        )
    if rewards and len(set(rewards)) == 1 and rewards[0] > 0:
        causes.append(
            "every rollout earns the same: tasks too easy, or a grader that passes anything (corral tasks lint)"
        )
    if len(set(rewards)) > 1:
        causes.append(
            "tasks are either always or never solved: more rollouts a group (train.group_size) or other tasks"
        )
    causes.append(
        "rollouts of a group are alike: rollout.temperature too low, or a policy that has collapsed (entropy)"
    )
    return "; ".join(causes)
