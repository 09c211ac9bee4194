"""A rank that is not the first: it has the base from disk and everything else from rank 0.

Nothing here reads the record, so a second machine that joins by torchrun's rendezvous needs the model folder only.
"""

from __future__ import annotations

import os
from pathlib import Path

from appliance.config.runconfig import from_record
from appliance.train.learner import Learner
from appliance.train.policy import load_policy, set_threads, settings_of
from appliance.train.ranks import join


def follow(base: Path) -> None:
    """Takes every step that rank 0 tells of, until the process is ended."""
    ranks = join()
    set_threads(max(1, (os.cpu_count() or 1) // ranks.count))
    config = from_record(ranks.told())
    policy = load_policy(base, settings_of(config))
    learner = Learner.of(config, ranks, policy)
    learner.share()
    while True:
        step = ranks.told()
        if step is not None:  # None is a sign of life
            learner.learn(step, [], {})
