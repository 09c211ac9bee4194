"""The pocket model: a Qwen3 of about a million parameters that is grown on the spot from recorded lessons.

A model this small learns grammar in seconds but, from an ordinary random start, stays for thousands of steps on the
plateau before copying (which head looks where, and what a head passes on, are useless without each other). So the
start is *mimetic* (after Trockman and Kolter, arXiv 2305.09828): the heads of the first layer look back by one, two,
three … tokens, and the heads of all other layers look at pool words and pass on exactly what they see. What the
slots of a command are, and where their words stand in the task, is left to learn; with this start it takes about a
hundred steps.

Shapes: B rows · T tokens · D width · H heads · V vocabulary. Everything follows from the seed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from appliance.errors import TrainingError
from appliance.system.files import new_file
from appliance.types import TokenIds

WIDTH, LAYERS, HEADS, HEAD_DIM, MLP = 192, 3, 6, 32, 384
ROPE_THETA = 1e6
"""Large, so that half of the rotary frequencies hardly turn within a prompt: matching is by content there."""

CONSTANT, WORD = 0, 1
"""Embedding dimensions with a meaning: one for every token, one that only pool words have."""
MARK = 0.3
OFFSET_PAIRS = 4
OFFSET_GAIN = 1.6
ROWS_A_STEP = 24
MAX_GRAD_NORM = 1.0

Row = tuple[TokenIds, NDArray[np.bool_]]
Draw = Callable[[], Sequence[Row]]
Progress = Callable[[int, float, float], None]


@dataclass(frozen=True, slots=True)
class Growth:
    """steps: optimiser steps · learning_rate: its peak, reached in 20 steps, then falling linearly to 5 %."""

    steps: int
    learning_rate: float


def new_model(vocabulary_size: int, word_ids: Sequence[int], seed: int) -> Qwen3ForCausalLM:
    """A model with the mimetic start; `word_ids` are the tokens of the pool words."""
    config = Qwen3Config(
        vocab_size=math.ceil(vocabulary_size / 64) * 64,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        head_dim=HEAD_DIM,
        intermediate_size=MLP,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        initializer_range=WIDTH**-0.5,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            _start_mimetic(model, word_ids)
    return model


def grow(model: Qwen3ForCausalLM, draw: Draw, growth: Growth, progress: Progress) -> None:
    """Trains the whole model on the rows that `draw` gives, by the mean loss of their masked tokens.

    `progress(step, loss, seconds_left)` is called after each step.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=growth.learning_rate, betas=(0.9, 0.98), weight_decay=0.1)
    model.train()
    started = time.monotonic()
    for step in range(growth.steps):
        for group in optimizer.param_groups:
            group["lr"] = growth.learning_rate * min(1.0, (step + 1) / 20) * max(0.05, 1 - step / growth.steps)
        loss = mean_loss(model, draw())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM))
        if not math.isfinite(norm):
            raise TrainingError(
                f"the cold start met a gradient of {norm} at step {step}", "lower coldstart.learning_rate"
            )
        optimizer.step()
        seconds = time.monotonic() - started
        progress(step + 1, float(loss.detach()), seconds / (step + 1) * (growth.steps - step - 1))


def mean_loss(model: Qwen3ForCausalLM, rows: Iterable[Row]) -> Tensor:
    """() float32: mean −log p in nats over the masked tokens of `rows`, each predicted from what stands before it."""
    ids, mask = _padded(list(rows))  # (B, T)
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
    trained = mask[:, 1:]
    logits: Tensor = model.lm_head(hidden[trained])  # only where a token is trained
    return F.cross_entropy(logits, ids[:, 1:][trained])


def save_model(model: Qwen3ForCausalLM, end_id: int, folder: Path) -> None:
    """Writes the weights and configurations into `folder`; its tokenizer is there already."""
    model.config.eos_token_id = end_id
    model.generation_config.eos_token_id = end_id
    model.save_pretrained(folder)
    with new_file(folder / "README.md") as path:
        path.write_text("A pocket model, grown by `corral coldstart` from the lessons of its run.\n", encoding="utf-8")


