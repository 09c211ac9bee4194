"""Further adapters beside the policy's on its one quantised base: the critic's, and the frozen reference's.

Only one adapter is active at a time. A gradient must be taken inside `using`: layers that are computed again for it
(gradient checkpointing) would otherwise be computed with another adapter.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn

from appliance.errors import ModelError
from appliance.train.policy import Policy

POLICY, CRITIC, REFERENCE = "default", "critic", "reference"


@contextlib.contextmanager
def using(policy: Policy, name: str) -> Iterator[None]:
    """Inside, the policy's forward pass goes through the adapter `name`, which alone takes gradients unless frozen."""
    _activate(policy, name)
    try:
        yield
    finally:
        _activate(policy, POLICY)


def _activate(policy: Policy, name: str) -> None:
    for module in policy.model.modules():
        if isinstance(module, BaseTunerLayer):
            module.set_adapter(name, inference_mode=name == REFERENCE)


def add_critic(policy: Policy, seed: int) -> None:
    """A new adapter of the policy's shape, drawn from `seed`; it starts as the identity."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        policy.model.add_adapter(CRITIC, policy.model.peft_config[POLICY])
    policy.model.train()
    _activate(policy, POLICY)


def add_reference(policy: Policy, folder: Path | None) -> None:
    """The adapter of a version of the run, held fixed: what the KL term keeps the policy near.

    Without a folder only its place is made, for a rank that is given the numbers.
    """
    try:
        if folder is None:
            policy.model.add_adapter(REFERENCE, policy.model.peft_config[POLICY])
        else:
            policy.model.load_adapter(str(folder), REFERENCE, is_trainable=False)
    except (OSError, ValueError, RuntimeError) as error:
        raise ModelError(f"{folder}: the reference cannot be loaded: {error}", "set train.kl_weight to 0") from error
    policy.model.train()
    _activate(policy, POLICY)


def parameters_of(policy: Policy, name: str) -> list[nn.Parameter]:
    """The parameters of one adapter, in a fixed order, whether or not it is active."""
    return [p for key, p in policy.model.named_parameters() if f".{name}." in key]
