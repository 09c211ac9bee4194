"""Updates: what moves the policy, what must not, and that a killed run goes on bit for bit (E4, E9, E13, E14)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from appliance.errors import TrainingError
from appliance.train.batch import pack
from appliance.train.loss import gspo
from appliance.train.policy import Policy, base_fingerprint, load_policy, save_adapter
from appliance.train.update import UpdateSettings, learn, load_optimizer, make_optimizer, save_optimizer, update
from tests.support.tiny_policy import forest, make_base, make_policy, tiny_settings

SETTINGS = UpdateSettings(row_tokens=90)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("model") / "base")


def values(policy: Policy) -> Tensor:
    return torch.cat([p.detach().flatten().clone() for p in policy.parameters()])


def test_E13_an_update_says_what_it_did_and_leaves_the_base_alone(base: Path) -> None:
    policy = make_policy(base, "nf4")
    before, fingerprint = values(policy), base_fingerprint(policy)
    optimizer = make_optimizer(policy, 1e-3)
    with torch.no_grad():
        (whole,) = pack(forest(), 4096)
        logprobs = policy.logprobs(whole, 1.0).numpy()
    metrics = learn(policy, forest(), optimizer, SETTINGS)
    assert metrics.logprob_gap == pytest.approx(np.abs(logprobs - whole.behaviour_logprobs).mean(), rel=1e-4)
    assert metrics.entropy == pytest.approx(-logprobs.mean(), rel=1e-4)
    assert (metrics.num_terms, metrics.flat_tokens) == (whole.num_terms, whole.num_flat_tokens)
    assert (metrics.clip_share, metrics.mean_ratio) == (0.0, 1.0) and metrics.grad_norm > 0
    assert not torch.equal(values(policy), before)
    learn(policy, forest(), optimizer, SETTINGS)
    assert base_fingerprint(policy) == fingerprint


def test_learning_raises_what_was_good_and_lowers_what_was_bad(base: Path) -> None:
    policy = make_policy(base)
    optimizer = make_optimizer(policy, 1e-3)
    (whole,) = pack(forest(), 4096)
    with torch.no_grad():
        before = policy.logprobs(whole, 1.0)
    for _ in range(3):
        learn(policy, forest(), optimizer, SETTINGS)
    with torch.no_grad():
        moved = (policy.logprobs(whole, 1.0) - before).numpy()
    assert np.dot(moved, whole.advantages) > 0


def test_E4_a_batch_of_zero_advantages_moves_nothing_not_even_by_momentum(base: Path) -> None:
    policy = make_policy(base)
    optimizer = make_optimizer(policy, 1e-2)
    learn(policy, forest(), optimizer, SETTINGS)
    before = values(policy)
    metrics = learn(policy, [replace(s, advantage=0.0) for s in forest()], optimizer, SETTINGS)
    assert metrics.grad_norm == 0.0 and torch.equal(values(policy), before)


def test_E9_I7_budget_and_order_do_not_change_an_update(base: Path) -> None:
    moved = []
    for sequences, budget in ((forest(), 4096), (forest()[::-1], 60), (forest()[3:] + forest()[:3], 130)):
        policy = make_policy(base)
        optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
        before = values(policy)
        update(policy, pack(sequences, budget), optimizer, replace(SETTINGS, max_grad_norm=1e9))
        moved.append(values(policy) - before)
    for other in moved[1:]:
        assert float((other - moved[0]).norm() / moved[0].norm()) < 1e-5


def test_minibatches_are_all_held_against_the_policy_at_the_start_of_the_batch(base: Path) -> None:
    policy = make_policy(base)
    optimizer = make_optimizer(policy, 3e-2)
    (whole,) = pack(forest(), 4096)
    with torch.no_grad():
        gap = float((policy.logprobs(whole, 1.0) - torch.from_numpy(whole.behaviour_logprobs)).abs().mean())
    metrics = learn(policy, forest(), optimizer, replace(SETTINGS, minibatches=3))
    assert metrics.logprob_gap == pytest.approx(gap, rel=1e-4)
    assert metrics.mean_ratio != 1.0 and metrics.clip_share > 0
    assert metrics.num_terms == whole.num_terms


@pytest.mark.parametrize("quantization", ["none", "nf4"])
def test_E14_killed_and_resumed_is_bit_for_bit_the_run_that_went_on(
    base: Path, tmp_path: Path, quantization: str
) -> None:
    policy = make_policy(base, quantization)  # type: ignore[arg-type]
    optimizer = make_optimizer(policy, 1e-3)
    learn(policy, forest(1), optimizer, SETTINGS)
    save_adapter(policy, tmp_path / "v1")
    save_optimizer(optimizer, tmp_path / "v1" / "optimizer.pt")
    learn(policy, forest(2), optimizer, SETTINGS)

    resumed = load_policy(base, tiny_settings(quantization), tmp_path / "v1")  # type: ignore[arg-type]
    again = make_optimizer(resumed, 1e-3)
    load_optimizer(again, tmp_path / "v1" / "optimizer.pt")
    learn(resumed, forest(2), again, SETTINGS)
    assert torch.equal(values(resumed), values(policy))


def test_a_nan_stops_at_the_step_and_changes_nothing(base: Path) -> None:
    policy = make_policy(base)
    optimizer = make_optimizer(policy, 1e-3)
    learn(policy, forest(), optimizer, SETTINGS)
    before = values(policy)
    state = [s["exp_avg"].clone() for s in optimizer.state.values()]
    with pytest.raises(TrainingError, match="no step taken"):
        learn(policy, [replace(s, advantage=float("nan")) for s in forest()], optimizer, SETTINGS)
    assert torch.equal(values(policy), before)
    assert all(torch.equal(s["exp_avg"], old) for s, old in zip(optimizer.state.values(), state, strict=True))


def test_a_batch_without_a_trained_token_and_a_broken_state_say_so(base: Path, tmp_path: Path) -> None:
    policy = make_policy(base)
    optimizer = make_optimizer(policy, 1e-3)
    with pytest.raises(TrainingError, match="no trained token"):
        learn(policy, [], optimizer, SETTINGS)
    (tmp_path / "optimizer.pt").write_bytes(b"cut short")
    with pytest.raises(TrainingError, match="unreadable optimiser state"):
        load_optimizer(optimizer, tmp_path / "optimizer.pt")


def gradient(policy: Policy, budget: int, settings: UpdateSettings, drift: float = 0.0) -> Tensor:
    """What one step of plain descent takes off, with π_old a little off π where `drift` says so."""
    packs = pack(forest(), budget)
    old = None
    if drift:
        with torch.no_grad():
            logprobs = [policy.logprobs(p, 1.0) for p in packs]
        # moved by a number of the term's own, so that the packs agree on it
        old = [x + drift * torch.sin(40 * x) for x in logprobs]
    before = values(policy)
    update(policy, packs, torch.optim.SGD(policy.parameters(), lr=1.0), replace(settings, max_grad_norm=1e9), old)
    taken = before - values(policy)
    with torch.no_grad():
        torch.nn.utils.vector_to_parameters(before, policy.parameters())
    return taken


@pytest.mark.parametrize("drift", [0.0, 2e-4])
def test_E9_a_rollout_is_one_sequence_to_gspo_however_many_packs_it_lies_in(base: Path, drift: float) -> None:
    policy = make_policy(base)
    settings = replace(SETTINGS, policy_loss=gspo)
    whole = gradient(policy, 4096, settings, drift)
    for budget in (60, 130):
        assert float((gradient(policy, budget, settings, drift) - whole).norm() / whole.norm()) < 1e-5
    assert float((gradient(policy, 4096, SETTINGS, drift) - whole).norm() / whole.norm()) > 1e-3


def test_who_watches_is_told_every_terms_gap_before_the_step_and_can_stop_it(base: Path) -> None:
    policy = make_policy(base)
    told: list[tuple[np.ndarray, np.ndarray]] = []
    metrics = learn(policy, forest(), make_optimizer(policy, 1e-3), SETTINGS, lambda r, gaps: told.append((r, gaps)))
    ((rollouts, gaps),) = told
    assert set(rollouts) == set(range(6)) and gaps.mean() == pytest.approx(metrics.logprob_gap, rel=1e-5)

    def stop(rollouts: np.ndarray, gaps: np.ndarray) -> None:
        raise TrainingError("stopped")

    before = values(policy)
    with pytest.raises(TrainingError, match="stopped"):
        learn(policy, forest(), make_optimizer(policy, 1e-3), SETTINGS, stop)
    assert torch.equal(values(policy), before)
