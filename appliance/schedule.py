"""Which rollouts a run makes, as pure functions of its seed: the same run planned twice is the same plan.

That is what lets a resumed run find what is missing: it plans again and the record answers which rollouts it has.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from appliance.types import Purpose, Rollout, RolloutPlan, RolloutState

T = TypeVar("T")


def teaching(run_id: str, seed: int, harnesses: Sequence[str], tasks: Sequence[str], count: int) -> list[RolloutPlan]:
    """`count` teacher rollouts a harness; tasks repeat only once all have been used."""
    plans: list[RolloutPlan] = []
    for harness in harnesses:
        order = _shuffled(tasks, f"{seed}/teach/{harness}")
        for n in range(count):
            task, index = order[n % len(order)], n // len(order)
            plans.append(RolloutPlan(run_id, Purpose.TEACH, 0, harness, task, index))
    return _interleaved(plans, harnesses)


def evaluation(
    run_id: str, purpose: Purpose, step: int, harnesses: Sequence[str], tasks: Sequence[str], attempts: int
) -> list[RolloutPlan]:
    """Every held-out task in every harness, `attempts` times; the same list before and after."""
    plans = [
        RolloutPlan(run_id, purpose, step, harness, task, index)
        for harness in harnesses
        for index in range(attempts)
        for task in tasks
    ]
    return _interleaved(plans, harnesses)


def groups(seed: int, harnesses: Sequence[str], tasks: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """An endless stream of (task, harness) pairs from `tasks` (name → family).

    Families take turns, so that a step practises as many of them as it can and none is unlearnt meanwhile; each task
    comes with every harness, and no task comes again before all of its family have come.
    """
    families = sorted(set(tasks.values()))
    for epoch in range(1 << 30):
        queues = [_shuffled([t for t in tasks if tasks[t] == f], f"{seed}/train/{epoch}/{f}") for f in families]
        for turn in range(max(map(len, queues))):
            for queue in _shuffled(queues, f"{seed}/turn/{epoch}/{turn}"):
                for harness in harnesses if turn < len(queue) else ():
                    yield queue[turn], harness


def training_step(
    run_id: str, step: int, pairs: Sequence[tuple[str, str]], group_size: int, seed: int
) -> list[RolloutPlan]:
    """The rollouts of one step: `group_size` for each pair, shuffled so that harnesses share the machine evenly."""
    plans = [
        RolloutPlan(run_id, Purpose.TRAIN, step, harness, task, index)
        for task, harness in pairs
        for index in range(group_size)
    ]
    return _shuffled(plans, f"{seed}/order/{step}")


def some(tasks: Sequence[str], count: int, seed: int) -> list[str]:
    """`count` of the tasks, drawn by the seed, in their own order; all of them for 0."""
    if not count:
        return list(tasks)
    chosen = set(_shuffled(tasks, f"{seed}/some")[:count])
    return [t for t in tasks if t in chosen]


def unfinished(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Those without an outcome: never started, or cut off by a kill."""
    return [r for r in rollouts if r.state not in (RolloutState.GRADED, RolloutState.FAILED)]


def useful_groups(rollouts: Sequence[Rollout]) -> int:
    """How many groups have rewards that differ; only those move the policy."""
    rewards: dict[str, list[float | None]] = {}
    for r in rollouts:
        rewards.setdefault(r.plan.group, []).append(r.reward)
    return sum(len({x for x in found if x is not None}) > 1 for found in rewards.values())


def _shuffled(items: Sequence[T], key: str) -> list[T]:
    order = list(items)
    random.Random(key).shuffle(order)
    return order


def _interleaved(plans: Sequence[RolloutPlan], harnesses: Sequence[str]) -> list[RolloutPlan]:
    """One of each harness in turn: slow and fast harnesses then overlap."""
    queues = {h: [p for p in plans if p.harness == h] for h in harnesses}
    longest = max((len(q) for q in queues.values()), default=0)
    return [q[n] for n in range(longest) for q in queues.values() if n < len(q)]
