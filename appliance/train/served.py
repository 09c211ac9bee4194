"""The base as the sampler serves it: the trainer's NF4 values, dequantised into an ordinary model folder.

Trainer and sampler then compute with the same weights, and only rounding separates their logprobs (E16).
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import bitsandbytes as bnb
import torch

from appliance.train.folders import new_folder
from appliance.train.policy import Quantization, load_base

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".index.json")


def export_served(base: Path, quantization: Quantization, folder: Path, device: str = "cpu") -> None:
    """Writes `base`, as `quantization` makes it, to `folder`: fp32 for a CPU, bf16 otherwise; whole or not at all.

    Tokenizer, chat template and generation configuration are copied as they are.
    """
    where = torch.device(device)
    plain = load_base(base, "none", where)
    if quantization == "nf4":
        quantized = load_base(base, "nf4", where)
        with torch.no_grad():
            for name, module in quantized.named_modules():
                if isinstance(module, bnb.nn.Linear4bit):  # type: ignore[attr-defined]
                    weight: Any = module.weight
                    values = bnb.functional.dequantize_4bit(weight.data, weight.quant_state)
                    plain.get_submodule(name).weight.copy_(values)
    with new_folder(folder) as temporary:
        plain.save_pretrained(temporary)
        for path in sorted(base.iterdir()):
            if path.is_file() and path.name != "config.json" and not path.name.endswith(WEIGHTS):
                shutil.copyfile(path, temporary / path.name)
