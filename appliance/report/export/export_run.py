"""`corral export`: a run, or one rollout, to a new file or folder, whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from appliance.errors import ExportError
from appliance.record import queries
from appliance.record.store import Store
from appliance.report.export import atif, harbor, messages, tokens
from appliance.report.trace import Recollection, recollect
from appliance.system.files import written
from appliance.system.redact import value_without_secrets
from appliance.types import RolloutState

FORMATS = ("atif", "harbor", "messages", "tokens", "parquet")
ENDED = (RolloutState.GRADED, RolloutState.FAILED)


def export(
    store: Store,
    run_id: str,
    kind: str,
    target: Path,
    rollout: int | None = None,
    heard: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Writes the ended rollouts of a run, or one of them, and says how many documents that made.

    `heard` is told how many rollouts are done, and of how many.
    """
    run = store.run(run_id)
    if rollout is not None and rollout not in {r.id for r in store.rollouts(run.id)}:
        raise ExportError(f"run {run.id} has no rollout {rollout}", "see `corral status`")
    told = _told(store, run.id, rollout) if heard is None else _counted(store, run.id, rollout, heard)
    version = str(store.rows("SELECT code_version v FROM runs WHERE id=?", run.id)[0]["v"])
    with written(target, is_folder=kind in ("atif", "harbor")) as temporary:
        if kind == "atif":
            count = _atif(told, temporary, version)
        elif kind == "harbor":
            count = harbor.write_job(told, temporary, target.name, version)
        elif kind == "parquet":
            count = tokens.write_table(_lines(told, tokens.lines), temporary)
        else:
            count = _jsonl(_lines(told, {"messages": messages.lines, "tokens": tokens.lines}[kind]), temporary)
        if not count:
            raise ExportError(f"run {run.id} holds nothing to export as {kind}", "see `corral status`")
    return {"run": run.id, "format": kind, "target": str(target), "documents": count}


def _told(store: Store, run_id: str, rollout: int | None) -> Iterator[Recollection]:
    """One at a time, so that a large run needs little memory."""
    if rollout is not None:
        yield recollect(store, rollout)
        return
    last = 0
    while page := queries.page(store, run_id, last):
        for each in page:
            if each.state in ENDED:
                yield recollect(store, each.id)
        last = page[-1].id


def _counted(
    store: Store, run_id: str, rollout: int | None, heard: Callable[[int, int], None]
) -> Iterator[Recollection]:
    """The same, saying how far it is."""
    ended = [each for each in store.rollouts(run_id) if each.state in ENDED]
    number = 1 if rollout is not None else len(ended)
    for done, each in enumerate(_told(store, run_id, rollout), start=1):
        yield each
        heard(done, number)


def _lines(
    told: Iterable[Recollection], lines: Callable[[Recollection], Iterator[dict[str, Any]]]
) -> Iterator[dict[str, Any]]:
    for each in told:
        yield from (value_without_secrets(line, each.secrets) for line in lines(each))


def _jsonl(lines: Iterable[dict[str, Any]], target: Path) -> int:
    count = 0
    with target.open("w", encoding="utf-8", errors="backslashreplace") as file:
        for line in lines:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            count += 1
    return count


def _atif(told: Iterable[Recollection], folder: Path, version: str) -> int:
    count = 0
    for each in told:
        if not each.calls:
            continue
        path = folder / f"rollout-{each.rollout.id}.json"
        found = value_without_secrets(atif.trajectory(each, version), each.secrets)
        text = json.dumps(found, ensure_ascii=False, indent=1)
        path.write_text(text + "\n", encoding="utf-8", errors="backslashreplace")
        count += 1
    return count
