"""Our losses and gradients are those of TRL, a public implementation, on the same tensors (E3, E6, E9).

TRL has padded rows of one rollout each; we have terms in any order and any number of packs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from appliance.train.batch import pack
from appliance.train.loss import Loss, LossSettings, Terms, cispo, clip_higher, gspo, masked_importance
from tests.support.tiny_policy import forest, make_base, make_policy

HERE = Path(__file__).parent
CLIPS = {"epsilon": 0.2, "epsilon_high": 0.28}
CASES: dict[str, tuple[Loss, dict[str, Any]]] = {
    "clip_higher": (clip_higher, {"loss_type": "dapo", **CLIPS}),
    "clip_higher, truncated weights": (clip_higher, {"loss_type": "dapo", **CLIPS}),
    "masked_importance": (masked_importance, {"loss_type": "dapo", **CLIPS}),
    "cispo": (cispo, {"loss_type": "cispo", "epsilon": 0.2, "epsilon_high": 1.28}),
    "gspo": (
        gspo,
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
    ),
}


def a_case(name: str, at_old: bool) -> dict[str, Any]:
    """Five rollouts of one to seven tokens; ratios between about 0.6 and 1.6, or all 1."""
    generator = torch.Generator().manual_seed(len(name))
    shape, lengths = (5, 7), torch.tensor([7, 1, 4, 6, 3])
    old = -2 * torch.rand(shape, generator=generator) - 0.1
    behaviour = old + 0.8 * torch.randn(shape, generator=generator) * ("weights" in name or "masked" in name)
    drift = 2e-3 if name == "gspo" else 0.3
    case = {
        "config": CASES[name][1],
        "mask": (torch.arange(7)[None] < lengths[:, None]).int(),
        "old_logprobs": old,
        "behaviour_logprobs": behaviour,
        "logprobs": old + (0.0 if at_old else drift) * torch.randn(shape, generator=generator),
        "advantages": torch.tensor([1.3, -0.7, 0.2, -1.1, 0.9]),
    }
    ratio = torch.exp(old - behaviour)
    if "truncated" in name:
        case["importance_sampling_ratio"] = ratio.clamp(max=2.0)
    if "masked" in name:
        case["importance_sampling_ratio"] = torch.where((ratio >= 0.5) & (ratio <= 5.0), ratio, 0.0)
    return case


@pytest.fixture(scope="module")
def trl(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], dict[str, Any]]:
    """TRL's answers to every case."""
    folder = tmp_path_factory.mktemp("trl")
    keys = [(name, at_old) for name in CASES for at_old in (False, True)]
    return dict(zip(keys, asked([a_case(*key) for key in keys], folder), strict=True))


