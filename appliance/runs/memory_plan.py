"""The memory plan of a run: what each part will hold, worked out from the model's shape before anything is loaded.

Counted, not guessed: the tensors that training keeps are listed one by one below, and the tests hold the lists against
what autograd saved and against measured peaks. Pure: it knows a model's config.json and a run's configuration.

Words: D width · A query heads · H key/value heads · E head size · I inner width · L layers · V vocabulary · r rank.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from appliance.config.runconfig import RunConfig
from appliance.errors import ConfigError, ModelError

NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""A quantised weight: four bits, an 8-bit scale for 64 of them, an fp32 scale for 256 of those."""
LOGIT_FLOATS = 2**24
"""Logits the trainer holds at once."""
PROCESS_BYTES = {"cpu": 300 << 20, "cuda": 900 << 20}
"""torch, transformers and peft in a process, without the pages of their files, which the kernel takes back at need;
on a GPU the CUDA context and its libraries."""
ENGINE_BYTES = {"cpu": 2200 << 20, "cuda": 1500 << 20}
"""vLLM's processes, or on a GPU its context and work space, without weights and cache."""
SLACK = {"cpu": 1.0, "cuda": 1.05}
"""What an allocator holds beyond the tensors in it."""
PASSING = ("activations", "logits or one layer", "heap")
"""Parts of the trainer that are there only while a step is trained."""
HEAP = {"cpu": 1.2, "cuda": 0.0}
"""Of the activations of all layers, what the C library's heap may hold beside what lives, measured: up to glibc 2.37
an aligned block that was freed does not serve the next one of its size. It varies from one update to the next."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a model's config.json says, as far as memory goes. experts: 0 in a dense model, else its stacked MLPs."""

    width: int
    heads: int
    kv_heads: int
    head_size: int
    inner: int
    layers: int
    vocabulary: int
    is_tied: bool
    experts: int = 0
    experts_a_token: int = 0
    has_head_norms: bool = False

    @classmethod
    def of(cls, folder: Path) -> Shape:
        """The shape in `folder`/config.json; ModelError when it is not there or lacks a number."""
        path = folder / "config.json"
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            return cls.read(found)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ModelError(f"{path}: no shape to plan with: {error!r}", "name a local model folder") from error

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> Shape:
        """The shape in a config.json as a mapping."""
        heads = int(found["num_attention_heads"])
        experts = int(found.get("num_experts") or 0)
        return cls(
            width=int(found["hidden_size"]),
            heads=heads,
            kv_heads=int(found.get("num_key_value_heads") or heads),
            head_size=int(found.get("head_dim") or found["hidden_size"] // heads),
            inner=int(found["moe_intermediate_size"] if experts else found["intermediate_size"]),
            layers=int(found["num_hidden_layers"]),
            vocabulary=int(found["vocab_size"]),
            is_tied=bool(found.get("tie_word_embeddings", found.get("model_type", "").startswith("gemma"))),
            experts=experts,
            experts_a_token=int(found.get("num_experts_per_tok") or 0),
            has_head_norms=str(found.get("model_type")) in ("qwen3", "qwen3_moe", "gemma3_text"),
        )

    @property
    def projections(self) -> list[tuple[int, int]]:
        """(in, out) of the linear layers of one layer that get an adapter."""
        d, q, kv = self.width, self.heads * self.head_size, self.kv_heads * self.head_size
        attention = [(d, q), (d, kv), (d, kv), (q, d)]
        return attention if self.experts else [*attention, (d, self.inner), (d, self.inner), (self.inner, d)]

    @property
    def linear_weights(self) -> int:
        """Weights that quantisation reaches."""
        own = sum(i * o for i, o in self.projections)
        return self.layers * (own + self.experts * 3 * self.width * self.inner)

    @property
    def embedding_weights(self) -> int:
        """Weights that stay as they are: embeddings, and the head where it is one of its own."""
        return self.vocabulary * self.width * (1 if self.is_tied else 2)

    def adapter_weights(self, rank: int) -> int:
        """Numbers of one adapter."""
        return self.layers * rank * sum(i + o for i, o in self.projections)


@dataclass(frozen=True, slots=True)
class Part:
    """One line of the plan."""

    name: str
    bytes: int
    setting: str
    """The key of the run that changes it most."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What one device is to hold: `where` (for example `each GPU`), its parts, and what it has (None: not known)."""

    where: str
    parts: tuple[Part, ...]
    available: int | None

    @property
    def total(self) -> int:
        """All parts together."""
        return sum(p.bytes for p in self.parts)

    @property
    def fits(self) -> bool:
        """Whether it does, as far as is known."""
        return self.available is None or self.total <= self.available


def plans(config: RunConfig, shape: Shape, available: int | None) -> list[Plan]:
    """One plan a kind of device: on a CPU everything shares its memory, as on GPUs that are too few for both sides."""
    device = config.engine.resolved_device
    trainer, engine = trainer_parts(config, shape), engine_parts(config, shape)
    if device == "cpu":
        ranks = [replace(p, bytes=p.bytes * config.train_ranks) for p in trainer]
        engines = [replace(p, bytes=p.bytes * config.engine.replicas) for p in engine]
        return [Plan("this machine", (*ranks, *engines), available)]
    if config.shares_gpus:
        return [Plan("each shared GPU", tuple(shared_parts(trainer, engine, config.engine.sleep)), available)]
    return [Plan("each trainer's GPU", tuple(trainer), available), Plan("each engine's GPU", tuple(engine), available)]


def shared_parts(trainer: list[Part], engine: list[Part], sleeps: bool) -> list[Part]:
    """What one GPU holds of both: everything, or, where the engine sleeps, what passes of the larger side alone.

    While the engine samples the trainer keeps its weights; while the trainer works the engine keeps its process.
    """
    if not sleeps:
        return [*trainer, *engine]
    passing = [p for p in trainer if p.name in PASSING]
    kept = [p for p in trainer if p not in passing]
    awake = engine[1:]
    return [*kept, engine[0], *max(passing, awake, key=lambda side: sum(p.bytes for p in side))]


def trainer_parts(config: RunConfig, shape: Shape) -> list[Part]:
    """What one rank of the trainer holds at its peak."""
    device, t = config.engine.resolved_device, config.train
    number = number_bytes(config)
    quantized = config.model.quantization == "nf4"
    base = shape.linear_weights * (NF4_BYTES if quantized else number) + shape.embedding_weights * number
    trained = shape.adapter_weights(config.model.lora_rank) * (2 if t.algorithm == "ppo" else 1)
    state = 8 if t.optimizer == "adamw" or (t.optimizer == "auto" and device == "cpu") else 2
    logits = min(LOGIT_FLOATS, t.row_tokens * shape.vocabulary) * (8 if number == 4 else 10)
    a_layer = layer_token_bytes(shape, config.model.lora_rank, number)
    heap = 0.0 if t.lean_heap else HEAP[device]
    kept, passing = kept_bytes(config, shape), passing_bytes(config, shape)
    found = [
        Part("process", PROCESS_BYTES[device], "engine.device"),
        Part("base", int(base), "model.quantization" if not quantized else "model.path"),
        Part("adapters and gradients", trained * 8, "model.lora_rank"),
        Part("optimiser", trained * state, "train.optimizer"),
        Part("activations", kept * t.row_tokens, _activation_setting(config)),
        Part("logits or one layer", max(logits, passing * t.row_tokens), "train.row_tokens"),
        Part("heap", int(heap * shape.layers * a_layer * t.row_tokens), "train.lean_heap"),
    ]
    return [replace(p, bytes=int(p.bytes * SLACK[device])) for p in found]


def _activation_setting(config: RunConfig) -> str:
    return "train.row_tokens" if config.train.checkpointing else "train.checkpointing"


def number_bytes(config: RunConfig) -> int:
    """Bytes of a number the trainer computes with."""
    is_float32 = config.model.dtype == "float32" or (
        config.model.dtype == "auto" and config.engine.resolved_device == "cpu"
    )
    return 4 if is_float32 else 2


def kept_bytes(config: RunConfig, shape: Shape) -> int:
    """What forward keeps of one token for backward."""
    number = number_bytes(config)
    if config.train.checkpointing:
        return (shape.layers + 1) * shape.width * number
    return shape.layers * layer_token_bytes(shape, config.model.lora_rank, number) + shape.width * number


def passing_bytes(config: RunConfig, shape: Shape) -> int:
    """What one layer needs of one token while its gradient is made; with checkpointing it is computed once more."""
    number = number_bytes(config)
    own = number * (4 * shape.inner * max(1, shape.experts_a_token) + 4 * shape.width)
    return own + (layer_token_bytes(shape, config.model.lora_rank, number) if config.train.checkpointing else 0)


def layer_token_bytes(shape: Shape, rank: int, number: int) -> int:
    """Bytes that one layer keeps of one token for its gradient.

    In fp32 a tensor is kept once however many operations read it. In bf16 each adapter keeps its input as an fp32
    copy of its own, and so does each norm.
    """
    d, q, kv = shape.width, shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    inputs = sum(i for i, _ in shape.projections)
    ranks = 4 * rank * len(shape.projections)
    attention = number * (2 * q + 2 * kv) + 4 * shape.heads
    head_norms = (4 * (q + kv) + 4 * (shape.heads + shape.kv_heads)) if shape.has_head_norms else 0
    inner = number * 3 * shape.inner * max(1, shape.experts_a_token)
    if number == 4:
        own = 4 * (2 * d + 2) + 4 * (2 * d + (0 if shape.experts else shape.inner))
    else:
        own = 4 * (2 * d + 2) + 4 * inputs
    return own + attention + head_norms + inner + ranks


def engine_parts(config: RunConfig, shape: Shape) -> list[Part]:
    """What one engine holds: the dequantised base, its adapters and its cache."""
    device = config.engine.resolved_device
    is_nf4 = config.engine.weights == "nf4"
    number = 4 if device == "cpu" and not is_nf4 else 2
    base = shape.linear_weights * (NF4_BYTES if is_nf4 else number) + shape.embedding_weights * number
    adapters = 3 * shape.adapter_weights(config.model.lora_rank) * number
    cache = int(config.engine.kv_cache_gib * 2**30)
    return [
        Part("engine", ENGINE_BYTES[device], "engine.replicas"),
        Part("engine's base", int(base), "engine.weights"),
        Part("engine's adapters", adapters, "model.lora_rank"),
        Part("engine's cache", cache, "engine.kv_cache_gib"),
    ]


def cache_bytes(shape: Shape, number: int) -> int:
    """Keys and values of one token."""
    return 2 * shape.layers * shape.kv_heads * shape.head_size * number


def advice(plan: Plan, config: RunConfig, shape: Shape, available: int) -> str:
    """The change of one setting that makes a plan fit, or the largest part to shrink when none alone does."""
    for change in _changes(config):
        other = config.model_copy(update=change)
        found = next((p for p in plans(other, shape, available) if p.where == plan.where), None)
        if found is not None and found.fits:
            return "set " + " and ".join(_told(config, other))
    largest = max((p for p in plan.parts if p.setting != "engine.device"), key=lambda p: p.bytes)
    return f"no single setting is enough; the largest part is {largest.name}: lower {largest.setting}"


def _changes(config: RunConfig) -> list[dict[str, Any]]:
    """What may be changed, the least painful first."""
    train, least = config.train, config.engine.max_model_len
    smaller = [n for n in (train.row_tokens // 2, train.row_tokens // 4, least) if least <= n < train.row_tokens]
    changes: list[dict[str, Any]] = [{"train": train.model_copy(update={"row_tokens": n})} for n in smaller]
    if config.engine.resolved_device == "cpu":
        changes.append({"train": train.model_copy(update={"lean_heap": True})})
    changes.append({"train": train.model_copy(update={"checkpointing": True})})
    if config.model.quantization == "none":
        changes.append({"model": config.model.model_copy(update={"quantization": "nf4"})})
    last = {"checkpointing": True, "lean_heap": config.engine.resolved_device == "cpu", "row_tokens": least}
    changes.append({"train": train.model_copy(update=last)})
    for gib in (config.engine.kv_cache_gib / 2, config.engine.kv_cache_gib / 4):
        changes.append({"engine": config.engine.model_copy(update={"kv_cache_gib": gib})})
    return changes


def _told(before: RunConfig, after: RunConfig) -> list[str]:
    found = []
    for section in ("model", "engine", "train"):
        old, new = getattr(before, section), getattr(after, section)
        for key in type(new).model_fields:
            value = getattr(new, key)
            if value != getattr(old, key):
                found.append(f"{section}.{key} = {json.dumps(value)}")
    return found


def enforce(config: RunConfig, shape: Shape, available: int | None) -> list[Plan]:
    """The plans, if all fit; else ConfigError naming the device, what it lacks and which setting to change."""
    found = plans(config, shape, available)
    for plan in found:
        if available is not None and not plan.fits:
            need, have = plan.total / 2**30, available / 2**30
            largest = max(plan.parts, key=lambda p: p.bytes)
            raise ConfigError(
                f"the run needs {need:.1f} GiB on {plan.where}, which has {have:.1f} GiB free; most of it is "
                f"{largest.name} ({largest.bytes / 2**30:.1f} GiB)",
                advice(plan, config, shape, available) + "; `corral plan` shows every part",
            )
    return found
