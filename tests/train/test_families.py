"""Every family that can be trained, as a tiny random model: packed trees against flat rows through transformers' own
attention; checkpointing, dtypes, quantised experts and FlexAttention change nothing that they should not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor

from appliance.errors import ModelError
from appliance.train import attention_gpu
from appliance.train.bases import BaseSettings, check_base, check_tokenizer
from appliance.train.batch import Sequence, pack
from appliance.train.policy import Policy, load_policy, save_adapter
from appliance.train.update import UpdateSettings, learn, make_optimizer
from appliance.train.weights import export_served
from tests.support.tiny_policy import forest, make_base, make_policy, tiny_settings

SHAPE: dict[str, Any] = dict(
    vocab_size=128, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=8, initializer_range=0.2, max_position_embeddings=512, tie_word_embeddings=True,
)  # fmt: skip
WINDOWED: dict[str, Any] = dict(sliding_window=7, layer_types=["sliding_attention", "full_attention"])
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2.5": ("Qwen2", {}),
    "qwen3": ("Qwen3", {}),
    "qwen3-moe": ("Qwen3Moe", dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64)),
    "llama": ("Llama", {}),
    "smollm2": ("Llama", dict(num_attention_heads=3, num_key_value_heads=1, hidden_size=24)),
    "smollm3": ("SmolLM3", dict(no_rope_layers=[1, 0])),
    "gemma": ("Gemma", {}),
    "gemma2": ("Gemma2", WINDOWED | dict(query_pre_attn_scalar=8)),
    "gemma3": ("Gemma3", WINDOWED | dict(query_pre_attn_scalar=8)),
}


def family(name: str, folder: Path) -> Path:
    prefix, extra = FAMILIES[name]
    torch.set_num_threads(1)
    torch.manual_seed(1)
    config = getattr(hf, "Gemma3TextConfig" if prefix == "Gemma3" else f"{prefix}Config")(
        **SHAPE | extra, pad_token_id=0, bos_token_id=0, eos_token_id=1
    )
    getattr(hf, f"{prefix}ForCausalLM")(config).save_pretrained(folder / name)
    return folder / name


def flat_logprobs(policy: Policy, sequences: list[Sequence]) -> Tensor:
    """Every trained token's logprob from one causal row at a time through the whole, ordinary model."""
    model = policy.model.get_base_model()
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    found = []
    for s in sequences:
        logits = policy.model(input_ids=torch.from_numpy(s.ids.astype("int64"))[None]).logits[0]
        trained = s.mask.nonzero()[0]
        found.append(torch.log_softmax(logits, -1)[trained - 1, s.ids[trained]])
    model.set_attn_implementation(before)
    return torch.cat(found)


def gradient(policy: Policy, total: Tensor) -> Tensor:
    policy.model.zero_grad()
    total.backward()
    return torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])


def packed_logprobs(policy: Policy, sequences: list[Sequence]) -> Tensor:
    """As `flat_logprobs`, packed; put back into the order of the rows."""
    found = {}
    for p in pack(sequences, 150):
        for key, value in zip(zip(p.rollouts, p.behaviour_logprobs, strict=True), policy.logprobs(p, 1.0), strict=True):
            found[key] = value
    return torch.stack([found[s.rollout, b] for s in sequences for b in s.behaviour_logprobs[s.mask]])


@pytest.mark.parametrize("name", FAMILIES)
def test_a_packed_tree_is_its_flat_rows_in_every_family(name: str, tmp_path: Path) -> None:
    policy = make_policy(family(name, tmp_path))
    sequences = forest()
    flat, packed = flat_logprobs(policy, sequences), packed_logprobs(policy, sequences)
    assert torch.allclose(packed, flat, atol=2e-5)
    weights = torch.linspace(-1, 1, len(flat))
    wanted = gradient(policy, (flat * weights).sum())
    assert float((gradient(policy, (packed * weights).sum()) - wanted).norm() / wanted.norm()) < 1e-5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("name", ["llama", "smollm2", "gemma2", "gemma3"])
def test_flex_attention_sees_what_our_attention_sees(name: str, tmp_path: Path) -> None:
    policy = make_policy(family(name, tmp_path))
    (packed,) = pack(forest(), 4096)
    with torch.no_grad():
        wanted = policy.logprobs(packed, 1.0)
        policy.attention = attention_gpu.NAME
        policy.model.get_base_model().set_attn_implementation(attention_gpu.NAME)
        assert torch.allclose(policy.logprobs(packed, 1.0), wanted, atol=2e-5)


