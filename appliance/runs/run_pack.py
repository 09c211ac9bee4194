"""The pack of a run: the one whose digest the record holds, or none.

A run that began on some tasks never goes on with others: what it practised, its evaluations and its groups would no
longer belong together. A run made before packs had digests is compared by what its record holds of its tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from appliance.config.runconfig import RunConfig
from appliance.errors import PackError
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
    """The record holds nothing to compare with."""


@dataclass(frozen=True, slots=True)
class PackCheck:
    """The state, the digest in the record ('' where there is none), and what to tell the user ('' for SAME)."""

    state: PackState
    digest: str
    message: str


def note_pack(store: Store, run_id: str, pack: Pack) -> None:
    """Records which tasks a run is made with."""
    tasks = pack.digests()
    store.note_pack(run_id, pack.name, pack_digest(tasks), tasks)


def pack_of_run(store: Store, run: Run, config: RunConfig) -> Pack:
    """The run's pack; PackError where it is gone or is not the one that the run was made with.

    The digest of an older run's pack is recorded from now on.
    """
    if not config.pack_path.exists():
        raise PackError(*_gone(run, config))
    pack = load_pack(config.pack_path, config.tasks.families)
    if changed := _changes(store, run, pack):
        raise PackError(*_differs(run, pack, changed))
    if store.noted_pack(run.id) is None:
        note_pack(store, run.id, pack)
    return pack


def check_pack(store: Store, run: Run, config: RunConfig) -> PackCheck:
    """How the pack at the run's path compares; for those who only read the run."""
    noted = store.noted_pack(run.id)
    digest = noted[1] if noted else ""
    if not config.pack_path.exists():
        return PackCheck(PackState.GONE, digest, _gone(run, config)[0])
    try:
        pack = load_pack(config.pack_path, config.tasks.families)
    except PackError as error:
        return PackCheck(PackState.DIFFERS, digest, str(error))
    if changed := _changes(store, run, pack):
        return PackCheck(PackState.DIFFERS, digest, _differs(run, pack, changed)[0])
    is_known = noted or store.noted_tasks(pack.name)
    return PackCheck(PackState.SAME if is_known else PackState.UNKNOWN, digest, "")


def _changes(store: Store, run: Run, pack: Pack) -> str:
    """In words, which tasks are not those of the record; '' where all are."""
    if noted := store.noted_pack(run.id):
        return differences(noted[2], pack.digests())
    now = {task.name: f"{task.family}\n{task.split}\n{task.instruction}" for task in pack.tasks}
    concerned = now.keys() | {rollout.plan.task for rollout in store.rollouts(run.id)}
    recorded = {name: "\n".join(words) for name, words in store.noted_tasks(pack.name).items() if name in concerned}
    return differences(recorded, now) if recorded else ""


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
