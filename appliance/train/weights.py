"""The base as the sampler serves it: the trainer's NF4 values, dequantised into an ordinary model folder.

Trainer and sampler then compute with the same weights, and only rounding separates their logprobs (E16).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import bitsandbytes as bnb
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from appliance.system.files import new_folder
from appliance.train.bases import EXPERTS, BaseSettings, load_base

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".index.json")


def export_served(base: Path, settings: BaseSettings, folder: Path, device: str = "cpu") -> None:
    """Writes `base`, as `settings` make it, to `folder`, in the dtype it is trained in; whole or not at all.

    Tokenizer, chat template and generation configuration are copied as they are.
    """
    where = torch.device(device)
    plain = load_base(base, replace(settings, quantization="none"), where)
    if settings.quantization == "nf4":
        quantized = load_base(base, settings, where)
        with torch.no_grad():
            for name, values in quantized_values(quantized):
                plain.get_parameter(name).copy_(values)
    with new_folder(folder) as temporary:
        plain.save_pretrained(temporary)
        copy_beside(base, temporary)


def copy_beside(base: Path, folder: Path) -> None:
    """Copies what lies beside a model's weights and shape: tokenizer, chat template, generation configuration."""
    for path in sorted(base.iterdir()):
        if path.is_file() and path.name != "config.json" and not path.name.endswith(WEIGHTS):
            shutil.copyfile(path, folder / path.name)


def quantized_values(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Each quantised parameter's name in the unquantised model, with the values that it stands for."""
    for name, module in model.named_modules():
        if isinstance(module, bnb.nn.Linear4bit):  # type: ignore[attr-defined]
            weight: Any = module.weight
            yield f"{name}.weight", bnb.functional.dequantize_4bit(weight.data, weight.quant_state)
        for expert in EXPERTS:
            if parametrize.is_parametrized(module, expert):
                yield f"{name}.{expert}", getattr(module, expert)
