"""Frozen bases: which model folders can be trained on trees, how they are loaded, and what tells one from another.

Double-quantised NF4 (QLoRA, arXiv 2305.14314) covers every linear layer and the stacked experts of a mixture; head and
embeddings stay as they are. Invariant: nothing here or above writes to a base (E13).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig
from transformers.utils.logging import disable_progress_bar

from appliance.errors import ModelError
from appliance.train import attention_cpu, attention_gpu

Quantization = Literal["nf4", "none"]
Dtype = Literal["auto", "float32", "bfloat16"]

PLAIN_ATTENTION = frozenset({"qwen2", "qwen3", "qwen3_moe", "llama", "smollm3", "gemma", "gemma2", "gemma3_text"})
"""Model types whose only mixing of tokens is softmax attention under the mask given to them."""
EXPERTS = ("gate_up_proj", "down_proj")
"""Stacked expert weights of a mixture: parameters, not linear layers."""
SAMPLE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class BaseSettings:
    """quantization: how the trainer holds the base · dtype: what it computes in (auto: fp32 on a CPU, else bf16) ·

    checkpointing: activations of a layer are computed again for its gradient instead of kept.
    """

    quantization: Quantization = "nf4"
    dtype: Dtype = "auto"
    checkpointing: bool = False


def load_base(base: Path, settings: BaseSettings, device: torch.device) -> Any:
    """The model itself, quantised as asked. ModelError says what is wrong with the folder."""
    check_base(base)
    dtype = compute_dtype(settings.dtype, device)
    attention_cpu.register()
    attention_gpu.register()
    disable_progress_bar()  # type: ignore[no-untyped-call]  # a log keeps lines, not bars
    nf4 = BitsAndBytesConfig(  # type: ignore[no-untyped-call]
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )
    try:
        model = AutoModelForCausalLM.from_pretrained(
            base,
            local_files_only=True,
            dtype=dtype,
            attn_implementation=attention_cpu.NAME if device.type == "cpu" else attention_gpu.NAME,
            device_map={"": device},
            quantization_config=nf4 if settings.quantization == "nf4" else None,
        )
    except torch.OutOfMemoryError as error:
        raise ModelError(
            f"{base}: the base does not fit on {device}: {str(error).splitlines()[0]}",
            'see `corral plan`: a smaller model, or model.quantization = "nf4"',
        ) from error
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ModelError(f"{base}: the model cannot be loaded: {error}", "check that the folder is complete") from error
    if settings.quantization == "nf4":
        _quantize_experts(model)
    if settings.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def _quantize_experts(model: nn.Module) -> None:
    """NF4 for stacked experts too, which replacing linear layers does not reach; they are most of a mixture."""
    from bitsandbytes.nn.parametrize import replace_parameter_4bit

    stacked = [m for m in model.modules() if all(isinstance(getattr(m, n, None), nn.Parameter) for n in EXPERTS)]
    for module in stacked:
        for name in EXPERTS:
            replace_parameter_4bit(module, name, compress_statistics=True, quant_type="nf4")


def compute_dtype(dtype: Dtype, device: torch.device) -> torch.dtype:
    """auto: fp32 on a CPU, where it is the fastest and agrees with the sampler; bf16 elsewhere."""
    if dtype == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return torch.float32 if dtype == "float32" else torch.bfloat16


def check_base(base: Path) -> None:
    """ModelError unless `base` is a folder with an unquantised model that mixes tokens by plain attention only."""
    if not (base / "config.json").is_file():
        raise ModelError(f"{base}: no model here (config.json is missing)", "name a local Hugging Face model folder")
    try:
        config: Any = AutoConfig.from_pretrained(base, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{base}/config.json: {error}", "name a model that transformers knows") from error
    kinds = set(getattr(config, "layer_types", None) or []) - {"full_attention", "sliding_attention"}
    if config.model_type not in PLAIN_ATTENTION or kinds:
        found = f"model type {config.model_type!r}" + (f" with {', '.join(sorted(kinds))} layers" if kinds else "")
        raise ModelError(
            f"{base}: {found} cannot be trained on trees: a tree mask is right for softmax attention only; "
            "recurrent and linear-attention layers carry one branch's state into the next",
            f"use one of {', '.join(sorted(PLAIN_ATTENTION))}",
        )
    stored = getattr(config, "quantization_config", None)
    if stored is not None:
        method = stored.get("quant_method") if isinstance(stored, dict) else getattr(stored, "quant_method", stored)
        raise ModelError(
            f"{base}: its weights are stored quantised ({method})",
            "name the folder of the original weights; model.quantization quantises them on loading",
        )


def check_tokenizer(base: Path, served: Path) -> None:
    """ModelError unless the folder the engine serves has the tokenizer that the base has, and ids fit the model."""
    mine, theirs = base / "tokenizer.json", served / "tokenizer.json"
    if mine.is_file() != theirs.is_file() or (mine.is_file() and _sha256(mine) != _sha256(theirs)):
        raise ModelError(
            f"{theirs}: not the tokenizer of {mine}: the engine's ids would mean other tokens to the trainer",
            f"delete {served} and resume; it is made again from the base",
        )
    if mine.is_file():
        vocabulary = json.loads(mine.read_text(encoding="utf-8"))
        ids = [*vocabulary["model"]["vocab"].values(), *(t["id"] for t in vocabulary.get("added_tokens", []))]
        size = int(AutoConfig.from_pretrained(base, local_files_only=True).vocab_size)
        if max(ids, default=0) >= size:
            raise ModelError(
                f"{mine}: it has id {max(ids)}, the model only {size} embeddings", "use the model's own tokenizer"
            )


def fingerprint(base: Path) -> str:
    """sha256 over what makes a base the one it is: its shape, and the header and both ends of each weights file."""
    digest = hashlib.sha256()
    config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    volatile = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache")
    digest.update(json.dumps({k: v for k, v in config.items() if k not in volatile}, sort_keys=True).encode())
    for path in sorted(base.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as weights:
            digest.update(weights.read(SAMPLE_BYTES))
            weights.seek(max(0, size - SAMPLE_BYTES))
            digest.update(weights.read(SAMPLE_BYTES))
    return digest.hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
