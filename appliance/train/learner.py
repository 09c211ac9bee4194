"""What learns in one process: policy, optimiser and, for PPO, critic; set up and stepped alike on every rank.

Rank 0 knows the record and gives the rows; the others give none and take what they are dealt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.optim import Optimizer

from appliance.config.runconfig import RunConfig
from appliance.train import loss, ppo, update
from appliance.train.adapters import REFERENCE, add_reference, parameters_of
from appliance.train.batch import Sequence as TrainingRow
from appliance.train.critic import Critic, CriticSettings
from appliance.train.gae import GaeSettings, Trajectory
from appliance.train.metrics import recorded
from appliance.train.policy import Policy
from appliance.train.ranks import Ranks
from appliance.train.update import UpdateSettings, Watch

OPTIMIZER, CRITIC = "optimizer.pt", "critic.pt"


@dataclass(frozen=True, slots=True)
class Learner:
    """critic: None unless `train.algorithm` is ppo. Build with `Learner.of`."""

    config: RunConfig
    ranks: Ranks
    policy: Policy
    optimizer: Optimizer
    critic: Critic | None

    @classmethod
    def of(cls, config: RunConfig, ranks: Ranks, policy: Policy, reference: Path | None = None) -> Learner:
        """A learner at its start. `reference`: adapter the KL term keeps near; ranks that are not the first get it."""
        t = config.train
        optimizer = update.make_optimizer(policy, t.learning_rate, t.optimizer)
        critic = None
        if t.algorithm == "ppo":
            settings = CriticSettings(t.value_learning_rate, t.value_clip, t.value_updates, t.max_grad_norm)
            critic = Critic(policy, settings, config.seed, ranks)
        if t.kl_weight:
            add_reference(policy, reference)
        return cls(config, ranks, policy, optimizer, critic)

    def load(self, folder: Path) -> None:
        """Takes up optimiser and critic where a version left them; a cold start's version has neither."""
        if (folder / OPTIMIZER).exists():
            update.load_optimizer(self.optimizer, folder / OPTIMIZER)
        if self.critic is not None and (folder / CRITIC).exists():
            self.critic.load(folder / CRITIC)

    def save(self, folder: Path) -> None:
        """Writes what `load` reads."""
        update.save_optimizer(self.optimizer, folder / OPTIMIZER)
        if self.critic is not None:
            self.critic.save(folder / CRITIC)

    def share(self) -> None:
        """Every rank becomes what rank 0 is."""
        self.ranks.copy(self.policy.parameters(), self.optimizer)
        if self.critic is not None:
            self.ranks.copy(self.critic.parameters(), self.critic.optimizer)
        if self.config.train.kl_weight:
            self.ranks.share(parameters_of(self.policy, REFERENCE))

    def learn(
        self,
        step: int,
        rows: Sequence[TrainingRow],
        trajectories: Mapping[int, Trajectory],
        watch: Watch | None = None,
    ) -> dict[str, float]:
        """The updates of one step, and what they measured, by the names of the record."""
        measured = self._updates(step, rows, trajectories, watch)
        if self.config.engine.sleep:
            torch.cuda.empty_cache()  # the engine that wakes up now needs the room; nothing where there is no GPU
        return measured

    def _updates(
        self,
        step: int,
        rows: Sequence[TrainingRow],
        trajectories: Mapping[int, Trajectory],
        watch: Watch | None,
    ) -> dict[str, float]:
        rate = rate_at(self.config, step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        if self.critic is None:
            how = update_settings(self.config, self.ranks)
            return recorded(update.learn(self.policy, rows, self.optimizer, how, watch)) | {"learning_rate": rate}
        batch = ppo.Batch(rows, trajectories)
        settings = ppo_settings(self.config, self.ranks, step)
        done, valued = ppo.learn(self.policy, self.critic, batch, self.optimizer, settings, watch)
        return (recorded(done) if done else {}) | recorded(valued) | {"learning_rate": rate}


def rate_at(config: RunConfig, step: int) -> float:
    """Learning rate of a step (1 is the first): linear warm-up, then linear fall to `final_rate_share` at the last."""
    t = config.train
    rise = min(1.0, step / (t.warmup_steps + 1)) if t.warmup_steps else 1.0
    fall = 1 - (1 - t.final_rate_share) * (step - 1) / max(t.steps - 1, 1)
    return t.learning_rate * rise * fall


def update_settings(config: RunConfig, ranks: Ranks) -> UpdateSettings:
    """The run's settings as the update takes them."""
    t = config.train
    return UpdateSettings(
        loss=loss.LossSettings(
            clip_low=t.clip_low,
            clip_high=t.clip_high,
            gspo_clip_low=t.gspo_clip_low,
            gspo_clip_high=t.gspo_clip_high,
            max_importance=t.max_importance,
            mask_low=t.mask_low,
            mask_high=t.mask_high,
        ),
        policy_loss=getattr(loss, t.loss),
        temperature=config.rollout.temperature,
        max_grad_norm=t.max_grad_norm,
        minibatches=t.minibatches,
        row_tokens=t.row_tokens,
        kl_weight=t.kl_weight,
        ranks=ranks,
    )


def ppo_settings(config: RunConfig, ranks: Ranks, step: int) -> ppo.PpoSettings:
    """The run's settings of one step of tree-PPO; in its first steps the critic learns alone."""
    t = config.train
    return ppo.PpoSettings(
        update_settings(config, ranks),
        GaeSettings(t.gae_gamma, t.gae_lambda, t.credit_order),
        t.negative_weight,
        is_warm_up=step <= t.value_warmup_steps,
    )
