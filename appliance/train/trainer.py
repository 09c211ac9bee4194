"""The trainer: a process of its own that turns a step's graded rollouts into the next policy version.

    wait for a step → rollouts from the record → advantages by group → rows of their trees → one packed update →
    new adapter directory → the record

It differs from GRPO (arXiv 2402.03300) in what docs/design.md argues for: a group is (task, harness); rows are paths of
recovered trees; the loss is clip-higher over all sampled tokens of the step with importance weights against the
sampler; no KL term. Killed at any point, it starts again from the last version in the record (E14).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.config import RunConfig, from_record
from appliance.errors import ApplianceError
from appliance.lossinputs import digests
from appliance.store import Store
from appliance.train.steprows import step_rows
from appliance.trained import note
from appliance.types import Purpose

if TYPE_CHECKING:
    from appliance.train.update import UpdateSettings

POLL_S = 0.05
EXPLAINED_EXIT = 3
OPTIMIZER = "optimizer.pt"
KEPT_STATES = 2
IDLE_S = 60.0
"""Seconds between two signs of life to the other ranks while there is nothing to do."""


def main(arguments: Sequence[str]) -> int:
    """`coldstart HOME RUN` or `train HOME RUN`. Ends with 3 and one last line when it can explain why."""
    mode, home, run_id = arguments
    if mode == "train" and os.environ.get("RANK", "0") != "0":
        return _follow(Path(home), run_id)
    # Before torch is imported: idle threads must sleep, the sampler and harnesses need the cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", DO_NOT_TRACK="1")
    store = Store.open(Path(home) / "record.db")
    try:
        if mode == "coldstart":
            from appliance.train.coldstart import cold_start

            cold_start(Path(home), store, run_id)
        else:
            serve(Path(home), store, run_id)
    except ApplianceError as error:
        sys.stdout.write(str(error).replace("\n", " ") + "\n")
        return EXPLAINED_EXIT
    finally:
        store.close()
    return 0


def _follow(home: Path, run_id: str) -> int:
    """A rank that is not the first: it takes what rank 0 tells it, and knows the model folder alone."""
    from appliance.train.follower import follow

    try:
        follow(home / "runs" / run_id / "model" / "base")
    except ApplianceError as error:
        sys.stdout.write(f"rank {os.environ['RANK']}: {error}".replace("\n", " ") + "\n")
        return EXPLAINED_EXIT
    return 0


def serve(home: Path, store: Store, run_id: str) -> None:
    """Takes steps as the supervisor opens them, until the process is ended."""
    trainer = Trainer(home, store, run_id)
    heard_at = time.monotonic()
    while True:
        step = store.next_step(run_id)
        if step is not None:
            trainer.take(step)
            heard_at = time.monotonic()
        elif time.monotonic() - heard_at > IDLE_S:
            trainer.ranks.told(None)
            heard_at = time.monotonic()
        time.sleep(POLL_S)


class Trainer:
    """The policy and its optimiser, as the last version of the run left them."""

    def __init__(self, home: Path, store: Store, run_id: str) -> None:
        from appliance.train.bases import check_tokenizer
        from appliance.train.policy import load_policy, set_threads, settings_of
        from appliance.train.ranks import join
        from appliance.train.update import load_optimizer, make_optimizer

        self.ranks = join()
        set_threads(max(1, (os.cpu_count() or 1) // self.ranks.count))
        self.store, self.run_id = store, run_id
        self.config = config = from_record(store.run(run_id).config)
        self.folder = home / "runs" / run_id
        version, adapter, _ = store.versions(run_id)[-1]
        base = self.folder / "model" / "base"
        check_tokenizer(base, self.folder / "model" / "served")
        self.policy = load_policy(base, settings_of(config), adapter)
        self.optimizer = make_optimizer(self.policy, config.train.learning_rate, config.train.optimizer)
        if (adapter / OPTIMIZER).exists():  # a cold start's version has none
            load_optimizer(self.optimizer, adapter / OPTIMIZER)
        self.ranks.told(config.model_dump(mode="json"))
        self.ranks.copy(self.policy.parameters(), self.optimizer)
        store.log("info", "trainer", f"ready with version {version}", run_id)

    def take(self, step: int) -> None:
        """One step: trains on its rollouts, writes version `step` and closes the step in one transaction."""
        from appliance.train.policy import save_adapter
        from appliance.train.update import learn, save_optimizer

        started = time.monotonic()
        rollouts = self.store.rollouts(self.run_id, Purpose.TRAIN, step)
        made = step_rows(self.store, rollouts, self.config)
        sequences, metrics = made.rows, made.metrics
        for rollout_id, told in made.told:
            self.store.log("info", "trainer", told, self.run_id, rollout_id)
        note(self.store, self.run_id, step, digests(sequences))
        if sequences:
            for group in self.optimizer.param_groups:
                group["lr"] = rate_at(self.config, step)
            self.ranks.told(step)
            settings = replace(update_settings(self.config), ranks=self.ranks)
            learnt = learn(self.policy, sequences, self.optimizer, settings)
            metrics |= {name: float(value) for name, value in asdict(learnt).items()}
        else:
            told = f"step {step}: no group has rewards that differ; nothing was learnt"
            self.store.log("warning", "trainer", told, self.run_id)
        path = self.folder / "adapters" / f"v{step}"
        sha256 = save_adapter(self.policy, path)
        save_optimizer(self.optimizer, path / OPTIMIZER)
        forget_old_states(self.folder / "adapters", step)
        metrics["train_seconds"] = time.monotonic() - started
        self.store.close_step(self.run_id, step, metrics, (step, path, sha256))


def rate_at(config: RunConfig, step: int) -> float:
    """Learning rate of a step (1 is the first): linear warm-up, then linear fall to `final_rate_share` at the last."""
    t = config.train
    rise = min(1.0, step / (t.warmup_steps + 1)) if t.warmup_steps else 1.0
    fall = 1 - (1 - t.final_rate_share) * (step - 1) / max(t.steps - 1, 1)
    return t.learning_rate * rise * fall


def update_settings(config: RunConfig) -> UpdateSettings:
    """The run's settings as the update takes them."""
    from appliance.train.loss import LossSettings
    from appliance.train.update import UpdateSettings

    t = config.train
    return UpdateSettings(
        loss=LossSettings(clip_low=t.clip_low, clip_high=t.clip_high, max_importance=t.max_importance),
        temperature=config.rollout.temperature,
        max_grad_norm=t.max_grad_norm,
        minibatches=t.minibatches,
        row_tokens=t.row_tokens,
    )


def forget_old_states(folder: Path, newest: int) -> None:
    """Adapters stay; optimiser states of all but the last versions go, since nothing resumes from them."""
    for path in folder.glob(f"v*/{OPTIMIZER}"):
        if int(path.parent.name[1:]) <= newest - KEPT_STATES:
            path.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
