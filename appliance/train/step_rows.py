"""The rows of one step, from the record alone: grades → credit, calls → trees → rows. No torch, no writes.

The trainer trains on what comes out of here and `corral replay` makes it again, so whatever decides about rows or
advantages belongs here and reads nothing but the record and the run's configuration. A rollout without a reward is in
no row (I5); a call that is left out is in no mask, with its reason told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from appliance.config.runconfig import RunConfig
from appliance.config.sections import BranchesSection, TrainSection
from appliance.errors import TrainingError
from appliance.record.store import Store
from appliance.train.advantage import Advantages, Rewards, dr_grpo, grpo, is_flat, rloo, shaped_for_length
from appliance.train.batch import Index
from appliance.train.batch import Sequence as TrainingRow
from appliance.train.gae import Trajectory
from appliance.train.provenance import tree_of
from appliance.trees.recovery import Recovered, Verdict, verdicts_of
from appliance.trees.tree import Row
from appliance.trees.utilisation import Use, use
from appliance.types import Call, Credit, Rollout, RolloutState, StopReason

BY_GROUP = {"grpo": grpo, "dr_grpo": dr_grpo, "rloo": rloo}


@dataclass(frozen=True, slots=True)
class StepRows:
    """What a step trains on, its metrics, and what is worth telling as (rollout id or None, message).

    trajectories: by rollout; empty unless a critic learns from them · on_policy: rollout → harness, of those whose
    calls were all answered by the version that the step starts from · verdicts: rollout → sequence → verdict.
    """

    rows: list[TrainingRow]
    metrics: dict[str, float]
    told: list[tuple[int | None, str]]
    trajectories: dict[int, Trajectory]
    on_policy: dict[int, str]
    verdicts: dict[int, dict[int, Verdict]]


def step_rows(store: Store, rollouts: Sequence[Rollout], config: RunConfig) -> StepRows:
    """The rows of a step with their advantages, and what the step says of its rollouts.

    Groups of equal rewards have advantage 0 everywhere; their rows are left out, since they change nothing (E4). A
    critic learns from them, so that with PPO they stay, and `Sequence.advantage` is the reward it learns from.
    Negative advantages are multiplied by `train.negative_weight`: most tokens of a failed rollout were right, and
    pushing them down as hard as the wrong ones wears a small policy out (LOG.md has the runs that show it).
    """
    calls = {r.id: store.calls(r.id) for r in rollouts}
    _refuse_without_ids(rollouts, calls)
    credits = credits_of(rollouts, config.train)
    whole, branches = Use(), Counter[str]()
    told = [*_flat_groups(rollouts), *_several_templates(rollouts, calls)]
    made = StepRows([], {}, [(None, text) for text in told], {}, {}, {})
    for rollout in rollouts:
        own, tree = tree_of(store, rollout.id, config.branches, calls[rollout.id])
        credit = credits[rollout.id]
        whole += use(own, tree, is_trained=credit is not None)
        if credit is None:
            continue
        made.told.extend((rollout.id, f"rollout={rollout.id}: {text}") for text in _left_out(tree))
        made.verdicts[rollout.id] = verdicts_of(own, tree)
        _count(branches, tree)
        _add(made, rollout.id, tree, calls[rollout.id], credit, config)
        if _versions(calls[rollout.id]) == {rollout.plan.step - 1}:
            made.on_policy[rollout.id] = rollout.plan.harness
    graded = sum(r.reward is not None for r in rollouts)
    made.metrics.update(
        _rollout_metrics(rollouts, calls) | whole.metrics() | {k: float(v) for k, v in branches.items()}
    )
    made.metrics["refilled_groups"] = max(0.0, made.metrics["groups"] - config.train.groups)
    made.metrics["rows_per_rollout"] = branches["rows"] / max(graded, 1)
    return made


def _add(
    made: StepRows, rollout: int, tree: Recovered, calls: Sequence[Call], credit: float, config: RunConfig
) -> None:
    """Adds one rollout's rows, unless they teach nothing."""
    with_critic = config.train.algorithm == "ppo"
    if not with_critic and credit < 0:
        credit *= config.train.negative_weight
    if not tree.rows or not (with_critic or credit):
        return
    places = places_in_time(tree, calls)
    made.rows.extend(
        TrainingRow(r.ids, r.mask, r.behaviour_logprobs, credit, rollout, own)
        for r, own in zip(tree.rows, places, strict=True)
    )
    if with_critic:
        made.trajectories[rollout] = trajectory_of(tree, places, credit, config.branches)


