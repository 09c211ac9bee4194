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
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.advantage import grpo, is_flat
from appliance.branches import said
from appliance.config import BranchesSection, RunConfig, from_record
from appliance.errors import ApplianceError
from appliance.lossinputs import digests, recovered
from appliance.store import Store
from appliance.trained import note
from appliance.types import Purpose, Rollout, RolloutState

if TYPE_CHECKING:
    from appliance.train.batch import Sequence as TrainingRow
    from appliance.train.update import UpdateSettings

POLL_S = 0.05
EXPLAINED_EXIT = 3
OPTIMIZER = "optimizer.pt"
KEPT_STATES = 2


def main(arguments: Sequence[str]) -> int:
    """`coldstart HOME RUN` or `train HOME RUN`. Ends with 3 and one last line when it can explain why."""
    mode, home, run_id = arguments
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


def serve(home: Path, store: Store, run_id: str) -> None:
    """Takes steps as the supervisor opens them, until the process is ended."""
    trainer = Trainer(home, store, run_id)
    while True:
        step = store.next_step(run_id)
        if step is None:
            time.sleep(POLL_S)
        else:
            trainer.take(step)


class Trainer:
    """The policy and its optimiser, as the last version of the run left them."""

    def __init__(self, home: Path, store: Store, run_id: str) -> None:
        from appliance.train.bases import check_tokenizer
        from appliance.train.policy import load_policy, set_threads, settings_of
        from appliance.train.update import load_optimizer, make_optimizer

        set_threads(os.cpu_count() or 1)
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
        store.log("info", "trainer", f"ready with version {version}", run_id)

    def take(self, step: int) -> None:
        """One step: trains on its rollouts, writes version `step` and closes the step in one transaction."""
        from appliance.train.policy import save_adapter
        from appliance.train.update import learn, save_optimizer

        started = time.monotonic()
        rollouts = self.store.rollouts(self.run_id, Purpose.TRAIN, step)
        sequences, metrics = training_rows(
            self.store, rollouts, self.config.train.negative_weight, self.config.branches
        )
        note(self.store, self.run_id, step, digests(sequences))
        if sequences:
            for group in self.optimizer.param_groups:
                group["lr"] = rate_at(self.config, step)
            learnt = learn(self.policy, sequences, self.optimizer, update_settings(self.config))
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


def training_rows(
    store: Store,
    rollouts: Sequence[Rollout],
    negative_weight: float = 1.0,
    branches: BranchesSection = BranchesSection(),  # noqa: B008 - frozen
) -> tuple[list[TrainingRow], dict[str, float]]:
    """The rows of a step with their advantages, and what the step says of its rollouts.

    Groups of equal rewards have advantage 0 everywhere; their rows are left out, since they change nothing (E4).
    Negative advantages are multiplied by `negative_weight`: most tokens of a failed rollout were right, and pushing
    them down as hard as the wrong ones wears a small policy out (LOG.md has the runs that show it).
    """
    from appliance.train.batch import Sequence as TrainingRow

    advantages, metrics = advantages_of(rollouts)
    _say_flat_groups(store, rollouts)
    found: list[TrainingRow] = []
    sampled = trained = num_rows = 0
    for rollout in rollouts:
        calls = store.calls(rollout.id)
        sampled += sum(len(c.sample.sampled_ids) for c in calls if c.sample)
        advantage = advantages[rollout.id]
        if advantage is None:
            continue
        found_tree = recovered(said(calls, store.conversations(rollout.id)), branches)
        own = found_tree.rows
        for reason in sorted(set(found_tree.left_out.values())):
            store.log(
                "info",
                "trainer",
                f"rollout={rollout.id}: a call is not trained: {reason}",
                rollout.plan.run_id,
                rollout.id,
            )
        trained += sum(int(row.mask.sum()) for row in own)
        num_rows += len(own)
        if advantage < 0:
            advantage *= negative_weight
        if advantage:
            found += [TrainingRow(r.ids, r.mask, r.behaviour_logprobs, advantage, rollout.id) for r in own]
    graded = [r for r in rollouts if r.reward is not None]
    metrics |= {
        "sampled_tokens": float(sampled), "trained_tokens": float(trained), "rows": float(num_rows),
        "rows_per_rollout": num_rows / max(len(graded), 1),
    }  # fmt: skip
    return found, metrics


def _say_flat_groups(store: Store, rollouts: Sequence[Rollout]) -> None:
    for group, members in grouped(rollouts).items():
        if is_flat([r.reward for r in members]):
            told = f"group {group}: the rewards of its {len(members)} rollouts do not differ, so they change nothing"
            store.log("info", "trainer", told, members[0].plan.run_id)


def grouped(rollouts: Sequence[Rollout]) -> dict[str, list[Rollout]]:
    """Rollouts by the key of their group."""
    groups: dict[str, list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.plan.group, []).append(rollout)
    return groups


def advantages_of(rollouts: Sequence[Rollout]) -> tuple[dict[int, float | None], dict[str, float]]:
    """Rollout id → advantage within its group (None when it failed), and the step's reward metrics."""
    groups = grouped(rollouts)
    found: dict[int, float | None] = {}
    for members in groups.values():
        found |= {r.id: a for r, a in zip(members, grpo([r.reward for r in members]), strict=True)}
    rewards = [r.reward for r in rollouts if r.reward is not None]
    flat = sum(is_flat([r.reward for r in members]) for members in groups.values())
    mean = sum(rewards) / len(rewards) if rewards else 0.0
    spread = (sum((r - mean) ** 2 for r in rewards) / len(rewards)) ** 0.5 if rewards else 0.0
    return found, {
        "reward": mean, "reward_std": spread, "pass": sum(r >= 1.0 for r in rewards) / max(len(rewards), 1),
        "frac_reward_zero_std": flat / max(len(groups), 1), "groups": float(len(groups)),
        "failed_rollouts": float(sum(r.state is RolloutState.FAILED for r in rollouts)),
    }  # fmt: skip


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
