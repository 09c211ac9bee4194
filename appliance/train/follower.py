"""A rank that is not the first: it has the base from disk and everything else from rank 0.

Nothing here reads the record, so a second machine that joins by torchrun's rendezvous needs the model folder only.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from appliance.config import from_record
from appliance.train.policy import load_policy, set_threads, settings_of
from appliance.train.ranks import join
from appliance.train.trainer import rate_at, update_settings
from appliance.train.update import learn, make_optimizer


def follow(base: Path) -> None:
    """Takes every step that rank 0 tells of, until the process is ended."""
    ranks = join()
    set_threads(max(1, (os.cpu_count() or 1) // ranks.count))
    config = from_record(ranks.told())
    policy = load_policy(base, settings_of(config))
    optimizer = make_optimizer(policy, config.train.learning_rate, config.train.optimizer)
    ranks.copy(policy.parameters(), optimizer)
    settings = replace(update_settings(config), ranks=ranks)
    while True:
        step = ranks.told()
        if step is None:  # a sign of life
            continue
        for group in optimizer.param_groups:
            group["lr"] = rate_at(config, step)
        learn(policy, [], optimizer, settings)