def asked(cases: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """TRL's answers, from a process of its own."""
    torch.save(cases, folder / "cases.pt")
    worker = [str(HERE / "trl_worker.py"), str(folder / "cases.pt"), str(folder / "out.pt")]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HOME": str(folder)}
    command = [sys.executable, "-W", "ignore", *worker]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    answers: list[dict[str, Any]] = torch.load(folder / "out.pt", weights_only=False)
    return answers


def ours(name: str, case: dict[str, Any]) -> tuple[float, Tensor, Any]:
    """Loss, gradient as TRL's shape, and diagnostics, from the terms alone."""
    chosen = case["mask"].bool()
    rollouts = torch.arange(5)[:, None].expand(5, 7)[chosen]
    logprobs = case["logprobs"][chosen].clone().requires_grad_()
    old = case["old_logprobs"][chosen]
    counts = torch.bincount(rollouts).float()
    means = torch.bincount(rollouts, (logprobs.detach() - old).double()).float() / counts
    shares = len(old) / (5 * counts)
    advantages = case["advantages"][rollouts]
    terms = Terms(logprobs, old, case["behaviour_logprobs"][chosen], advantages, means[rollouts], shares[rollouts])
    losses, diagnostics = CASES[name][0](terms, LossSettings())
    loss = losses.sum() / len(old)
    loss.backward()
    gradient = torch.zeros(5, 7)
    gradient[chosen] = logprobs.grad
    return float(loss.detach()), gradient, diagnostics


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_losses_and_gradients_are_those_of_trl(trl: dict[tuple[str, bool], dict[str, Any]], name: str) -> None:
    theirs = trl[name, False]
    loss, gradient, diagnostics = ours(name, a_case(name, False))
    assert loss == pytest.approx(theirs["loss"], rel=1e-5, abs=1e-7)
    assert float((gradient - theirs["gradient"]).norm() / theirs["gradient"].norm()) < 1e-5
    if name.startswith("clip"):
        shares = (diagnostics.clip_low_share, diagnostics.clip_high_share, diagnostics.clip_share)
        names = ("clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean")
        assert shares == pytest.approx(tuple(theirs["metrics"][n] for n in names)) and diagnostics.clip_share > 0


@pytest.mark.slow
def test_E6_at_the_old_policy_trls_losses_agree_with_each_other_and_with_ours(
    trl: dict[tuple[str, bool], dict[str, Any]],
) -> None:
    reinforce = trl["clip_higher", True]["gradient"]
    assert torch.allclose(trl["cispo", True]["gradient"], reinforce, atol=1e-7)
    for name in ("clip_higher", "cispo"):
        assert torch.allclose(ours(name, a_case(name, True))[1], trl[name, True]["gradient"], atol=1e-7)


@pytest.mark.slow
def test_E3_a_packed_tree_has_trls_gradient_of_its_flat_padded_rows(tmp_path: Path) -> None:
    """End to end: TRL's loss over padded rows that went through the whole model, against our packs at two budgets."""
    policy = make_policy(make_base(tmp_path / "base"))
    sequences = forest()
    gradients = []
    for budget in (90, 4096):
        packs = pack(sequences, budget)
        total = sum(p.num_terms for p in packs)
        for p in packs:
            logprobs = policy.logprobs(p, 1.0)
            old, behaviour = logprobs.detach() - 0.1, torch.from_numpy(p.behaviour_logprobs)
            terms = Terms(logprobs, old, behaviour, torch.from_numpy(p.advantages))
            (clip_higher(terms, LossSettings())[0].sum() / total).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None]))
        policy.model.zero_grad()
    case, kept = padded(policy, sequences)
    (theirs,) = asked([case], tmp_path)
    kept.backward(theirs["gradient"])
    flat = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
    for ours_packed in gradients:
        assert float((ours_packed - flat).norm() / flat.norm()) < 1e-5


def padded(policy: Any, sequences: list[Any]) -> tuple[dict[str, Any], Tensor]:
    """Each row through the whole model with plain causal attention, its trained tokens padded as TRL takes them."""
    policy.model.get_base_model().set_attn_implementation("sdpa")
    rows = []
    for s in sequences:
        logits = policy.model(input_ids=torch.from_numpy(s.ids.astype(np.int64))[None]).logits[0].log_softmax(-1)
        rows.append(torch.stack([logits[t - 1, int(s.ids[t])] for t in np.flatnonzero(s.mask)]))
    logprobs = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    behaviour = torch.nn.utils.rnn.pad_sequence(
        [torch.from_numpy(s.behaviour_logprobs[s.mask]) for s in sequences], batch_first=True
    )
    lengths = torch.tensor([len(r) for r in rows])
    old = logprobs.detach() - 0.1
    case = {
        "config": {"loss_type": "dapo", **CLIPS},
        "mask": (torch.arange(logprobs.shape[1])[None] < lengths[:, None]).int(),
        "old_logprobs": old,
        "logprobs": logprobs.detach(),
        "advantages": torch.tensor([s.advantage for s in sequences]),
        "importance_sampling_ratio": torch.exp(old - behaviour).clamp(max=2.0),
    }
    return case, logprobs
