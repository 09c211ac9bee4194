"""A tiny random Qwen3 in a folder, and rows to train it on: shared by the trainer's tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from appliance.train.bases import BaseSettings, Quantization
from appliance.train.batch import Sequence
from appliance.train.policy import Policy, PolicySettings, load_policy

VOCABULARY = 128


def make_base(folder: Path, width: int = 64, layers: int = 2, vocabulary: int = VOCABULARY) -> Path:
    torch.set_num_threads(1)  # matrices this small only lose by a second thread, and the tests share their cores
    torch.manual_seed(7)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=width // 4,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        initializer_range=0.2,  # large enough that logits, and so errors, are far from 0
        bos_token_id=0,
        eos_token_id=1,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text('{"chat_template": "x"}')
    return folder


def tiny_settings(quantization: Quantization = "none", rank: int = 8, seed: int = 3) -> PolicySettings:
    return PolicySettings(BaseSettings(quantization), rank, "cpu", seed)


def make_policy(base: Path, quantization: Quantization = "none", adapter: Path | None = None) -> Policy:
    """A fresh adapter is the identity and half of its gradient is zero: it is shaken so that tests see both halves."""
    policy = load_policy(base, tiny_settings(quantization), adapter)
    if adapter is None:
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return policy


def row(
    ids: list[int] | np.ndarray, trained: list[int] | range, advantage: float = 1.0, rollout: int = 0, seed: int = 0
) -> Sequence:
    """A row whose `trained` positions were sampled at logprobs around −ln V."""
    mask = np.zeros(len(ids), dtype=np.bool_)
    mask[list(trained)] = True
    noise = np.random.default_rng(seed).normal(-4.0, 0.5, len(ids)).astype(np.float32)
    return Sequence(
        np.array(ids, dtype=np.int32), mask, np.where(mask, noise, 0).astype(np.float32), advantage, rollout
    )


def forest(seed: int = 0) -> list[Sequence]:
    """Two groups of three rollouts under one system prompt; each rollout has a row and a fork of it."""
    draw = np.random.default_rng(seed)

    def tokens(count: int) -> list[int]:
        return [int(i) for i in draw.integers(2, VOCABULARY, count)]

    system = tokens(20)
    rows: list[Sequence] = []
    for group in range(2):
        prompt = system + tokens(9)
        for member in range(3):
            number = 3 * group + member
            advantage = (-1.1, 0.4, 0.7)[member]
            first = prompt + tokens(5 + member)
            long = first + tokens(4) + tokens(6)
            fork = first[:-2] + tokens(7)
            answered = len(first)
            rows.append(row(long, [*range(29, answered), *range(answered + 4, len(long))], advantage, number, number))
            rows.append(row(fork, range(answered + 1, len(fork)), advantage, number, 50 + number))
    return rows
