"""The policy on a tiny random Qwen3: packed tries against flat rows through the plain model (E1-E3, E10, E12, E13)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from appliance.errors import ModelError
from appliance.train import attention_cpu
from appliance.train.bases import BaseSettings, check_base
from appliance.train.batch import Packed, Sequence, pack
from appliance.train.loss import LossSettings, Terms, clip_higher
from appliance.train.policy import Policy, base_fingerprint, load_policy, save_adapter
from appliance.train.spans import span_attention
from appliance.train.weights import export_served
from tests.support.tiny_policy import forest, make_base, make_policy, row, tiny_settings

TEMPERATURE = 0.8


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("model") / "base")


def use(policy: Policy, name: str) -> None:
    """Computes with transformers' own causal or masked attention instead of ours, or back."""
    policy.attention = name
    policy.model.get_base_model().set_attn_implementation(name)


def flat_logprobs(policy: Policy, sequence: Sequence) -> Tensor:
    """(terms,) by the ordinary way: one causal row through the whole model, full logits. Needs `use(…, "sdpa")`."""
    logits = policy.model(input_ids=torch.from_numpy(sequence.ids.astype(np.int64))[None]).logits[0]
    everything = torch.log_softmax(logits / TEMPERATURE, dim=-1)
    return torch.stack([everything[t - 1, int(sequence.ids[t])] for t in np.flatnonzero(sequence.mask)])


def loss(policy: Policy, logprobs: Tensor, behaviour: np.ndarray, advantages: np.ndarray) -> Tensor:
    old = logprobs.detach() - 0.1  # ratios off 1, some of them clipped
    terms = Terms(logprobs, old, torch.from_numpy(behaviour), torch.from_numpy(advantages))
    return clip_higher(terms, LossSettings())[0].sum()


def packed_gradient(policy: Policy, packs: list[Packed]) -> Tensor:
    for p in packs:
        loss(policy, policy.logprobs(p, TEMPERATURE), p.behaviour_logprobs, p.advantages).backward()
    return taken_gradient(policy)


def flat_gradient(policy: Policy, sequences: list[Sequence]) -> Tensor:
    use(policy, "sdpa")
    for s in sequences:
        advantages = np.full(int(s.mask.sum()), s.advantage, np.float32)
        loss(policy, flat_logprobs(policy, s), s.behaviour_logprobs[s.mask], advantages).backward()
    use(policy, attention_cpu.NAME)
    return taken_gradient(policy)


def taken_gradient(policy: Policy) -> Tensor:
    taken = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
    policy.model.zero_grad()
    assert taken.norm() > 0.1
    return taken


def difference(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def test_E1_a_chain_is_a_plain_row(base: Path) -> None:
    policy = make_policy(base)
    chain = row([3, 9, 27, 81, 4, 16, 64], range(3, 7))
    assert difference(packed_gradient(policy, pack([chain], 100)), flat_gradient(policy, [chain])) < 1e-5


def test_E3_I7_a_packed_forest_has_the_gradient_of_its_flat_rows_at_every_budget_and_order(base: Path) -> None:
    policy = make_policy(base)
    sequences = forest()
    flat = flat_gradient(policy, sequences)
    for budget in (60, 90, 4096):
        packs = pack(sequences[::-1], budget)
        assert difference(packed_gradient(policy, packs), flat) < 1e-5
        assert difference(packed_gradient(policy, packs[::-1]), flat) < 1e-5


def test_our_tree_attention_is_the_dense_mask(base: Path) -> None:
    policy = make_policy(base)
    packs = pack(forest(), 4096)
    spans = packed_gradient(policy, packs)
    use(policy, "sdpa")
    dense = packed_gradient(policy, packs)
    assert difference(spans, dense) < 1e-5


def test_runs_are_spans_wherever_they_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    (packed,) = pack(forest(), 4096)
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, heads, packed.num_tokens, 16, requires_grad=True) for heads in (4, 2, 2))
    weight = torch.randn(1, packed.num_tokens, 4, 16)
    plan = attention_cpu.TreePlan(packed)
    wanted = torch.autograd.grad((span_attention(q, k, v, plan.spans, 0.25).transpose(1, 2) * weight).sum(), (q, k, v))
    for longest in (256, 3):
        monkeypatch.setattr(attention_cpu, "RUN_TOKENS", longest)
        out = attention_cpu.run_attention(q, k, v, attention_cpu.runs(packed), attention_cpu.Scores(0.25))
        for mine, theirs in zip(torch.autograd.grad((out * weight).sum(), (q, k, v)), wanted, strict=True):
            assert difference(mine, theirs) < 1e-5


