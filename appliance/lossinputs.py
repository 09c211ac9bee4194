"""From the recorded calls of a rollout to what a loss is computed on, and a digest by which that is compared. Pure.

The trainer and `corral replay` both come through here, so that what is replayed is what was trained on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from appliance.branches import Role, Said, roles
from appliance.config import BranchesSection
from appliance.prune import prune
from appliance.tree import Row, Tree, recover, rows
from appliance.types import Logprobs, TokenIds


@dataclass(frozen=True, slots=True, eq=False)
class Recovered:
    """A rollout as its record explains it. `numbers[i]` is the call of the tree's sample i.

    `Row.calls` and `left_out` (call → reason) count calls as they are given; `roles[n]` is call n's.
    """

    tree: Tree
    numbers: list[int]
    roles: list[Role]
    left_out: dict[int, str]
    rows: list[Row]


def recovered(calls: Sequence[Said], settings: BranchesSection) -> Recovered:
    """Tree, roles, what is left out and why, and the rows that are trained."""
    numbers = [i for i, c in enumerate(calls) if c.call.sample is not None]
    samples = [c.call.sample for c in calls if c.call.sample is not None]
    tree = recover(samples)
    found = roles(calls, tree, numbers)
    left_out = prune(calls, found, tree, numbers, settings)
    own = rows(samples, [n not in left_out for n in numbers], tree)
    to_call = np.array([*numbers, -1], np.int32)  # the last entry maps -1 to itself
    renumbered = [Row(r.ids, r.mask, r.behaviour_logprobs, to_call[r.calls]) for r in own]
    return Recovered(tree, numbers, found, left_out, renumbered)


class LossInput(Protocol):
    """One row as the loss reads it: `train.batch.Sequence`."""

    @property
    def ids(self) -> TokenIds:
        """(T,) int32."""
        ...

    @property
    def mask(self) -> NDArray[np.bool_]:
        """(T,) true where trained."""
        ...

    @property
    def behaviour_logprobs(self) -> Logprobs:
        """(T,) float32, read where mask is true."""
        ...

    @property
    def advantage(self) -> float:
        """The rollout's."""
        ...

    @property
    def rollout(self) -> int:
        """Its number."""
        ...


def digests(found: Iterable[LossInput]) -> dict[int, str]:
    """Rollout → SHA-256 over its rows' exact bits: ids, mask, logprobs where trained, advantage. Row order counts not.

    Whatever else a loss reads (values of a critic, logprobs of π_old) follows from these and the weights.
    """
    by_rollout: dict[int, list[bytes]] = {}
    for row in found:
        by_rollout.setdefault(row.rollout, []).append(bytes.fromhex(row_digest(row)))
    return {r: hashlib.sha256(b"".join(sorted(parts))).hexdigest() for r, parts in sorted(by_rollout.items())}


def row_digest(row: LossInput) -> str:
    """SHA-256 over one row's exact bits."""
    digest = hashlib.sha256(np.array([len(row.ids)], "<i8").tobytes())
    digest.update(row.ids.astype("<i4").tobytes())
    digest.update(row.mask.astype("u1").tobytes())
    digest.update(row.behaviour_logprobs[row.mask].astype("<f4").tobytes())
    digest.update(np.array([row.advantage], "<f8").tobytes())
    return digest.hexdigest()