# ------------------------------------------------------------------ credit of a rollout


def credits_of(rollouts: Sequence[Rollout], train: TrainSection) -> dict[int, float | None]:
    """Rollout → advantage within its group, or the reward itself for PPO; None when it failed."""
    found: dict[int, float | None] = {}
    for members in grouped(rollouts).values():
        rewards = [_shaped(r, train) for r in members]
        credits = rewards if train.algorithm == "ppo" else _by_group(train.algorithm, rewards)
        found |= {r.id: a for r, a in zip(members, credits, strict=True)}
    return found


def _by_group(algorithm: str, rewards: Rewards) -> Advantages:
    return BY_GROUP[algorithm](rewards)


def _shaped(rollout: Rollout, train: TrainSection) -> float | None:
    if rollout.reward is None:
        return None
    return shaped_for_length(rollout.reward, rollout.num_sampled_tokens, train.overlong_soft, train.overlong_hard)


def grouped(rollouts: Sequence[Rollout]) -> dict[str, list[Rollout]]:
    """Rollouts by the key of their group."""
    groups: dict[str, list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.plan.group, []).append(rollout)
    return groups


# ------------------------------------------------------------------ order of a rollout's tokens


def places_in_time(tree: Recovered, calls: Sequence[Call]) -> list[Index]:
    """For each row (T,) int64: how many sampled tokens of the rollout came before each sampled token, -1 elsewhere.

    Calls are ordered by their start; calls that are left out have no places.
    """
    kept = [n for n in tree.numbers if n not in tree.left_out]
    first: dict[int, int] = {}
    total = 0
    for n in sorted(kept, key=lambda n: (calls[n].started_at, calls[n].sequence)):
        sample = calls[n].sample
        assert sample is not None  # `numbers` holds the calls that have ids
        first[n] = total - len(sample.prompt_ids)  # a token's depth is the prompt's length and its offset
        total += len(sample.sampled_ids)
    return [_places(row, first) for row in tree.rows]


def _places(row: Row, first: Mapping[int, int]) -> Index:
    starts = np.full(int(row.calls.max(initial=-1)) + 2, -1, dtype=np.int64)  # the last entry is that of -1
    known = np.zeros(len(starts), dtype=np.bool_)
    for call, start in first.items():
        if call < len(starts) - 1:
            starts[call], known[call] = start, True
    return np.where(known[row.calls], starts[row.calls] + np.arange(len(row.ids)), -1)


def trajectory_of(tree: Recovered, places: Sequence[Index], reward: float, branches: BranchesSection) -> Trajectory:
    """The rollout as the critic sees it: calls whose branch is broadcast do not take part in the chain."""
    count = sum(int(row.mask.sum()) for row in tree.rows)
    chained = np.ones(count, dtype=np.bool_)
    apart = [n for n, role in enumerate(tree.roles) if branches.credit(role.branch) is Credit.BROADCAST]
    for row, own in zip(tree.rows, places, strict=True):
        chained[own[np.isin(row.calls, apart) & (own >= 0)]] = False
    if not chained.any():  # nothing to broadcast from: the branch is all there is
        chained[:] = True
    return Trajectory(reward, chained, [own[own >= 0] for own in places])


# ------------------------------------------------------------------ what the step says


