"""Data parallel over the processes that torchrun starts: each rank a whole copy of the policy, a share of the trees.

Rank 0 alone knows the record. It deals whole rollouts so that every rank computes about as many tokens; the ranks add
up their gradients and take the same step, so that they stay equal without ever being compared. Invariant (E9): the
gradient is that of one rank, up to the order of addition.
"""

from __future__ import annotations

import os
from collections.abc import Sequence as Many
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from appliance.system.guard import die_with_parent
from appliance.train.batch import Sequence, deal

LIFE = timedelta(minutes=30)
"""How long a rank waits for the others before it counts them as lost; rank 0 is heard from far more often."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process's number and how many there are. `Ranks()` is alone and talks to nobody."""

    rank: int = 0
    count: int = 1

    def dealt(self, parts: Many[Many[Sequence]]) -> list[list[Sequence]]:
        """This rank's rows of each minibatch; rank 0 gives all rows, the others give none."""
        if self.count == 1:
            return [list(part) for part in parts]
        shares: list[Any] = [None] * self.count
        if self.rank == 0:
            by_part = [deal(part, self.count) for part in parts]
            shares = [[part[rank] for part in by_part] for rank in range(self.count)]
        mine: list[Any] = [None]
        dist.scatter_object_list(mine, shares if self.rank == 0 else None, src=0)
        found: list[list[Sequence]] = mine[0]
        return found

    def gathered(self, value: Any) -> list[Any]:
        """What each rank says, in their order; the same list on every rank."""
        if self.count == 1:
            return [value]
        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, value)
        return found

    def told(self, value: Any = None) -> Any:
        """What rank 0 says, on every rank."""
        if self.count == 1:
            return value
        found = [value]
        dist.broadcast_object_list(found, src=0)
        return found[0]

    def add_up(self, parameters: Many[nn.Parameter]) -> None:
        """Every rank's gradient becomes the sum of all of them; a rank without trees brings zeros."""
        if self.count == 1:
            return
        whole = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters])
        dist.all_reduce(whole)
        for parameter, gradient in zip(parameters, _cut(whole, parameters), strict=True):
            parameter.grad = gradient

    def share(self, parameters: Many[nn.Parameter]) -> None:
        """Every rank gets the parameters of rank 0."""
        if self.count > 1:
            with torch.no_grad():
                for parameter in parameters:
                    dist.broadcast(parameter.data, src=0)

    def copy(self, parameters: Many[nn.Parameter], optimizer: Optimizer) -> None:
        """Every rank gets the parameters and the optimiser's state of rank 0."""
        if self.count == 1:
            return
        self.share(parameters)
        optimizer.load_state_dict(self.told(optimizer.state_dict()))


def join() -> Ranks:
    """The ranks that torchrun started this process among; alone when it did not."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        return Ranks()
    die_with_parent()  # a rank has a session of its own, which a kill of torchrun's group does not reach (I8)
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank())
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timeout=LIFE)
    return Ranks(dist.get_rank(), count)


def leave() -> None:
    """Ends what `join` began."""
    if dist.is_initialized():
        dist.destroy_process_group()


def local_rank() -> int:
    """This process's number on its machine: which of the GPUs is its own."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def _cut(whole: Tensor, parameters: Many[nn.Parameter]) -> list[Tensor]:
    sizes = [p.numel() for p in parameters]
    return [part.view_as(p) for part, p in zip(torch.split(whole, sizes), parameters, strict=True)]
