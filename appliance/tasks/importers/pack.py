"""Other people's task folders as a pack in our layout, with a note of everything that could not be honoured.

ClawGym         folders with data_entry.json, input_files/ and reward/ (reward.sh prints the score), or one JSONL
Harbor          folders with task.toml; what needs a network, more services or more steps is refused with the reason
terminal-bench  folders with task.yaml (version 1): instruction, run-tests.sh, solution.sh

A task is imported whole or refused with its reason; the pack appears at `out` in one rename, so that a failed import
leaves nothing behind.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from appliance.errors import PackError
from appliance.tasks.importers.clawgym import claw_lines, claw_task
from appliance.tasks.importers.draft import Draft, Refused, write_draft
from appliance.tasks.importers.harbor import Dockerfiles, harbor_task, terminal_bench_task
from appliance.tasks.pack import Task


@dataclass(slots=True)
class Report:
    """What an import did: task → notes, and source → why it was refused."""

    format: str
    imported: dict[str, tuple[str, ...]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


def import_pack(source: Path, out: Path, split: str = "train", dockerfiles: Dockerfiles = Dockerfiles.PLACE) -> Report:
    """Reads every task at `source` and writes a pack to `out`, which must not exist yet.

    `dockerfiles`: what becomes of Harbor's.
    Raises PackError when `source` holds no task of a known form, every task is refused, or `out` cannot be made.
    """
    name, drafts = _recognise(source, dockerfiles)
    if out.exists():
        raise PackError(f"{out}: exists already", "name a folder that does not, or remove it")
    draft_folder = out.with_name(f".{out.name}.part")
    shutil.rmtree(draft_folder, ignore_errors=True)
    report = Report(name)
    try:
        for origin, make in drafts:
            _take(report, draft_folder, origin, make, split)
        if not report.imported:
            reasons = "; ".join(f"{k}: {v}" for k, v in list(report.refused.items())[:3])
            raise PackError(f"{source}: no task could be imported ({reasons})", "see the reasons above")
        (draft_folder / "IMPORT.json").write_text(_as_json(report), encoding="utf-8")
        os.replace(draft_folder, out)
    except OSError as error:
        raise PackError(f"{out}: {error.strerror or error}", "check space and permissions there") from error
    finally:
        shutil.rmtree(draft_folder, ignore_errors=True)
    return report


def _take(report: Report, folder: Path, origin: str, make: Callable[[], Draft], split: str) -> None:
    try:
        draft = make()
        if (folder / draft.name).exists():
            raise Refused(f"its id {draft.name} is used by an earlier task")
        write_draft(folder / draft.name, draft, split)
        Task.from_dir(folder / draft.name)
    except (Refused, PackError, UnicodeError, ValueError, OverflowError, RecursionError) as error:
        report.refused[origin] = str(error).replace(f"{folder}/", "")  # where it was drafted is gone by then
        return
    report.imported[draft.name] = draft.notes


def _recognise(source: Path, dockerfiles: Dockerfiles) -> tuple[str, Iterator[tuple[str, Callable[[], Draft]]]]:
    if source.is_file() and source.suffix == ".jsonl":
        return "clawgym-jsonl", claw_lines(source)
    if not source.is_dir():
        what = "is neither a folder nor a .jsonl file" if source.exists() else "does not exist"
        raise PackError(f"{source}: {what}", "name a ClawGym, Harbor or terminal-bench folder, or ClawGym's JSONL")
    makers = (
        ("clawgym", "data_entry.json", claw_task),
        ("harbor", "task.toml", lambda folder: harbor_task(folder, dockerfiles)),
        ("terminal-bench", "task.yaml", terminal_bench_task),
    )
    for name, mark, maker in makers:
        if (source / mark).is_file():
            return name, iter([(source.name, lambda m=maker: m(source))])
        found = sorted(f for f in source.iterdir() if (f / mark).is_file())
        if found:
            return name, ((f.name, lambda f=f, m=maker: _unlinked(f, m)) for f in found)
    raise PackError(
        f"{source}: no task of a known form", "each task folder has a data_entry.json, a task.toml or a task.yaml"
    )


def _unlinked(folder: Path, maker: Callable[[Path], Draft]) -> Draft:
    if folder.is_symlink():
        raise Refused("is a link")
    return maker(folder)


def _as_json(report: Report) -> str:
    return json.dumps(
        {"format": report.format, "imported": report.imported, "refused": report.refused}, indent=1, ensure_ascii=False
    )
