"""Run by torchrun with BASE OUT HOW: each rank writes the gradients of its updates to OUT."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch

from appliance.train.gae import GaeSettings
from appliance.train.policy import Policy
from appliance.train.ppo import Batch, PpoSettings
from appliance.train.ppo import learn as learn_ppo
from appliance.train.ranks import Ranks, join, leave
from appliance.train.update import UpdateSettings, learn
from tests.support.tiny_policy import forest, make_policy
from tests.support.tiny_ppo import a_batch, a_critic


class Recorder(torch.optim.SGD):
    """Keeps each step's gradient; with a rate of 0 the policy stays where it is."""

    def step(self, closure=None):  # type: ignore[no-untyped-def]
        parameters = self.param_groups[0]["params"]
        self.gradients = [*getattr(self, "gradients", []), torch.cat([p.grad.flatten() for p in parameters])]
        return super().step(closure)


def learn_with_critic(policy: Policy, ranks: Ranks, optimizer: Recorder) -> None:
    """One batch of tree-PPO; the critic's gradient is recorded as the policy's last, cut to its length."""
    critic = a_critic(policy, ranks=ranks)
    critic.optimizer = Recorder(critic.parameters(), lr=0.0)
    batch = a_batch() if ranks.rank == 0 else Batch([], {})
    how = UpdateSettings(row_tokens=90, max_grad_norm=1e9, minibatches=2, ranks=ranks)
    learn_ppo(policy, critic, batch, optimizer, PpoSettings(how, GaeSettings(0.95, 0.8)))
    optimizer.gradients += [g[: optimizer.gradients[0].numel()] for g in critic.optimizer.gradients]


def main() -> None:
    base, out, how = sys.argv[1:]
    torch.set_num_threads(1)
    ranks = join()
    policy = make_policy(Path(base))
    optimizer = Recorder(policy.parameters(), lr=0.0)
    ranks.copy(policy.parameters(), optimizer)
    if how == "dies" and ranks.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    for minibatches in (1, 2):
        settings = UpdateSettings(row_tokens=90, max_grad_norm=1e9, minibatches=minibatches, ranks=ranks)
        metrics = learn(policy, forest() if ranks.rank == 0 else [], optimizer, settings)
    if how == "critic":
        learn_with_critic(policy, ranks, optimizer)
    torch.save((torch.stack(optimizer.gradients), metrics), f"{out}/rank{ranks.rank}.pt")
    leave()


if __name__ == "__main__":
    main()
