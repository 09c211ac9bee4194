"""The policy: a frozen base from a local folder, NF4-quantised, and the LoRA adapter that is trained on it.

The one owner of the trained model. Invariants: the base never changes (E13); a token's logprob depends on the tokens
above it in the trie and on nothing else (E10); adapters are written whole or not at all.

Shapes: N tokens of a trie · M loss terms · D hidden size · V vocabulary.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors.torch import save
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig
from transformers.utils.logging import disable_progress_bar

from appliance.errors import ModelError
from appliance.train import attention
from appliance.train.batch import Packed
from appliance.train.folders import new_folder

Quantization = Literal["nf4", "none"]

PLAIN_ATTENTION = frozenset({"qwen2", "qwen3", "qwen3_moe", "llama", "gemma3_text"})
"""Model types whose only mixing of tokens is softmax attention under the mask given to them."""

ADAPTED = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LOGIT_FLOATS = 2**24
"""Logits held at once while training (64 MiB in fp32); they are computed again for the gradient."""


class Policy:
    """Base and adapter. `logprobs` is differentiable in `parameters()`, which are the adapter's and nothing else."""

    def __init__(self, model: PeftModel, device: torch.device) -> None:
        self.model = model
        self.device = device
        self.logit_floats = LOGIT_FLOATS
        causal: Any = model.get_base_model()
        self._decoder: nn.Module = causal.model
        self._head: nn.Linear = causal.get_output_embeddings()
        self.attention: str = causal.config._attn_implementation
        self._window = _sliding_window(causal.config)

    def parameters(self) -> list[nn.Parameter]:
        """The trainable parameters, in a fixed order."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def logprobs(self, packed: Packed, temperature: float) -> Tensor:
        """(M,) float32: log softmax(logits / temperature) at each term's predecessor, read at its label.

        Terms with one target share one computed logprob. Logits exist only at predecessors, a chunk at a time.
        """
        hidden = self._hidden(packed)  # (N, D)
        targets, which = np.unique(packed.targets, return_inverse=True)
        rows = hidden[torch.from_numpy(packed.parents[targets]).to(self.device)]
        labels = torch.from_numpy(packed.ids[targets].astype(np.int64)).to(self.device)
        size = max(1, self.logit_floats // self._head.out_features)
        parts = [
            checkpoint(self._label_logprobs, r, i, temperature, use_reentrant=False)
            for r, i in zip(torch.split(rows, size), torch.split(labels, size), strict=True)
        ]
        return torch.cat(parts)[torch.from_numpy(which).to(self.device)]

    @contextlib.contextmanager
    def adapter_off(self) -> Iterator[None]:
        """Inside, `logprobs` are those of the base, the reference policy."""
        with self.model.disable_adapter():
            yield

    def _hidden(self, packed: Packed) -> Tensor:
        positions = torch.from_numpy(packed.positions).to(self.device)[None]
        ids = torch.from_numpy(packed.ids.astype(np.int64)).to(self.device)[None]
        output = self._decoder(
            input_ids=ids, position_ids=positions, use_cache=False, **self._visibility(packed, positions[0])
        )
        hidden: Tensor = output.last_hidden_state[0]
        return hidden

    def _visibility(self, packed: Packed, positions: Tensor) -> dict[str, Any]:
        """How the model is told what each token sees: runs of the trie on a CPU, a dense mask elsewhere."""
        if self.attention == attention.NAME:
            return {"tree_runs": attention.runs(packed)}
        visible = torch.from_numpy(packed.mask()).to(self.device)[None, None]  # (1, 1, N, N)
        if self._window is None:
            return {"attention_mask": visible}
        near = positions[:, None] - positions[None, :] < self._window
        return {"attention_mask": {"full_attention": visible, "sliding_attention": visible & near}}

    def _label_logprobs(self, hidden: Tensor, labels: Tensor, temperature: float) -> Tensor:
        logits = self._head(hidden).float() / temperature
        return -F.cross_entropy(logits, labels, reduction="none")


def set_threads(count: int) -> None:
    """CPU threads torch computes with; call it before the first tensor."""
    torch.set_num_threads(count)


def load_policy(
    base: Path, quantization: Quantization, lora_rank: int, adapter: Path | None, device: str, seed: int
) -> Policy:
    """Base from `base` with a new adapter drawn from `seed` (it starts as the identity), or with `adapter` resumed.

    LoRA (arXiv 2106.09685) of rank `lora_rank`, alpha = 2 · rank, no dropout, on every attention and MLP projection;
    head and embeddings stay as they are, since vLLM serves no adapter on them. fp32 on a CPU, bf16 elsewhere with
    fp32 adapters. ModelError names what is wrong with the folder or adapter.
    """
    where = torch.device(device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = load_base(base, quantization, where)
        config = LoraConfig(
            r=lora_rank, lora_alpha=2 * lora_rank, lora_dropout=0.0, target_modules=ADAPTED, task_type="CAUSAL_LM"
        )
        adapted: PeftModel
        if adapter is None:
            adapted = get_peft_model(model, config)
        else:
            _check_adapter(adapter, lora_rank)
            adapted = PeftModel.from_pretrained(model, str(adapter), is_trainable=True)
    # Never eval(): bitsandbytes repacks NF4 weights for inference on some CPUs, which has no backward. No dropout here.
    adapted.train()
    return Policy(adapted, where)


def save_adapter(policy: Policy, folder: Path) -> str:
    """Writes the adapter as peft and vLLM read it, whole or not at all; returns the sha256 of its weights file."""
    tensors = get_peft_model_state_dict(policy.model, save_embedding_layers=False)
    weights = save({name: t.detach().cpu().contiguous() for name, t in sorted(tensors.items())})
    config = policy.model.peft_config["default"].to_dict()
    config["target_modules"] = sorted(config["target_modules"])
    config["inference_mode"] = True
    with new_folder(folder) as temporary:
        (temporary / "adapter_model.safetensors").write_bytes(weights)
        (temporary / "adapter_config.json").write_text(json.dumps(config, indent=1, sort_keys=True, default=str))
    return hashlib.sha256(weights).hexdigest()


def base_fingerprint(policy: Policy) -> str:
    """sha256 over the names and bytes of every frozen tensor, quantisation constants included."""
    digest = hashlib.sha256()
    for name, parameter in sorted(policy.model.named_parameters()):
        if parameter.requires_grad:
            continue
        digest.update(name.encode())
        for tensor in (parameter.data, *_quantization_constants(parameter)):
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _quantization_constants(parameter: nn.Parameter) -> list[Tensor]:
    state = getattr(parameter, "quant_state", None)
    if state is None:
        return []
    values = state.as_dict(packed=True)
    return [values[name] for name in sorted(values)]


def load_base(base: Path, quantization: Quantization, device: torch.device) -> Any:
    """The model itself. Double-quantised NF4 (QLoRA, arXiv 2305.14314) leaves head and embeddings unquantised."""
    check_base(base)
    dtype = compute_dtype(device)
    attention.register()
    disable_progress_bar()  # type: ignore[no-untyped-call]  # a log keeps lines, not bars
    nf4 = BitsAndBytesConfig(  # type: ignore[no-untyped-call]
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )
    try:
        return AutoModelForCausalLM.from_pretrained(
            base,
            local_files_only=True,
            dtype=dtype,
            attn_implementation=attention.NAME if device.type == "cpu" else "sdpa",
            device_map={"": device},
            quantization_config=nf4 if quantization == "nf4" else None,
        )
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{base}: the model cannot be loaded: {error}", "check that the folder is complete") from error


def compute_dtype(device: torch.device) -> torch.dtype:
    """fp32 on a CPU, where it is the fastest and agrees with the sampler; bf16 elsewhere."""
    return torch.float32 if device.type == "cpu" else torch.bfloat16


def check_base(base: Path) -> None:
    """ModelError unless `base` is a folder whose model mixes tokens by plain attention only."""
    if not (base / "config.json").is_file():
        raise ModelError(f"{base}: no model here (config.json is missing)", "name a local Hugging Face model folder")
    try:
        model_type = str(AutoConfig.from_pretrained(base, local_files_only=True).model_type)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{base}/config.json: {error}", "name a model that transformers knows") from error
    if model_type not in PLAIN_ATTENTION:
        raise ModelError(
            f"{base}: model type {model_type!r} cannot be trained on trees: a tree mask is right for plain softmax "
            "attention only, not for recurrent, linear or soft-capped attention",
            f"use one of {', '.join(sorted(PLAIN_ATTENTION))}",
        )


def _check_adapter(adapter: Path, lora_rank: int) -> None:
    try:
        rank = json.loads((adapter / "adapter_config.json").read_text())["r"]
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{adapter}: not an adapter: {error}", "resume from an adapter this run has saved") from error
    if rank != lora_rank:
        raise ModelError(f"{adapter}: rank {rank}, the run has {lora_rank}", f"set model.lora_rank to {rank}")


def _sliding_window(config: Any) -> int | None:
    if "sliding_attention" in (getattr(config, "layer_types", None) or []):
        return int(config.sliding_window)
    return None