def _refuse_without_ids(rollouts: Sequence[Rollout], calls: Mapping[int, Sequence[Call]]) -> None:
    graded = [c for r in rollouts if r.reward is not None for c in calls[r.id]]
    if graded and all(c.sample is None for c in graded):
        raise TrainingError(
            f"none of the {len(graded)} calls of the step's graded rollouts has token ids; text alone cannot be "
            "trained on",
            "train on rollouts that the engine answered, not on those of a teacher or an upstream",
        )


def _several_templates(rollouts: Sequence[Rollout], calls: Mapping[int, Sequence[Call]]) -> list[str]:
    """Says where one harness's prompts were made by more than one tokenizer or template: its logprobs will differ."""
    found: dict[str, set[str]] = {}
    for rollout in rollouts:
        found.setdefault(rollout.plan.harness, set()).update(c.template for c in calls[rollout.id] if c.template)
    return [
        f"{harness}: its prompts were made by {len(names)} templates ({', '.join(sorted(names))})"
        for harness, names in found.items()
        if len(names) > 1
    ]


def _left_out(tree: Recovered) -> list[str]:
    return [f"a call is not trained: {reason}" for reason in sorted(set(tree.left_out.values()))]


def _flat_groups(rollouts: Sequence[Rollout]) -> list[str]:
    return [
        f"group {group}: the rewards of its {len(members)} rollouts do not differ, so they change nothing"
        for group, members in grouped(rollouts).items()
        if is_flat([r.reward for r in members])
    ]


def _count(counts: Counter[str], tree: Recovered) -> None:
    """Rows, and trained tokens by the branch of their call."""
    counts["rows"] += len(tree.rows)
    for row in tree.rows:
        for call, number in zip(*np.unique(row.calls[row.mask], return_counts=True), strict=True):
            counts[f"trained_tokens/{tree.roles[int(call)].branch}"] += int(number)


def _versions(calls: Sequence[Call]) -> set[int]:
    return {c.sample.policy_version for c in calls if c.sample is not None}


def _rollout_metrics(rollouts: Sequence[Rollout], calls: Mapping[int, Sequence[Call]]) -> dict[str, float]:
    """Rewards, lengths and failures, over all rollouts and by harness; TRL's names where it has one."""
    samples = [c.sample for own in calls.values() for c in own if c.sample is not None]
    lengths = [sum(len(c.sample.sampled_ids) for c in calls[r.id] if c.sample is not None) for r in rollouts]
    lags = [r.plan.step - 1 - v for r in rollouts for v in _versions(calls[r.id])]
    found = _rewards(rollouts) | {
        "failed_rollouts": float(sum(r.state is RolloutState.FAILED for r in rollouts)),
        "completions/mean_length": float(np.mean(lengths or [0])),
        "completions/min_length": float(min(lengths, default=0)),
        "completions/max_length": float(max(lengths, default=0)),
        "completions/clipped_ratio": _share([s.stop_reason is StopReason.LENGTH for s in samples]),
        "version_lag": float(np.mean(lags or [0])),
    }
    for part in sorted({name for r in rollouts for name in r.reward_parts}):
        found[f"rewards/{part}/mean"] = float(
            np.mean([r.reward_parts[part] for r in rollouts if part in r.reward_parts])
        )
    for harness in sorted({r.plan.harness for r in rollouts}):
        own = _rewards([r for r in rollouts if r.plan.harness == harness])
        found |= {f"{name}/{harness}": value for name, value in own.items()}
    return found


def _rewards(rollouts: Sequence[Rollout]) -> dict[str, float]:
    rewards = [r.reward for r in rollouts if r.reward is not None]
    groups = grouped(rollouts).values()
    return {
        "reward": float(np.mean(rewards or [0.0])),
        "reward_std": float(np.std(rewards or [0.0])),
        "pass": _share([r >= 1.0 for r in rewards]),
        "frac_reward_zero_std": _share([is_flat([r.reward for r in members]) for members in groups]),
        "groups": float(len(groups)),
    }


def _share(claims: Sequence[bool]) -> float:
    return sum(claims) / max(len(claims), 1)
