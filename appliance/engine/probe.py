"""What the engine is asked at start and after a swap, and what must be true of the answers."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from appliance.errors import EngineError, ModelError

NUM_PROMPT_IDS = 24
TEMPERATURE = 0.5
TOLERANCE = 0.05
"""Nats. The processed ratio is off by factors when logprobs are raw, by 1e-2 at most in bf16."""


def model_config(model: Path) -> dict[str, Any]:
    """config.json of a model folder, `ModelError` when there is none or it lacks the sizes."""
    path = model / "config.json"
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as e:
        raise ModelError(f"{path} cannot be read: {e}", "name a Hugging Face model folder") from e
    if not isinstance(config, dict) or not isinstance(config.get("vocab_size"), int):
        raise ModelError(f"{path}: vocab_size is missing", "name a causal language model's folder")
    return config


def probe_prompt(vocab_size: int) -> list[int]:
    """Fixed ids spread over the vocabulary."""
    return [(7 + 613 * i) % vocab_size for i in range(NUM_PROMPT_IDS)]


def check_temperature(plain: dict[int, float], processed: dict[int, float]) -> None:
    """Differences between two ids' logprobs must grow by 1 / temperature."""
    common = sorted(plain.keys() & processed.keys(), key=lambda i: -plain[i])
    if len(common) < 2:
        raise EngineError("bad_probe", "the engine gave too few logprobs to check the temperature")
    first, last = common[0], common[-1]
    gap, processed_gap = plain[first] - plain[last], processed[first] - processed[last]
    if abs(processed_gap * TEMPERATURE - gap) > TOLERANCE * max(1.0, gap) or processed_gap <= gap:
        raise EngineError("bad_probe", f"logprobs are not at the temperature: {gap:.4f} against {processed_gap:.4f}")


def write_probe_adapter(model: Path, folder: Path) -> None:
    """A rank-one PEFT adapter on the first query projection that visibly changes the model."""
    from safetensors.numpy import save_file  # not needed before an engine runs

    config = model_config(model)
    hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    width = heads * int(config.get("head_dim") or hidden // heads)
    key = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
    random = np.random.default_rng(0)
    a = random.standard_normal((1, hidden), dtype=np.float32)
    b = random.standard_normal((width, 1), dtype=np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    save_file({key.format("A"): a, key.format("B"): b}, folder / "adapter_model.safetensors")
    peft = {"peft_type": "LORA", "r": 1, "lora_alpha": 8, "target_modules": ["q_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(peft))


def weights_sha256(folder: Path) -> str:
    """sha256 of an adapter's weights, `ModelError` when the folder has none."""
    path = folder / "adapter_model.safetensors"
    try:
        with path.open("rb") as weights:
            return hashlib.file_digest(weights, "sha256").hexdigest()
    except OSError as e:
        raise ModelError(f"{path} cannot be read: {e}", "name a PEFT adapter folder") from e
