"""A run's training made again from the record alone, up to the loss: trees, rewards, advantages, rows; no model.

Invariant: nothing is read but the record, so what agrees bit for bit today can be checked by anyone in years.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from appliance.config.runconfig import RunConfig, from_record
from appliance.errors import StoreError
from appliance.record.store import Store
from appliance.train.provenance import noted
from appliance.train.step_rows import step_rows
from appliance.trees.recovery import digests
from appliance.types import Purpose


@dataclass(frozen=True, slots=True)
class Difference:
    """Where the replay and the training differ. `rollout` is None for what concerns the whole step."""

    step: int
    rollout: int | None
    what: str


@dataclass(frozen=True, slots=True)
class Replay:
    """`steps` were compared, with `rollouts` digests between them."""

    steps: int
    rollouts: int
    differences: tuple[Difference, ...]


def replay(store: Store, run_id: str, told: Callable[[int, int], None] | None = None) -> Replay:
    """Makes every finished step of the run again and compares its loss inputs and metrics with what was recorded."""
    run = store.run(run_id)
    config = from_record(run.config)
    done = [(step, metrics) for step, state, metrics in store.steps(run.id) if state == "done"]
    if not done:
        raise StoreError(f"run {run.id} has finished no training step", "replay a run that trained: `corral status`")
    recorded = noted(store, run.id)
    differences: list[Difference] = []
    compared = 0
    for n, (step, metrics) in enumerate(done):
        differences += _step(store, run.id, config, (step, metrics), recorded.get(step, {}))
        compared += len(recorded.get(step, {}))
        if told is not None:
            told(n + 1, len(done))
    return Replay(len(done), compared, tuple(differences))


def _step(
    store: Store, run_id: str, config: RunConfig, done: tuple[int, dict[str, float]], recorded: dict[int, str]
) -> list[Difference]:
    step, metrics = done
    made = step_rows(store, store.rollouts(run_id, Purpose.TRAIN, step), config)
    again = digests(made.rows)
    if again and not recorded:
        return [Difference(step, None, "the record holds no digests of what was trained on (an older Corral's step)")]
    found = [
        Difference(step, rollout, _what(recorded.get(rollout), again.get(rollout)))
        for rollout in sorted(recorded.keys() | again.keys())
        if recorded.get(rollout) != again.get(rollout)
    ]
    return found + [
        Difference(step, None, f"{name} was {metrics[name]!r} and is {value!r}")
        for name, value in made.metrics.items()
        if name in metrics and metrics[name] != value
    ]


def _what(recorded: str | None, again: str | None) -> str:
    if recorded is None:
        return "was not trained on, and would be now"
    if again is None:
        return "was trained on, and would not be now"
    return f"other loss inputs: sha256 {recorded[:12]}… then, {again[:12]}… now"
