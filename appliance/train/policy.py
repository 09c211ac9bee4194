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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import save
from torch import Tensor, nn

from appliance.config.runconfig import RunConfig
from appliance.errors import ModelError
from appliance.system.files import new_folder
from appliance.train import attention_cpu, attention_gpu
from appliance.train.bases import BaseSettings, fingerprint, load_base
from appliance.train.batch import Packed
from appliance.train.logits import Head, label_logprobs
from appliance.train.ranks import local_rank

ADAPTED = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ADAPTER_WEIGHTS, ADAPTER_CONFIG, ORIGIN = "adapter_model.safetensors", "adapter_config.json", "origin.json"
LOGIT_FLOATS = 2**24
"""Logits held at once (64 MiB in fp32)."""


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """base: how it is held · lora_rank: the adapter's, one that vLLM serves · device · seed: of a new adapter."""

    base: BaseSettings = field(default_factory=BaseSettings)
    lora_rank: int = 32
    device: str = "cpu"
    seed: int = 0


def settings_of(config: RunConfig) -> PolicySettings:
    """The run's policy."""
    base = BaseSettings(config.model.quantization, config.model.dtype, config.train.checkpointing)
    device = "cpu" if config.engine.resolved_device == "cpu" else f"cuda:{local_rank()}"
    return PolicySettings(base, config.model.lora_rank, device, config.seed)


