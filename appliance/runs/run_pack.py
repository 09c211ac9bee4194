"""The pack of a run: the one whose digest the record holds, or none.

A run that began on some tasks never goes on with others: what it practised, its evaluations and its groups would no
longer belong together. A run made before packs had digests is compared by what its record holds of its tasks.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum

from appliance.config.runconfig import RunConfig
from appliance.errors import PackError
from appliance.record.schema import wording_digest
from appliance.record.store import Store
from appliance.tasks.digest import differences, pack_digest
from appliance.tasks.pack import Pack, load_pack
from appliance.types import Run


class PackState(StrEnum):
    """How the pack at a run's path compares with the one that the run was made with."""

    SAME = "same"
    DIFFERS = "differs"
    GONE = "gone"
    UNKNOWN = "unknown"
    """The record holds nothing to compare with, or the pack cannot be read."""


@dataclass(frozen=True, slots=True)
class PackCheck:
    """`digest` is that of the record, '' where it has none; `message` is for the user, '' where there is nothing."""

    state: PackState
    digest: str
    message: str


def pack_of_run(store: Store, run: Run, config: RunConfig) -> Pack:
    """The run's pack; PackError where it is gone or is not the one that the run was made with.

    The digests of an older run's pack are recorded from now on.
    """
    if not os.path.exists(config.pack_path):
        raise PackError(*_gone(run, config))
    pack = load_pack(config.pack_path, config.tasks.families)
    digests = pack.digests()
    noted = store.noted_pack(run.id)
    if changed := _changes(store, run, pack, digests):
        raise PackError(*_differs(run, pack, changed))
    if noted is None or not noted[1]:
        store.note_pack(run.id, pack.name, pack_digest(digests), digests)
    return pack


def check_pack(store: Store, run: Run, config: RunConfig) -> PackCheck:
    """How the pack at the run's path compares; for those who only read the run."""
    noted = store.noted_pack(run.id)
    digest = noted[1] if noted else ""
    if not os.path.exists(config.pack_path):
        return PackCheck(PackState.GONE, digest, _gone(run, config)[0])
    try:
        pack = load_pack(config.pack_path, config.tasks.families)
        changed = _changes(store, run, pack, pack.digests())
    except PackError as error:
        return PackCheck(PackState.UNKNOWN, digest, f"the pack of run {run.id} cannot be compared: {error.message}")
    if changed:
        return PackCheck(PackState.DIFFERS, digest, _differs(run, pack, changed)[0])
    return PackCheck(PackState.SAME if noted else PackState.UNKNOWN, digest, "")


def _changes(store: Store, run: Run, pack: Pack, digests: dict[str, str]) -> str:
    """In words, which tasks are not those of the record; '' where all are, or nothing is known."""
    noted = store.noted_pack(run.id)
    if noted is None:
        return ""
    if noted[1]:
        return differences(noted[2], digests)
    now = {task.name: wording_digest(task.family, task.split, task.instruction) for task in pack.tasks}
    concerned = now.keys() | {rollout.plan.task for rollout in store.rollouts(run.id)}  # other runs noted tasks too
    return differences({name: digest for name, digest in noted[2].items() if name in concerned}, now)


def _gone(run: Run, config: RunConfig) -> tuple[str, str]:
    return (
        f"run {run.id}: its pack {config.pack_path} is gone",
        f"put it, or a link to it, back there, then `corral resume {run.id}`; report and replay need no pack",
    )


def _differs(run: Run, pack: Pack, changed: str) -> tuple[str, str]:
    return (
        f"run {run.id}: the pack {pack.name} at {pack.path} is not the one that the run was made with: {changed}",
        f"put the recorded tasks back, then `corral resume {run.id}`; or start a new run with `corral train`",
    )