def test_padded_sizes_are_few_and_never_much_too_large() -> None:
    sizes = [attention_gpu.bucket(n) for n in range(1, 20_000)]
    assert all(n <= size < n + max(128, n // 4 + 1) and size % 128 == 0 for n, size in enumerate(sizes, 1))
    assert len(set(sizes)) < 60


@pytest.mark.parametrize("quantization", ["none", "nf4"])
def test_checkpointing_changes_no_bit(quantization: Any, tmp_path: Path) -> None:
    base = make_base(tmp_path / "base")
    (packed,) = pack(forest(), 4096)
    found = []
    for checkpointing in (False, True):
        settings = replace(tiny_settings(quantization), base=BaseSettings(quantization, "auto", checkpointing))
        policy = load_policy(base, settings)
        found.append(gradient(policy, policy.logprobs(packed, 1.0).sum()))
    assert found[0].norm() > 0 and torch.equal(*found)


def test_a_bf16_base_learns_with_an_fp32_adapter(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base")
    policy = load_policy(base, replace(tiny_settings(), base=BaseSettings("none", "bfloat16")))
    assert {p.dtype for p in policy.parameters()} == {torch.float32}
    assert next(policy.model.get_base_model().parameters()).dtype == torch.bfloat16
    metrics = learn(policy, forest(), make_optimizer(policy, 1e-3), UpdateSettings())
    assert metrics.grad_norm > 0


@pytest.mark.parametrize("kind", ["adamw8bit", "paged_adamw8bit"])
@pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")
def test_the_8_bit_optimisers_move_as_adamw_does(kind: str, tmp_path: Path) -> None:
    base = make_base(tmp_path / "base")
    moved = []
    for name in ("adamw", kind):
        policy = make_policy(base)
        before = torch.cat([p.detach().flatten().clone() for p in policy.parameters()])
        learn(policy, forest(), make_optimizer(policy, 1e-3, name), UpdateSettings())
        moved.append(torch.cat([p.detach().flatten() for p in policy.parameters()]) - before)
    assert float(torch.cosine_similarity(*moved, dim=0)) > 0.95


def test_a_mixture_is_quantised_with_its_experts_and_served_with_their_values(tmp_path: Path) -> None:
    base = family("qwen3-moe", tmp_path)
    policy = make_policy(base, "nf4")
    (packed,) = pack(forest(), 4096)
    stored = {n: p.dtype for n, p in policy.model.named_parameters() if "experts" in n}
    assert set(stored.values()) == {torch.uint8}
    assert gradient(policy, policy.logprobs(packed, 1.0).sum()).norm() > 0
    export_served(base, BaseSettings("nf4"), tmp_path / "served")
    served = make_policy(tmp_path / "served")
    with torch.no_grad():
        assert torch.allclose(served.logprobs(packed, 1.0), policy.logprobs(packed, 1.0), atol=1e-4)


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize("name", ["qwen3_next", "mamba2", "qwen3_5_text"])
def test_recurrent_and_linear_attention_models_are_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": name}))
    with pytest.raises(ModelError, match="one branch's state into the next"):
        check_base(tmp_path)


def test_weights_that_are_stored_quantised_are_refused(tmp_path: Path) -> None:
    quantised = {"model_type": "qwen3", "quantization_config": {"quant_method": "gptq", "bits": 4}}
    (tmp_path / "config.json").write_text(json.dumps(quantised))
    with pytest.raises(ModelError, match=r"stored quantised \(gptq\)"):
        check_base(tmp_path)


def test_an_adapter_of_another_base_or_cut_short_is_refused(tmp_path: Path) -> None:
    base, other = make_base(tmp_path / "base"), make_base(tmp_path / "other", layers=1)
    adapter = tmp_path / "v1"
    save_adapter(make_policy(base), adapter)
    with pytest.raises(ModelError, match="made on another base"):
        load_policy(other, tiny_settings(), adapter)
    weights = adapter / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelError, match="cut short"):
        load_policy(base, tiny_settings(), adapter)


def test_a_tokenizer_that_is_not_the_engines_is_refused(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base")
    (tmp_path / "served").mkdir()
    tokens = {"model": {"vocab": {"a": 0, "b": 127}}, "added_tokens": []}
    (base / "tokenizer.json").write_text(json.dumps(tokens))
    with pytest.raises(ModelError, match="would mean other tokens"):
        check_tokenizer(base, tmp_path / "served")
    (tmp_path / "served" / "tokenizer.json").write_text(json.dumps(tokens))
    check_tokenizer(base, tmp_path / "served")
    tokens["model"]["vocab"]["c"] = 128  # type: ignore[index]
    for folder in (base, tmp_path / "served"):
        (folder / "tokenizer.json").write_text(json.dumps(tokens))
    with pytest.raises(ModelError, match="id 128, the model only 128"):
        check_tokenizer(base, tmp_path / "served")