def test_E2_a_token_has_one_logprob_on_every_path_through_it(base: Path) -> None:
    policy = make_policy(base)
    both = [row([3, 9, 27, 81, 4], range(2, 5), 1.0, 0), row([3, 9, 27, 81, 5, 6], range(2, 6), -1.0, 1)]
    (p,) = pack(both, 100)
    logprobs = policy.logprobs(p, 1.0)
    assert torch.equal(logprobs[:2], logprobs[3:5])
    alone = [policy.logprobs(pack([s], 100)[0], 1.0) for s in both]
    assert torch.allclose(logprobs, torch.cat(alone), atol=1e-5)


def test_E10_a_changed_token_in_one_branch_leaves_the_other_bit_identical(base: Path) -> None:
    policy = make_policy(base)
    mine = row([3, 9, 27, 81, 4, 8], range(3, 6), 1.0, 0)
    logprobs = []
    for token in (50, 51):
        (p,) = pack([mine, row([3, 9, 40, token, 60], range(2, 5), 1.0, 1)], 100)
        logprobs.append(policy.logprobs(p, 1.0)[p.rollouts == 0])
    assert torch.equal(*logprobs)


def test_E12_chunked_logits_are_full_logits(base: Path) -> None:
    policy = make_policy(base)
    packs = pack(forest(), 4096)
    full = packed_gradient(policy, packs)
    policy.logit_floats = 5 * 128
    assert difference(packed_gradient(policy, packs), full) < 1e-6


def test_E15_nan_where_nothing_was_sampled_changes_nothing(base: Path) -> None:
    policy = make_policy(base)
    clean = forest()
    dirty = [
        Sequence(
            s.ids, s.mask, np.where(s.mask, s.behaviour_logprobs, np.nan).astype(np.float32), s.advantage, s.rollout
        )
        for s in clean
    ]
    assert torch.equal(packed_gradient(policy, pack(clean, 90)), packed_gradient(policy, pack(dirty, 90)))


@pytest.mark.parametrize("quantization", ["none", "nf4"])
def test_E13_without_its_adapter_the_policy_is_its_base(base: Path, quantization: str) -> None:
    policy = make_policy(base, quantization)  # type: ignore[arg-type]
    fresh = load_policy(base, tiny_settings(quantization))  # type: ignore[arg-type]
    (p,) = pack(forest(), 4096)
    with policy.adapter_off(), torch.no_grad():
        reference = policy.logprobs(p, 1.0)
    assert torch.equal(reference, fresh.logprobs(p, 1.0).detach())
    assert not torch.equal(reference, policy.logprobs(p, 1.0))
    assert base_fingerprint(policy) == base_fingerprint(fresh)


def test_E16_the_served_folder_has_the_values_of_the_nf4_base(base: Path, tmp_path: Path) -> None:
    export_served(base, BaseSettings("nf4"), tmp_path / "served")
    served = AutoModelForCausalLM.from_pretrained(tmp_path / "served", local_files_only=True).eval()
    assert {p.dtype for p in served.parameters()} == {torch.float32}
    policy = load_policy(base, tiny_settings("nf4"))
    chain = row([3, 9, 27, 81, 4, 16], range(1, 6))
    ids = torch.from_numpy(chain.ids.astype(np.int64))[None]
    ordinary = torch.log_softmax(served(input_ids=ids).logits[0], dim=-1)[range(5), chain.ids[1:]]
    assert torch.allclose(policy.logprobs(pack([chain], 100)[0], 1.0), ordinary, atol=1e-4)
    assert (tmp_path / "served" / "tokenizer_config.json").read_text() == '{"chat_template": "x"}'
    assert [f.name for f in tmp_path.iterdir()] == ["served"]


def test_an_adapter_comes_back_exactly_and_names_itself_by_its_weights(base: Path, tmp_path: Path) -> None:
    policy = make_policy(base)
    sha256 = save_adapter(policy, tmp_path / "v1")
    again = load_policy(base, tiny_settings(seed=99), tmp_path / "v1")
    assert [torch.equal(a, b) for a, b in zip(policy.parameters(), again.parameters(), strict=True)] == [True] * 28
    assert save_adapter(again, tmp_path / "v1") == sha256  # replaces it
    names = ["adapter_config.json", "adapter_model.safetensors", "origin.json"]
    assert sorted(f.name for f in (tmp_path / "v1").iterdir()) == names
    config = json.loads((tmp_path / "v1" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["modules_to_save"]) == (8, 16, None)
    with pytest.raises(ModelError, match="rank 8, the run has 16"):
        load_policy(base, tiny_settings(rank=16), tmp_path / "v1")


def test_a_folder_that_cannot_be_trained_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json is missing"):
        check_base(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    with pytest.raises(ModelError, match="'mamba' with linear_attention layers cannot be trained on trees"):
        check_base(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_policy(tmp_path, tiny_settings())