def _padded(rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
    """Padding stands behind each row, where causal attention cannot see it."""
    length = max(len(ids) for ids, _ in rows)
    ids = torch.zeros(len(rows), length, dtype=torch.int64)
    mask = torch.zeros(len(rows), length, dtype=torch.bool)
    for i, (row, trained) in enumerate(rows):
        ids[i, : len(row)] = torch.from_numpy(row.astype(np.int64))
        mask[i, : len(row)] = torch.from_numpy(trained)
    return ids, mask


# ------------------------------------------------------------------ the mimetic start


def _start_mimetic(model: Qwen3ForCausalLM, word_ids: Sequence[int]) -> None:
    embeddings = model.model.embed_tokens.weight
    embeddings.normal_(0, WIDTH**-0.5)
    embeddings[:, CONSTANT] = MARK
    embeddings[:, WORD] = 0
    embeddings[list(word_ids), WORD] = MARK
    for i, layer in enumerate(model.model.layers):
        layer.mlp.down_proj.weight.mul_(0.02)  # a random MLP would drown what the heads pass on
        values = nn.init.orthogonal_(torch.empty(HEADS * HEAD_DIM, WIDTH))
        values[:, [CONSTANT, WORD]] = 0
        layer.self_attn.v_proj.weight.copy_(values)
        if i == 0:
            _look_back(layer.self_attn)
        else:
            _copy_words(layer.self_attn, values)


def _look_back(attention: nn.Module) -> None:
    """Head h attends to the token h + 1 places back, and writes it where no token's own embedding stands."""
    query, key = _by_head(attention)
    target = torch.zeros(HEAD_DIM)
    target[:OFFSET_PAIRS] = (HEAD_DIM / OFFSET_PAIRS) ** 0.5
    query.mul_(0.1)
    key.mul_(0.1)
    for h in range(HEADS):
        key[h, :, CONSTANT] += target
        query[h, :, CONSTANT] += _rotated(target, -(h + 1))
    attention.q_norm.weight.fill_(OFFSET_GAIN)  # type: ignore[operator,union-attr]
    attention.k_norm.weight.fill_(OFFSET_GAIN)  # type: ignore[operator,union-attr]
    output: Tensor = attention.o_proj.weight  # type: ignore[assignment,union-attr]
    output.copy_(nn.init.orthogonal_(torch.empty_like(output)) * WIDTH**-0.5)
    output[[CONSTANT, WORD]] = 0


def _copy_words(attention: nn.Module, values: Tensor) -> None:
    """Every head attends to pool words and adds their embedding to the residual stream."""
    query, key = _by_head(attention)
    slow = slice(HEAD_DIM // 4, HEAD_DIM // 2)  # rotary dimension j pairs with j + HEAD_DIM / 2
    for h in range(HEADS):
        target = torch.zeros(2, HEAD_DIM // 2)
        target[:, slow].normal_()
        target = target.flatten() * HEAD_DIM**0.5 / target.norm()
        key[h, :, WORD] += target
        query[h, :, CONSTANT] += target
    attention.o_proj.weight.copy_(values.T * WIDTH**-0.5)  # type: ignore[operator,union-attr]


def _by_head(attention: nn.Module) -> tuple[Tensor, Tensor]:
    """Views (H, HEAD_DIM, D) of the query and key weights."""
    query: Tensor = attention.q_proj.weight  # type: ignore[assignment,union-attr]
    key: Tensor = attention.k_proj.weight  # type: ignore[assignment,union-attr]
    return query.view(HEADS, HEAD_DIM, WIDTH), key.view(HEADS, HEAD_DIM, WIDTH)


def _rotated(vector: Tensor, places: int) -> Tensor:
    """`vector` (HEAD_DIM,) as rotary embedding turns it over `places` tokens."""
    half = HEAD_DIM // 2
    angle = places * ROPE_THETA ** (-torch.arange(half) / half)
    a, b = vector[:half], vector[half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()])
