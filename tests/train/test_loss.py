"""Losses against numbers worked by hand, and against each other where they must agree (E4, E6, E7)."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from appliance.train.loss import (
    Loss,
    LossSettings,
    Terms,
    cispo,
    clip_higher,
    gspo,
    kl_k2,
    masked_importance,
    value_loss,
)

SETTINGS = LossSettings(clip_low=0.2, clip_high=0.28, max_importance=2.0)


def logs(*probabilities: float) -> Tensor:
    return torch.tensor([math.log(p) for p in probabilities], dtype=torch.float32)


def test_the_loss_of_each_term_is_the_number_worked_by_hand() -> None:
    # r = 1.5 up and down, 0.5 up and down; mu = old, so every weight is 1
    now, old = logs(0.3, 0.3, 0.1, 0.1).requires_grad_(), logs(0.2, 0.2, 0.2, 0.2)
    advantages = torch.tensor([1.0, -0.6, 1.0, -1.0])
    losses, diagnostics = clip_higher(Terms(now, old, old, advantages), SETTINGS)
    # min(1.5, 1.28) = 1.28; min(-0.9, -0.768) = -0.9; min(0.5, 0.8) = 0.5; min(-0.5, -0.8) = -0.8
    assert losses.tolist() == pytest.approx([-1.28, 0.9, -0.5, 0.8], abs=1e-6)
    assert diagnostics.clip_share == 0.5
    assert diagnostics.mean_ratio == pytest.approx(1.0)
    assert diagnostics.mean_importance == 1.0
    assert diagnostics.approx_kl == pytest.approx((math.log(1.5) ** 2 + math.log(0.5) ** 2) / 4)
    losses.sum().backward()
    # the clipped terms push no more; the others have gradient -r A
    assert now.grad is not None and now.grad.tolist() == pytest.approx([0, 0.9, -0.5, 0], abs=1e-6)


def test_surrogates_are_added_not_advantages() -> None:
    now, old = logs(0.3, 0.3), logs(0.2, 0.2)
    losses, _ = clip_higher(Terms(now, old, old, torch.tensor([1.0, -0.6])), SETTINGS)
    assert -losses.sum().item() == pytest.approx(1.28 - 0.9, abs=1e-6)
    summed, _ = clip_higher(Terms(now[:1], old[:1], old[:1], torch.tensor([0.4])), SETTINGS)
    assert -summed.item() == pytest.approx(1.28 * 0.4, abs=1e-6)


def test_importance_weights_are_capped_and_carry_no_gradient() -> None:
    old = logs(0.4, 0.4, 0.4)
    now = old.clone().requires_grad_()
    losses, diagnostics = clip_higher(Terms(now, old, logs(0.4, 0.1, 0.8), torch.ones(3)), SETTINGS)
    assert losses.tolist() == pytest.approx([-1, -2, -0.5], abs=1e-6)
    assert diagnostics.mean_importance == pytest.approx(3.5 / 3)
    losses.sum().backward()
    assert now.grad is not None and now.grad.tolist() == pytest.approx([-1, -2, -0.5], abs=1e-6)


@pytest.mark.parametrize("loss", [clip_higher, masked_importance, cispo, gspo])
def test_E6_at_the_old_policy_every_loss_has_the_gradient_of_reinforce(loss: Loss) -> None:
    advantages = torch.tensor([1.3, -0.4, 0.2])
    now = logs(0.5, 0.2, 0.7).requires_grad_()
    old = now.detach()
    losses, diagnostics = loss(Terms(now, old, old, advantages, torch.zeros(3), torch.ones(3)), SETTINGS)
    losses.sum().backward()
    assert now.grad is not None and torch.equal(now.grad, -advantages)  # d(-A log π)/d log π
    assert diagnostics.clip_share == 0


def test_masked_importance_drops_what_the_sampler_saw_quite_differently() -> None:
    old = logs(0.4, 0.4, 0.4, 0.4)
    behaviour = logs(0.4, 0.9, 0.05, 0.2)  # ratios 1, 0.44, 8, 2
    losses, diagnostics = masked_importance(Terms(old, old, behaviour, torch.ones(4)), SETTINGS)
    assert losses.tolist() == pytest.approx([-1, 0, 0, -2], abs=1e-6)
    assert diagnostics.mean_importance == pytest.approx(0.75)


def test_cispo_keeps_pushing_where_the_clip_would_have_stopped() -> None:
    now, old = logs(0.3, 0.1).requires_grad_(), logs(0.2, 0.2)
    losses, diagnostics = cispo(Terms(now, old, old, torch.tensor([1.0, -1.0])), SETTINGS)
    # −min(1.5, 1.28) · log 0.3 and + 0.5 · log 0.1: the upper bound alone holds
    assert losses.tolist() == pytest.approx([-1.28 * math.log(0.3), 0.5 * math.log(0.1)], abs=1e-6)
    losses.sum().backward()
    assert now.grad is not None and now.grad.tolist() == pytest.approx([-1.28, 0.5], abs=1e-6)
    assert diagnostics.clip_share == diagnostics.clip_high_share == 0.5


def test_gspo_clips_a_rollouts_mean_ratio_and_weighs_rollouts_alike() -> None:
    # rollout 0: ratios 1.2 and 0.9, mean log r = log(1.08)/2, so s = 1.0392 > 1 + 4e-4; rollout 1: one token at 1
    now, old = logs(0.24, 0.18, 0.5).requires_grad_(), logs(0.2, 0.2, 0.5)
    mean = math.log(1.08) / 2
    shares = torch.tensor([0.75, 0.75, 1.5])  # 3 terms / (2 rollouts · 2 or 1 terms)
    for advantage, expected in ((1.0, 1 + 4e-4), (-1.0, math.sqrt(1.08))):
        advantages = torch.tensor([advantage, advantage, 1.0])
        terms = Terms(now, old, old, advantages, torch.tensor([mean, mean, 0.0]), shares)
        losses, _ = gspo(terms, SETTINGS)
        assert losses.tolist() == pytest.approx([-0.75 * expected * advantage] * 2 + [-1.5], abs=1e-6)
        # the mean over terms is the mean over rollouts of −s A
        assert losses.mean().item() == pytest.approx((-expected * advantage - 1) / 2, abs=1e-6)
        now.grad = None
        losses.sum().backward()
        pushed = 0.0 if advantage > 0 else 0.75 * expected
        assert now.grad is not None and now.grad.tolist() == pytest.approx([pushed, pushed, -1.5], abs=1e-6)


def test_k2_is_half_the_squared_difference_and_pulls_towards_the_reference() -> None:
    now = logs(0.4, 0.1).requires_grad_()
    values = kl_k2(now, logs(0.2, 0.2))
    assert values.tolist() == pytest.approx([math.log(2) ** 2 / 2, math.log(0.5) ** 2 / 2], abs=1e-6)
    values.sum().backward()
    assert now.grad is not None and now.grad.tolist() == pytest.approx([math.log(2), math.log(0.5)], abs=1e-6)


def test_k2_in_expectation_has_the_gradient_of_the_kl() -> None:
    logits = torch.tensor([0.3, -0.2, 0.9], requires_grad=True)
    reference = torch.log_softmax(torch.tensor([0.1, 0.4, -0.3]), 0)
    policy = torch.log_softmax(logits, 0)
    (exact,) = torch.autograd.grad((policy.exp() * (policy - reference)).sum(), logits, retain_graph=True)
    (sampled,) = torch.autograd.grad((policy.exp().detach() * kl_k2(policy, reference)).sum(), logits)
    assert sampled.tolist() == pytest.approx(exact.tolist(), abs=1e-6)


def test_the_critics_loss_holds_values_near_what_they_were() -> None:
    values = torch.tensor([0.9, 0.3, 0.1], requires_grad=True)
    old, returns = torch.tensor([0.5, 0.3, 0.5]), torch.tensor([1.0, 1.0, 1.0])
    losses, held = value_loss(values, old, returns, 0.2)
    # held at 0.7: (0.3)² > (0.1)²; unmoved; held at 0.3 would be better than 0.1, so the free one counts
    assert losses.tolist() == pytest.approx([0.045, 0.245, 0.405], abs=1e-6)
    assert held.tolist() == [True, False, False]
    losses.sum().backward()
    assert values.grad is not None and values.grad.tolist() == pytest.approx([0, -0.7, -0.9], abs=1e-6)
    assert value_loss(values, old, returns, 0.0)[0].tolist() == pytest.approx([0.005, 0.245, 0.405], abs=1e-6)


def test_E7_a_sampler_equal_to_the_old_policy_weighs_exactly_one() -> None:
    old = logs(0.5, 0.123, 0.999)
    _, diagnostics = clip_higher(Terms(old, old, old, torch.ones(3)), SETTINGS)
    assert diagnostics.mean_importance == 1.0


def test_E4_advantages_of_zero_have_exactly_no_gradient() -> None:
    now = logs(0.9, 0.1).requires_grad_()
    losses, _ = clip_higher(Terms(now, logs(0.2, 0.5), logs(0.3, 0.3), torch.zeros(2)), SETTINGS)
    losses.sum().backward()
    assert now.grad is not None and not now.grad.any()
