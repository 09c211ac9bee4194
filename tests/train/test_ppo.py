"""tree-PPO on a tiny random Qwen3, against flat rows and a path-by-path reference written here (E8, E9, E13, E14)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from appliance.errors import TrainingError
from appliance.train import attention_cpu
from appliance.train.adapters import CRITIC, parameters_of, using
from appliance.train.batch import pack
from appliance.train.critic import Critic, CriticSettings
from appliance.train.gae import GaeSettings
from appliance.train.policy import Policy, base_fingerprint, save_adapter
from appliance.train.ppo import Batch, PpoSettings, learn
from appliance.train.update import UpdateSettings, make_optimizer
from tests.support.tiny_policy import forest, make_base, make_policy
from tests.support.tiny_ppo import PLAIN, a_batch, a_critic

FREE = UpdateSettings(row_tokens=90, max_grad_norm=1e9)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("model") / "base")


def numbers(parameters: list[torch.nn.Parameter]) -> Tensor:
    return torch.cat([p.detach().flatten().clone() for p in parameters])


def difference(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def moved(policy: Policy, critic: Critic, batch: Batch, settings: PpoSettings) -> tuple[Tensor, Tensor]:
    """What plain gradient descent with rate 1 takes off policy and critic: their gradients."""
    before = numbers(policy.parameters()), numbers(critic.parameters())
    critic.optimizer = torch.optim.SGD(critic.parameters(), lr=1.0)
    learn(policy, critic, batch, torch.optim.SGD(policy.parameters(), lr=1.0), settings)
    after = numbers(policy.parameters()), numbers(critic.parameters())
    with torch.no_grad():  # put back, so that one policy serves several comparisons
        for parameters, old in ((policy.parameters(), before[0]), (critic.parameters(), before[1])):
            torch.nn.utils.vector_to_parameters(old, parameters)
    return before[0] - after[0], before[1] - after[1]


def reference(policy: Policy, critic: Critic, batch: Batch, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """The gradients with nothing shared: each row through the whole model, credit token by token in a Python loop."""
    policy.attention = "sdpa"
    policy.model.get_base_model().set_attn_implementation("sdpa")
    total = sum(int(s.mask.sum()) for s in batch.sequences)
    values: dict[int, list[Tensor]] = {}
    logprobs: dict[int, list[Tensor]] = {}
    behaviour: dict[int, list[float]] = {}
    for s in batch.sequences:
        ids = torch.from_numpy(s.ids.astype(np.int64))[None]
        output = policy.model(input_ids=ids).logits[0].log_softmax(-1)
        with using(policy, CRITIC):
            hidden = policy.model.get_base_model().model(input_ids=ids).last_hidden_state[0]
        for t in np.flatnonzero(s.mask):
            values.setdefault(s.rollout, []).append(critic.head(hidden[t - 1])[0])
            logprobs.setdefault(s.rollout, []).append(output[t - 1, int(s.ids[t])])
            behaviour.setdefault(s.rollout, []).append(float(s.behaviour_logprobs[t]))
    policy_loss = value_loss = torch.zeros(())
    for rollout, own in values.items():
        known = [float(v.detach()) for v in own]
        for t in range(len(own)):
            advantage = 0.0
            for k in range(t, len(own)):
                gained = 0.2 * rollout if k == len(own) - 1 else gamma * known[k + 1]
                advantage += (gamma * lam) ** (k - t) * (gained - known[k])
            weight = min(float(torch.exp(logprobs[rollout][t].detach() - behaviour[rollout][t])), 2.0)
            policy_loss = policy_loss - weight * advantage * logprobs[rollout][t] / total
            value_loss = value_loss + (own[t] - (advantage + known[t])) ** 2 / 2 / total
    found = []
    for loss, parameters in ((policy_loss, policy.parameters()), (value_loss, critic.parameters())):
        for parameter in parameters:
            parameter.requires_grad_(True)
        grads = torch.autograd.grad(loss, parameters, retain_graph=True)
        found.append(torch.cat([g.flatten() for g in grads]))
    policy.attention = attention_cpu.NAME
    policy.model.get_base_model().set_attn_implementation(attention_cpu.NAME)
    return found[0], found[1]


@pytest.mark.parametrize(("gamma", "lam"), [pytest.param(1.0, 1.0, marks=pytest.mark.slow), (0.95, 0.8)])
def test_E8_the_packed_update_is_the_reference_written_path_by_path(base: Path, gamma: float, lam: float) -> None:
    policy = make_policy(base)
    critic = a_critic(policy)
    batch = a_batch()
    settings = PpoSettings(FREE, GaeSettings(gamma, lam))
    ours = moved(policy, critic, batch, settings)
    theirs = reference(policy, critic, batch, gamma, lam)
    assert difference(ours[0], theirs[0]) < 1e-5 and difference(ours[1], theirs[1]) < 1e-5


def test_E9_budget_and_order_change_neither_policy_nor_critic(base: Path) -> None:
    policy = make_policy(base)
    critic = a_critic(policy)
    batch = a_batch()
    whole = moved(policy, critic, batch, PpoSettings(replace(FREE, row_tokens=4096), GaeSettings(0.9, 0.7)))
    turned = Batch(list(batch.sequences)[::-1], batch.trajectories)
    for row_tokens in (60, 130):
        cut = moved(policy, critic, turned, PpoSettings(replace(FREE, row_tokens=row_tokens), GaeSettings(0.9, 0.7)))
        assert difference(cut[0], whole[0]) < 1e-5 and difference(cut[1], whole[1]) < 1e-5


def test_a_new_critic_says_zero_and_its_advantage_is_the_reward(base: Path) -> None:
    policy = make_policy(base)
    critic = Critic(policy, PLAIN, seed=1)
    (whole,) = pack(a_batch().sequences, 4096)
    assert not critic.values(whole).any()
    metrics, valued = learn(policy, critic, a_batch(), make_optimizer(policy, 1e-3), PpoSettings(FREE))
    assert metrics is not None and metrics.loss < 0  # all rewards are at least 0
    rewards = np.array([0.2 * r for r in whole.rollouts])
    assert valued.value_loss == pytest.approx((rewards**2).mean() / 2) and valued.explained_variance == 0


def test_E13_a_warm_up_moves_the_critic_alone(base: Path) -> None:
    policy = make_policy(base, "nf4")
    critic = a_critic(policy)
    before, valued, fingerprint = numbers(policy.parameters()), numbers(critic.parameters()), base_fingerprint(policy)
    metrics, _ = learn(policy, critic, a_batch(), make_optimizer(policy, 1e-2), PpoSettings(FREE, is_warm_up=True))
    assert metrics is None and torch.equal(numbers(policy.parameters()), before)
    assert not torch.equal(numbers(critic.parameters()), valued) and base_fingerprint(policy) == fingerprint
    held = numbers(parameters_of(policy, CRITIC))
    learn(policy, critic, a_batch(), make_optimizer(policy, 1e-2), PpoSettings(FREE))
    assert not torch.equal(numbers(policy.parameters()), before)
    assert not torch.equal(numbers(parameters_of(policy, CRITIC)), held) and base_fingerprint(policy) == fingerprint


@pytest.mark.slow
def test_a_warmed_up_critic_explains_the_returns(base: Path) -> None:
    policy = make_policy(base)
    critic = Critic(policy, CriticSettings(learning_rate=1e-2, clip=0.0, updates=3), seed=1)
    warm_up = PpoSettings(UpdateSettings(), is_warm_up=True)
    optimizer = make_optimizer(policy, 1e-3)
    before = learn(policy, critic, a_batch(), optimizer, warm_up)[1]
    after = learn(policy, critic, a_batch(), optimizer, warm_up)[1]
    assert before.explained_variance == 0 and after.explained_variance > 0.5


def test_minibatches_and_value_clipping_are_held_against_the_start_of_the_batch(base: Path) -> None:
    policy = make_policy(base)
    critic = a_critic(policy, CriticSettings(learning_rate=0.05, clip=0.01, updates=3))
    settings = PpoSettings(UpdateSettings(row_tokens=90, minibatches=3))
    metrics, valued = learn(policy, critic, a_batch(), make_optimizer(policy, 3e-2), settings)
    assert metrics is not None and metrics.mean_ratio != 1.0 and valued.value_clip_share > 0


def test_the_adapter_that_is_served_has_nothing_of_the_critic(base: Path, tmp_path: Path) -> None:
    policy = make_policy(base)
    sha256 = save_adapter(policy, tmp_path / "before")
    a_critic(policy)
    assert save_adapter(policy, tmp_path / "after") == sha256


@pytest.mark.slow
def test_E14_a_critic_that_comes_back_learns_on_bit_for_bit(base: Path, tmp_path: Path) -> None:
    policy = make_policy(base)
    critic = a_critic(policy)
    settings = PpoSettings(FREE, is_warm_up=True)
    learn(policy, critic, a_batch(), make_optimizer(policy, 1e-3), settings)
    critic.save(tmp_path / "critic.pt")
    learn(policy, critic, a_batch(forest(1)), make_optimizer(policy, 1e-3), settings)
    again = make_policy(base)
    resumed = Critic(again, PLAIN, seed=77)
    resumed.load(tmp_path / "critic.pt")
    learn(again, resumed, a_batch(forest(1)), make_optimizer(again, 1e-3), settings)
    assert torch.equal(numbers(resumed.parameters()), numbers(critic.parameters()))
    (tmp_path / "critic.pt").write_bytes(b"cut short")
    with pytest.raises(TrainingError, match="unreadable critic"):
        resumed.load(tmp_path / "critic.pt")


def test_a_reward_that_is_no_number_stops_before_any_step(base: Path) -> None:
    policy = make_policy(base)
    critic = a_critic(policy)
    batch = a_batch()
    broken = batch.trajectories | {3: replace(batch.trajectories[3], reward=float("nan"))}
    before = numbers(policy.parameters()), numbers(critic.parameters())
    with pytest.raises(TrainingError, match="rollout 3"):
        learn(policy, critic, Batch(batch.sequences, broken), make_optimizer(policy, 1e-3), PpoSettings(FREE))
    assert torch.equal(numbers(policy.parameters()), before[0])
    assert torch.equal(numbers(critic.parameters()), before[1])