class Policy:
    """Base and adapter. `logprobs` is differentiable in `parameters()`, which are the adapter's and nothing else."""

    def __init__(self, model: PeftModel, device: torch.device, origin: str) -> None:
        self.model = model
        self.device = device
        self.origin = origin
        self.logit_floats = LOGIT_FLOATS
        causal: Any = model.get_base_model()
        self._decoder: nn.Module = causal.model
        self._head: nn.Linear = causal.get_output_embeddings()
        self._softcap: float | None = getattr(causal.config, "final_logit_softcapping", None)
        self.attention: str = causal.config._attn_implementation
        self._window = _sliding_window(causal.config)

    def parameters(self) -> list[nn.Parameter]:
        """The trainable parameters, in a fixed order."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def logprobs(self, packed: Packed, temperature: float) -> Tensor:
        """(M,) float32: log softmax(logits / temperature) at each term's predecessor, read at its label."""
        return self.logprobs_of(self.hidden(packed), packed, temperature)

    def logprobs_of(self, hidden: Tensor, packed: Packed, temperature: float) -> Tensor:
        """As `logprobs`, from the trie's hidden states (N, D).

        Terms with one target share one computed logprob. Logits exist only at predecessors, a chunk at a time.
        """
        targets, which = np.unique(packed.targets, return_inverse=True)
        rows = hidden[torch.from_numpy(packed.parents[targets]).to(self.device)]
        labels = torch.from_numpy(packed.ids[targets].astype(np.int64)).to(self.device)
        chunk = max(1, self.logit_floats // self._head.out_features)
        found = label_logprobs(rows, self._head.weight, labels, Head(temperature, self._softcap, chunk))
        return found[torch.from_numpy(which).to(self.device)]

    @contextlib.contextmanager
    def adapter_off(self) -> Iterator[None]:
        """Inside, `logprobs` are those of the base, the reference policy."""
        with self.model.disable_adapter():
            yield

    def hidden(self, packed: Packed) -> Tensor:
        """(N, D) what the last layer says of each token of the trie, given its path."""
        if self.attention == attention_gpu.NAME:
            blocks = attention_gpu.TreeBlocks(packed, self.device)
            inputs = (blocks.padded(packed.ids, self.device), blocks.padded(packed.positions, self.device))
            return self._decoded(*inputs, {"tree_blocks": blocks})[: packed.num_tokens]
        positions = torch.from_numpy(packed.positions).to(self.device)
        ids = torch.from_numpy(packed.ids.astype(np.int64)).to(self.device)
        if self.attention == attention_cpu.NAME:
            return self._decoded(ids, positions, {"tree_plan": attention_cpu.TreePlan(packed)})
        return self._decoded(ids, positions, {"attention_mask": self._dense_mask(packed, positions)})

    def _decoded(self, ids: Tensor, positions: Tensor, visibility: dict[str, Any]) -> Tensor:
        if "attention_mask" not in visibility:  # a mask that is there keeps the model from making one of its own
            visibility = visibility | {"attention_mask": self._no_mask()}
        output = self._decoder(input_ids=ids[None], position_ids=positions[None], use_cache=False, **visibility)
        hidden: Tensor = output.last_hidden_state[0]
        return hidden

    def _no_mask(self) -> Any:
        if self._window is None:
            return None
        return {"full_attention": None, "sliding_attention": None}

    def _dense_mask(self, packed: Packed, positions: Tensor) -> Any:
        """What each token sees as a plain matrix: for comparison, since it computes what it then hides."""
        visible = torch.from_numpy(packed.mask()).to(self.device)[None, None]  # (1, 1, N, N)
        if self._window is None:
            return visible
        near = positions[:, None] - positions[None, :] < self._window
        return {"full_attention": visible, "sliding_attention": visible & near}


def set_threads(count: int) -> None:
    """CPU threads torch computes with; call it before the first tensor."""
    torch.set_num_threads(count)


def load_policy(base: Path, settings: PolicySettings, adapter: Path | None = None) -> Policy:
    """Base from `base` with a new adapter drawn from the seed (it starts as the identity), or with `adapter` resumed.

    LoRA (arXiv 2106.09685), alpha = 2 · rank, no dropout, on every attention and MLP projection that is a linear
    layer; experts, head and embeddings stay as they are, since vLLM serves no adapter on them. fp32 adapters on any
    base. ModelError names what is wrong with the folder or adapter.
    """
    where = torch.device(settings.device)
    if adapter is not None:
        check_adapter(adapter, base, settings.lora_rank)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        model = load_base(base, settings.base, where)
        rank = settings.lora_rank
        config = LoraConfig(
            r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=_adapted(model), task_type="CAUSAL_LM"
        )
        adapted: Any = get_peft_model(model, config) if adapter is None else _resumed(model, adapter)
    # Never eval(): bitsandbytes repacks NF4 weights for inference on some CPUs, which has no backward. No dropout here.
    adapted.train()
    return Policy(adapted, where, fingerprint(base))


def _adapted(model: nn.Module) -> list[str]:
    """The projections that this model has as linear layers: a mixture's experts are stacked parameters."""
    present = {name.rpartition(".")[2] for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    return [name for name in ADAPTED if name in present]


def _resumed(model: Any, adapter: Path) -> PeftModel:
    try:
        return PeftModel.from_pretrained(model, str(adapter), is_trainable=True)
    except (OSError, RuntimeError, ValueError, KeyError, SafetensorError) as error:
        raise ModelError(
            f"{adapter}: the adapter does not fit the base or is cut short: {str(error).splitlines()[0]}",
            "resume from an adapter this run has saved",
        ) from error


def save_adapter(policy: Policy, folder: Path) -> str:
    """Writes the adapter as peft and vLLM read it, whole or not at all; returns the sha256 of its weights file."""
    tensors = get_peft_model_state_dict(policy.model, save_embedding_layers=False)
    weights = save({name: t.detach().cpu().contiguous() for name, t in sorted(tensors.items())})
    config = policy.model.peft_config["default"].to_dict()
    config["target_modules"] = sorted(config["target_modules"])
    config["inference_mode"] = True
    with new_folder(folder) as temporary:
        (temporary / ADAPTER_WEIGHTS).write_bytes(weights)
        (temporary / ADAPTER_CONFIG).write_text(json.dumps(config, indent=1, sort_keys=True, default=str))
        (temporary / ORIGIN).write_text(json.dumps({"base": policy.origin}))
    return hashlib.sha256(weights).hexdigest()


def base_fingerprint(policy: Policy) -> str:
    """sha256 over the names and bytes of every frozen tensor, quantisation constants included."""
    digest = hashlib.sha256()
    for name, parameter in sorted(policy.model.named_parameters()):
        if parameter.requires_grad or ".lora_" in name:  # a critic's adapter is at rest outside its own pass
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


def check_adapter(adapter: Path, base: Path, lora_rank: int) -> None:
    """ModelError unless `adapter` is a whole adapter of this rank, made on this base."""
    rank = rank_of(adapter)
    if rank != lora_rank:
        raise ModelError(f"{adapter}: rank {rank}, the run has {lora_rank}", f"set model.lora_rank to {rank}")
    origin = adapter / ORIGIN  # an adapter from elsewhere has none; its shapes are then all that can be checked
    if origin.is_file() and json.loads(origin.read_text())["base"] != fingerprint(base):
        raise ModelError(
            f"{adapter}: made on another base than {base}", "name the base it was trained on in model.path"
        )


def rank_of(adapter: Path) -> int:
    """The rank of an adapter; ModelError when the folder holds none."""
    try:
        return int(json.loads((adapter / ADAPTER_CONFIG).read_text())["r"])
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{adapter}: not an adapter: {error}", "resume from an adapter this run has saved") from error


def _sliding_window(config: Any) -> int | None:
    if "sliding_attention" in (getattr(config, "layer_types", None) or []):
        return int(config.sliding_window)
    return None
