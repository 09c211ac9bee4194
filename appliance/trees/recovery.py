"""From the recorded calls of a rollout to what a loss is computed on, and a digest by which that is compared. Pure.

The trainer and `corral replay` both come through here, so that what is replayed is what was trained on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from appliance.trees.branches import Role, roles
from appliance.trees.prune import prune
from appliance.trees.tree import Row, Tree, recover, rows
from appliance.types import Branch, Logprobs, Said, TokenIds

if TYPE_CHECKING:
    from appliance.config.sections import BranchesSection  # only a type here: trees load no pydantic


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


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found of one call, as the record keeps it: calls by their sequence numbers, `left_out` "" if trained."""

    branch: Branch
    parent: int | None
    reentered: int | None
    kept: int
    left_out: str


def recovered(
    calls: Sequence[Said], settings: BranchesSection, verdicts: Mapping[int, Verdict] | None = None
) -> Recovered:
    """Tree, roles, what is left out and why, and the rows that are trained; the same in whatever order calls come.

    Inside, calls are in the order of their times, so that every tie is broken alike. `verdicts` (sequence → verdict)
    of an earlier reading stand in for the words of calls whose bodies were pruned.
    """
    order = sorted(range(len(calls)), key=lambda i: (calls[i].call.started_at, calls[i].call.sequence))
    timed = [calls[i] for i in order]
    numbers = [n for n, c in enumerate(timed) if c.call.sample is not None]
    samples = [c.call.sample for c in timed if c.call.sample is not None]
    tree = recover(samples)
    if verdicts:
        found, left_out = _as_judged(timed, verdicts)
    else:
        found = roles(timed, tree, numbers)
        left_out = prune(timed, found, tree, numbers, settings)
    own = rows(samples, [n not in left_out for n in numbers], tree)
    return _as_given(Recovered(tree, numbers, found, left_out, own), order)


def _as_given(timed: Recovered, order: Sequence[int]) -> Recovered:
    """What was found of calls in the order of their times, told of the calls as they were given."""
    own: list[Role] = [Role(Branch.CONTINUATION)] * len(order)
    for n, role in enumerate(timed.roles):
        parent, reentered = (None if x is None else order[x] for x in (role.parent, role.reentered))
        own[order[n]] = replace(role, parent=parent, reentered=reentered)
    given = np.array([*(order[n] for n in timed.numbers), -1], np.int32)  # the last entry keeps -1
    return Recovered(
        tree=timed.tree,
        numbers=[order[n] for n in timed.numbers],
        roles=own,
        left_out={order[n]: reason for n, reason in sorted(timed.left_out.items())},
        rows=[replace(row, calls=given[row.calls]) for row in timed.rows],
    )


def verdicts_of(calls: Sequence[Said], found: Recovered) -> dict[int, Verdict]:
    """Sequence → verdict, for the record."""

    def sequence(n: int | None) -> int | None:
        return None if n is None else calls[n].call.sequence

    return {
        c.call.sequence: Verdict(
            role.branch, sequence(role.parent), sequence(role.reentered), role.kept, found.left_out.get(n, "")
        )
        for n, (c, role) in enumerate(zip(calls, found.roles, strict=True))
    }


def _as_judged(calls: Sequence[Said], verdicts: Mapping[int, Verdict]) -> tuple[list[Role], dict[int, str]]:
    number = {c.call.sequence: n for n, c in enumerate(calls)}
    own = [verdicts.get(c.call.sequence, Verdict(Branch.CONTINUATION, None, None, 0, "")) for c in calls]
    found = [
        Role(v.branch, None if v.parent is None else number[v.parent],
             None if v.reentered is None else number[v.reentered], v.kept)
        for v in own
    ]  # fmt: skip
    return found, {n: v.left_out for n, v in enumerate(own) if v.left_out}


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

    @property
    def times(self) -> NDArray[np.int64]:
        """(T,) place among the rollout's sampled tokens, read where mask is true; empty where nobody asks."""
        ...


def digests(found: Iterable[LossInput]) -> dict[int, str]:
    """Rollout → SHA-256 over its rows' exact bits: ids, mask, logprobs, advantage, places. Row order counts not.

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
    if len(row.times):
        digest.update(row.times[row.mask].astype("<i8").tobytes())
    return digest.hexdigest()
