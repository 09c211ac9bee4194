"""The trainer: a process of its own that turns a step's graded rollouts into the next policy version.

    wait for a step → rollouts from the record → advantages by group → rows of their trees → one packed update →
    new adapter directory → the record

It differs from GRPO (arXiv 2402.03300) in what docs/design.md argues for: a group is (task, harness); rows are paths of
recovered trees; the loss is clip-higher over all sampled tokens of the step with importance weights against the
sampler; no KL term. Killed at any point, it starts again from the last version in the record (E14).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from appliance.config.runconfig import from_record
from appliance.errors import ApplianceError, TrainingError
from appliance.record.store import Store
from appliance.system.offline import switch_off
from appliance.train.checkpoints import Rule, check, prune, seal
from appliance.train.flat import flat_in_a_row, likely_causes
from appliance.train.gates import ParityGate
from appliance.train.metrics import write_tensorboard
from appliance.train.provenance import note
from appliance.train.step_rows import StepRows, step_rows
from appliance.trees.recovery import digests, row_digest
from appliance.types import Purpose, Rollout

POLL_S = 0.05
EXPLAINED_EXIT = 3
IDLE_S = 60.0
"""Seconds between two signs of life to the other ranks while there is nothing to do."""


def main(arguments: Sequence[str]) -> int:
    """`coldstart HOME RUN` or `train HOME RUN`. Ends with 3 and one last line when it can explain why."""
    mode, home, run_id = arguments
    if mode == "train" and os.environ.get("RANK", "0") != "0":
        return _follow(Path(home), run_id)
    # Before torch is imported: idle threads must sleep, the sampler and harnesses need the cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    switch_off()
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


@contextmanager
def memory_explained() -> Iterator[None]:
    """Memory that an allocation does not get, on a GPU or a CPU, as a TrainingError that says what to change."""
    import torch

    try:
        yield
    except RuntimeError as error:
        told = str(error).strip().splitlines()[0]
        if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in told:
            raise
        raise TrainingError(
            f"no memory for the update: {told[:300]}",
            "lower train.row_tokens or set train.checkpointing = true (see `corral plan`), then `corral resume`",
        ) from error


class Trainer:
    """The policy and what trains it, as the last version of the run left them."""

    def __init__(self, home: Path, store: Store, run_id: str) -> None:
        from appliance.train.bases import check_tokenizer
        from appliance.train.learner import Learner
        from appliance.train.policy import load_policy, set_threads, settings_of
        from appliance.train.ranks import join

        self.ranks = join()
        set_threads(max(1, (os.cpu_count() or 1) // self.ranks.count))
        self.store, self.run_id = store, run_id
        self.config = config = from_record(store.run(run_id).config)
        self.folder = home / "runs" / run_id
        versions = store.versions(run_id)
        version = versions[-1][0]
        adapter = store.adapter_folder(run_id, version)
        base = self.folder / "model" / "base"
        check(adapter)
        check_tokenizer(base, self.folder / "model" / "served")
        policy = load_policy(base, settings_of(config), adapter)
        self.learner = Learner.of(config, self.ranks, policy, reference=versions[0][1])
        self.learner.load(adapter)
        self.ranks.told(config.model_dump(mode="json"))
        self.learner.share()
        store.log("info", "trainer", f"ready with version {version}", run_id)

    def take(self, step: int) -> None:
        """One step: trains on its rollouts, writes version `step` and closes the step in one transaction.

        A step that cannot be taken (NaN, parity) leaves its ids in the run's folder and the last version as it was.
        """
        from appliance.train.policy import save_adapter

        started = time.monotonic()
        rollouts = self.store.rollouts(self.run_id, Purpose.TRAIN, step)
        inputs = step_rows(self.store, rollouts, self.config)
        for rollout_id, told in inputs.told:
            self.store.log("info", "trainer", told, self.run_id, rollout_id)
        note(self.store, self.run_id, step, digests(inputs.rows), inputs.verdicts)
        self._say_flat(step, rollouts, inputs)
        try:
            with memory_explained():
                metrics = inputs.metrics | self._learn(step, inputs)
        except TrainingError as error:
            ids = write_batch_ids(self.folder / f"failed_step_{step}.json", inputs, error)
            raise TrainingError(f"step {step}: {error.message}; the batch's ids are in {ids}", error.remedy) from error
        path = self.folder / "adapters" / f"v{step}"
        sha256 = save_adapter(self.learner.policy, path)
        self.learner.save(path)
        seal(path)
        metrics["step_time"] = metrics["train_seconds"] = time.monotonic() - started
        if self.config.train.tensorboard:
            write_tensorboard(self.folder / "tensorboard", step, metrics)
        self.store.close_step(self.run_id, step, metrics, (step, path, sha256))
        best = best_version(self.store, self.run_id)
        prune(self.folder / "adapters", step, Rule.of(self.config.train, best))

    def _learn(self, step: int, inputs: StepRows) -> dict[str, float]:
        """The updates of one step, and what they measured; none when nothing in it can teach."""
        if not inputs.rows:
            return {}
        t = self.config.train
        gate = ParityGate(inputs.on_policy, t.parity_alarm, t.parity_stop, self._warn)
        self.ranks.told(step)
        return self.learner.learn(step, inputs.rows, inputs.trajectories, gate) | gate.metrics

    def _say_flat(self, step: int, rollouts: Sequence[Rollout], inputs: StepRows) -> None:
        """Warns of a step whose groups all have equal rewards, and loudly of many such steps in a row."""
        earlier = [m for number, state, m in self.store.steps(self.run_id) if state == "done" and number < step]
        in_a_row = flat_in_a_row(earlier, inputs.metrics)
        if in_a_row:
            self._warn(
                f"step {step}: no group has rewards that differ" + ("" if inputs.rows else "; nothing is learnt")
            )
        if in_a_row >= self.config.train.flat_steps:
            told = f"{in_a_row} steps in a row had no group whose rewards differ. Likely: {likely_causes(rollouts)}"
            self.store.log("error", "trainer", told, self.run_id)

    def _warn(self, told: str) -> None:
        self.store.log("warning", "trainer", told, self.run_id)


def write_batch_ids(path: Path, inputs: StepRows, error: TrainingError) -> Path:
    """Leaves the ids of a step that could not be taken: its rollouts, their advantage and their rows' lengths."""
    found: dict[int, dict[str, object]] = {}
    for row in inputs.rows:
        own = found.setdefault(row.rollout, {"rollout": row.rollout, "advantage": row.advantage, "rows": []})
        rows = own["rows"]
        assert isinstance(rows, list)
        rows.append({"tokens": len(row.ids), "trained_tokens": int(row.mask.sum()), "sha256": row_digest(row)})
    told = {"error": str(error), "rollouts": list(found.values()), "metrics": inputs.metrics}
    path.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return path


def best_version(store: Store, run_id: str) -> int | None:
    """The policy version with the highest mean reward on held-out tasks, the older of equals; None before any."""
    rewards: dict[int, list[float]] = {}
    for purpose in (Purpose.EVAL_BEFORE, Purpose.EVAL_AFTER, Purpose.EVAL):
        for rollout in store.rollouts(run_id, purpose):
            if rollout.reward is not None:
                rewards.setdefault(rollout.plan.step, []).append(rollout.reward)
    return max(sorted(rewards), key=lambda v: sum(rewards[v]) / len(rewards[v]), default=None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
