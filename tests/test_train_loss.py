"""Losses against numbers worked by hand, and against each other where they must agree (E4, E6, E7)."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from appliance.train.loss import LossSettings, clip_higher

SETTINGS = LossSettings(clip_low=0.2, clip_high=0.28, max_importance=2.0)


def logs(*probabilities: float) -> Tensor:
    return torch.tensor([math.log(p) for p in probabilities], dtype=torch.float32)


def test_the_loss_of_each_term_is_the_number_worked_by_hand() -> None:
    # r = 1.5 up and down, 0.5 up and down; mu = old, so every weight is 1
    now, old = logs(0.3, 0.3, 0.1, 0.1).requires_grad_(), logs(0.2, 0.2, 0.2, 0.2)
    advantages = torch.tensor([1.0, -0.6, 1.0, -1.0])
    losses, diagnostics = clip_higher(now, old, old, advantages, SETTINGS)
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
    losses, _ = clip_higher(now, old, old, torch.tensor([1.0, -0.6]), SETTINGS)
    assert -losses.sum().item() == pytest.approx(1.28 - 0.9, abs=1e-6)
    summed, _ = clip_higher(now[:1], old[:1], old[:1], torch.tensor([0.4]), SETTINGS)
    assert -summed.item() == pytest.approx(1.28 * 0.4, abs=1e-6)


def test_importance_weights_are_capped_and_carry_no_gradient() -> None:
    old = logs(0.4, 0.4, 0.4)
    now = old.clone().requires_grad_()
    losses, diagnostics = clip_higher(now, old, logs(0.4, 0.1, 0.8), torch.ones(3), SETTINGS)
    assert losses.tolist() == pytest.approx([-1, -2, -0.5], abs=1e-6)
    assert diagnostics.mean_importance == pytest.approx(3.5 / 3)
    losses.sum().backward()
    assert now.grad is not None and now.grad.tolist() == pytest.approx([-1, -2, -0.5], abs=1e-6)


def test_at_the_old_policy_the_gradient_is_that_of_reinforce() -> None:
    advantages = torch.tensor([1.3, -0.4, 0.2])
    now = logs(0.5, 0.2, 0.7).requires_grad_()
    old = now.detach()
    losses, diagnostics = clip_higher(now, old, old, advantages, SETTINGS)
    losses.sum().backward()
    assert now.grad is not None and torch.equal(now.grad, -advantages)  # d(-A log π)/d log π
    assert diagnostics.clip_share == 0


def test_a_sampler_equal_to_the_old_policy_weighs_exactly_one() -> None:
    old = logs(0.5, 0.123, 0.999)
    _, diagnostics = clip_higher(old, old, old, torch.ones(3), SETTINGS)
    assert diagnostics.mean_importance == 1.0


def test_advantages_of_zero_have_exactly_no_gradient() -> None:
    now = logs(0.9, 0.1).requires_grad_()
    losses, _ = clip_higher(now, logs(0.2, 0.5), logs(0.3, 0.3), torch.zeros(2), SETTINGS)
    losses.sum().backward()
    assert now.grad is not None and not now.grad.any()
