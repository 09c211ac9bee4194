"""Which rollouts a run makes, as pure functions of its seed: the same run planned twice is the same plan.

That is what lets a resumed run find what is missing: it plans again and the record answers which rollouts it has.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from appliance.types import Purpose, Rollout, RolloutPlan, RolloutState

T = TypeVar("T")
RECENT_STEPS = 2
LEAST_NEED = 0.1
"""Weight of a harness in which everything or nothing is solved: it is looked at still, and may change."""


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


@dataclass(frozen=True, slots=True)
class Shares:
    """How the harnesses share a step's groups. weights: one a harness, or none for all alike · by_solve_rate: weigh

    each also by 4p(1 − p), p its recent solve rate: most groups go where tasks are sometimes solved and sometimes not.
    curriculum: the least weight of a (task, harness) pair, or None where pairs come in turn, whatever is solved.
    """

    harnesses: Sequence[str]
    weights: Sequence[float] = ()
    by_solve_rate: bool = False
    curriculum: float | None = None


def step_pairs(
    seed: int, step: int, count: int, shares: Shares, tasks: Mapping[str, str], earlier: Sequence[Rollout]
) -> list[tuple[str, str]]:
    """At most `count` (task, harness) pairs of a step, none twice, in the order in which they are to be made.

    `earlier`: the training rollouts of the steps before. They alone decide where each harness's tasks go on and what
    its solve rate is, so a resumed run plans the same.
    """
    if not shares.weights and not shares.by_solve_rate:
        if shares.curriculum is not None:
            return most_useful(seed, step, shares.harnesses, tasks, earlier, shares.curriculum)[:count]
        skipped = (step - 1) * count
        return list(dict.fromkeys(islice(groups(seed, shares.harnesses, tasks), skipped, skipped + count)))
    had = Counter(harness for _, _, harness in {(r.plan.step, r.plan.task, r.plan.harness) for r in earlier})
    streams: dict[str, Iterator[tuple[str, str]]] = {}
    for h in shares.harnesses:
        if shares.curriculum is None:
            streams[h] = islice(groups(seed, [h], tasks), had[h], None)
        else:
            streams[h] = iter(most_useful(seed, step, [h], tasks, earlier, shares.curriculum))
    weights = harness_weights(shares, earlier)
    given: Counter[str] = Counter() if shares.by_solve_rate else Counter(had)
    pairs: dict[tuple[str, str], None] = {}
    for _ in range(count):
        # the harness that lags furthest behind its share
        due = max(shares.harnesses, key=lambda h: weights[h] * (given.total() + 1) - given[h])
        given[due] += 1
        if pair := next(streams[due], None):
            pairs[pair] = None
    return list(pairs)


def most_useful(  # noqa: PLR0913, RUF100
    seed: int, step: int, harnesses: Sequence[str], tasks: Mapping[str, str], earlier: Sequence[Rollout], least: float
) -> list[tuple[str, str]]:
    """Every (task, harness) pair, those first that a step should practise: the curriculum.

    Pairs that never came are first, in the order of `groups`. After that it is weight × steps since a pair came, so
    that in the long run a pair comes as often as its weight says, and none is ever forgotten.
    """
    weights = pair_weights(earlier, least)
    came: dict[tuple[str, str], int] = {}
    for r in earlier:
        pair = (r.plan.task, r.plan.harness)
        came[pair] = max(came.get(pair, 0), r.plan.step)
    turn = list(islice(groups(seed, harnesses, tasks), len(tasks) * len(harnesses)))
    waited = {pair: weights.get(pair, 1.0) * (step - came[pair]) for pair in turn if pair in came}
    return sorted(turn, key=lambda pair: -waited.get(pair, math.inf))


def pair_weights(earlier: Sequence[Rollout], least: float) -> dict[tuple[str, str], float]:
    """(task, harness) → 4p(1 − p), at least `least`; p: its solve rate over the last RECENT_STEPS steps it came in.

    1 where half is solved, `least` where all or nothing is. A pair without a grade is not in it: nothing is known.
    """
    found = {}
    for pair, by_step in solved_by_step(earlier).items():
        recent = [by_step[step] for step in sorted(by_step)[-RECENT_STEPS:]]
        rate = sum(solved for solved, _ in recent) / sum(graded for _, graded in recent)
        found[pair] = max(4 * rate * (1 - rate), least)
    return found


def solved_by_step(rollouts: Sequence[Rollout]) -> dict[tuple[str, str], dict[int, tuple[int, int]]]:
    """(task, harness) → step → (rollouts with the full reward, rollouts with a grade); steps without one left out."""
    found: dict[tuple[str, str], dict[int, tuple[int, int]]] = {}
    for r in sorted(rollouts, key=lambda r: (r.plan.task, r.plan.harness, r.plan.step)):
        if r.reward is not None:
            by_step = found.setdefault((r.plan.task, r.plan.harness), {})
            solved, graded = by_step.get(r.plan.step, (0, 0))
            by_step[r.plan.step] = solved + (r.reward >= 1.0), graded + 1
    return found


def harness_weights(shares: Shares, earlier: Sequence[Rollout]) -> dict[str, float]:
    """Harness → its share of the groups; they add up to 1."""
    plain = shares.weights or [1.0] * len(shares.harnesses)
    found = dict(zip(shares.harnesses, plain, strict=True))
    if shares.by_solve_rate:
        for harness, rate in solve_rates(shares.harnesses, earlier).items():
            found[harness] *= max(4 * rate * (1 - rate), LEAST_NEED)
    total = sum(found.values())
    return {harness: weight / total for harness, weight in found.items()}


def solve_rates(harnesses: Sequence[str], earlier: Sequence[Rollout]) -> dict[str, float]:
    """Harness → share of full rewards over its last RECENT_STEPS steps, with one success and one failure added."""
    last = max((r.plan.step for r in earlier), default=0)
    recent = [r for r in earlier if r.plan.step > last - RECENT_STEPS and r.reward is not None]
    found = {}
    for harness in harnesses:
        own = [r.reward for r in recent if r.plan.harness == harness and r.reward is not None]
        found[harness] = (1 + sum(reward >= 1.0 for reward in own)) / (2 + len(own))
    return found


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


def sampled_by(step: int, ahead: int) -> int:
    """The policy version that samples a step's rollouts: the one before it, or `ahead` versions older than that.

    Fixed by the step and not by which version happens to be there first, so that a resumed run samples as it would
    have; the staleness of a call is never more than `ahead`.
    """
    return max(0, step - 1 - ahead)


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
