"""Run with IN OUT: the losses and gradients that TRL's GRPO trainer gives for the cases in IN, and its advantages.

A process of its own: TRL imports vLLM where it finds it, which takes long and warns, so here it finds none.
"""

from __future__ import annotations

import importlib.util
import sys
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import torch

find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name.split(".")[0] == "vllm" else find(name, package)

from trl import GRPOConfig, GRPOTrainer  # noqa: E402


def trainer(case: dict[str, Any], logprobs: torch.Tensor) -> Any:
    """What `_compute_loss` asks of its trainer, with the logprobs given instead of computed."""
    config = GRPOConfig(output_dir="unused", report_to=[], use_cpu=True, bf16=False, beta=0.0, **case["config"])
    accelerator = SimpleNamespace(
        num_processes=1, device=torch.device("cpu"), sync_gradients=True, gather=lambda x: x,
        gather_for_metrics=lambda x: x, reduce=lambda x, reduction: x,
    )  # fmt: skip
    return SimpleNamespace(
        args=config, accelerator=accelerator, model=SimpleNamespace(training=True), beta=0.0, tools=None,
        _get_per_token_logps_and_entropies=lambda *a, **k: (logprobs, torch.zeros_like(logprobs), None),
        loss_type=config.loss_type, importance_sampling_level=config.importance_sampling_level,
        epsilon_low=config.epsilon, epsilon_high=config.epsilon_high, top_entropy_quantile=1.0,
        off_policy_mask_threshold=None, use_vllm="importance_sampling_ratio" in case,
        vllm_importance_sampling_correction=True, aux_loss_enabled=False, _entropy_bonus_enabled=False,
        current_gradient_accumulation_steps=1, max_completion_length=logprobs.shape[1],
        _metrics={"train": defaultdict(list)},
    )  # fmt: skip


def solved(case: dict[str, Any]) -> dict[str, Any]:
    """The loss of a padded batch (rollouts × tokens), its gradient in the logprobs, and the clip metrics."""
    logprobs = case["logprobs"].clone().requires_grad_()
    mask = case["mask"]
    inputs = {
        "prompt_ids": torch.zeros(len(mask), 1, dtype=torch.long), "prompt_mask": torch.ones(len(mask), 1),
        "completion_ids": torch.zeros(mask.shape, dtype=torch.long), "completion_mask": mask,
        "advantages": case["advantages"], "old_per_token_logps": case["old_logprobs"],
        "num_items_in_batch": mask.sum(),
    }  # fmt: skip
    if "importance_sampling_ratio" in case:
        inputs["importance_sampling_ratio"] = case["importance_sampling_ratio"]
    self = trainer(case, logprobs)
    loss = GRPOTrainer._compute_loss(self, self.model, inputs)
    loss.backward()
    metrics = {name: values[-1] for name, values in self._metrics["train"].items()}
    return {"loss": float(loss.detach()), "gradient": logprobs.grad, "metrics": metrics}


if __name__ == "__main__":
    cases = torch.load(sys.argv[1], weights_only=False)
    torch.save([solved(case) for case in cases], sys.argv[2])
