"""One rollout as the record tells it: its calls with what was said, its tree and its advantage."""

from __future__ import annotations

import os
from dataclasses import dataclass

from appliance.config.runconfig import RunConfig, from_record
from appliance.errors import StoreError
from appliance.record import queries
from appliance.record.conversation import said
from appliance.record.store import Store
from appliance.system.redact import own_secrets
from appliance.train.step_rows import credits_of
from appliance.trees.recovery import Recovered, recovered
from appliance.types import Purpose, Rollout, Run, Said


@dataclass(frozen=True, slots=True, eq=False)
class Recollection:
    """`advantage` is None for what is not trained on: other purposes, no grade, a group without a grade to compare."""

    run: Run
    config: RunConfig
    rollout: Rollout
    calls: list[Said]
    found: Recovered
    advantage: float | None

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not leave in this rollout's texts: the keys that this process holds."""
        return own_secrets(os.environ, [self.config.judge.key_env])

    @property
    def num_flat_tokens(self) -> int:
        """Tokens of all calls, each prompt counted whole."""
        samples = [c.call.sample for c in self.calls if c.call.sample is not None]
        return sum(len(s.prompt_ids) + len(s.sampled_ids) for s in samples)


def recollect(store: Store, rollout_id: int) -> Recollection:
    """Reads the latest attempt of a rollout; StoreError when there is no such rollout."""
    rollout = queries.one(store, rollout_id)
    if rollout is None:
        raise StoreError(f"the record holds no rollout {rollout_id}", "see `corral status`")
    run = store.run(rollout.plan.run_id)
    config = from_record(run.config)
    calls = said(store.calls(rollout_id), store.conversations(rollout_id))
    return Recollection(
        run, config, rollout, calls, recovered(calls, config.branches), _advantage(store, rollout, config)
    )


def _advantage(store: Store, rollout: Rollout, config: RunConfig) -> float | None:
    plan = rollout.plan
    if plan.purpose is not Purpose.TRAIN or rollout.reward is None:
        return None
    group = [r for r in store.rollouts(plan.run_id, Purpose.TRAIN, plan.step) if r.plan.group == plan.group]
    return credits_of(group, config.train)[rollout.id]
