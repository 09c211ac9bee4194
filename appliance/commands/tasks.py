"""Commands for task packs: import, list, show, new, split, lint and generate."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from appliance.commands.output import command_of, show, show_event
from appliance.commands.progress import progress
from appliance.config.runconfig import RunConfig, home
from appliance.errors import PackError


def add(commands: Any) -> None:
    """Adds tasks with its actions."""
    example = "example: corral tasks import downloads/ClawGym-Bench packs/claw-bench"
    parser = commands.add_parser("tasks", help="import, list, show, make, split and check task packs", epilog=example)
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    command = command_of(
        actions,
        "import",
        _import,
        "turn ClawGym, Harbor or terminal-bench tasks into a pack",
        "downloads/ClawGym-Bench packs/claw-bench",
    )
    command.add_argument("source", type=Path, help="a folder of tasks, one task, or ClawGym's .jsonl")
    command.add_argument("out", type=Path, help="the pack's folder; it must not exist yet")
    command.add_argument(
        "--split", default="train", choices=["lesson", "train", "held-out"], help="split of every task"
    )
    command.add_argument(
        "--dockerfiles",
        default="place",
        choices=["place", "keep", "rebase"],
        help="of a Harbor Dockerfile that does more than place files: only place them, or keep it to be built as it "
        "is, or FROM corral-base (corral images build --pack)",
    )
    command = command_of(actions, "list", _list, "the tasks of a pack", "packs/own")
    command.add_argument("pack", nargs="?", default="pocket", help="name under data/, or a folder")
    command = command_of(actions, "show", _show_task, "one task: instruction, files, limits", "pocket TASK")
    command.add_argument("pack", help="name under data/, or a folder")
    command.add_argument("task", help="name of the task")
    command = command_of(actions, "new", _new, "write a task folder to fill in", "packs/own/first")
    command.add_argument("folder", type=Path, help="PACK/NAME of the new task")
    command.add_argument("--family", default="own", help="its family")
    command = command_of(
        actions, "split", _split, "share a pack's tasks out between train and held-out", "packs/own --held-out 0.2"
    )
    command.add_argument("pack", help="a folder")
    command.add_argument("--held-out", type=float, default=0.2, metavar="SHARE", help="share of held-out tasks")
    command.add_argument("--by", choices=["task", "family"], default="task", help="draw tasks, or whole families")
    command.add_argument("--seed", type=int, default=0, help="of the draw")
    command = command_of(
        actions, "lint", _lint, "check a pack; with --run, by agents that do nothing, cheat or know", "packs/own --run"
    )
    command.add_argument("pack", nargs="?", default="pocket", help="name under data/, or a folder")
    command.add_argument("--run", action="store_true", help="run null agent, oracle, forger and copier in sandboxes")
    command.add_argument("--parallel", type=int, default=4, help="tasks at once")
    command = command_of(
        actions, "rates", _rates, "solve rates of a run's tasks in each harness, step by step", "demo-1129-203911-0fd8"
    )
    command.add_argument("run", help="id, or enough of it")
    _add_generate(actions)
    _add_from_session(actions)


def _add_generate(actions: Any) -> None:
    command = command_of(
        actions,
        "generate",
        _generate,
        "write the tasks of shipped packs again; changed ones are kept beside them",
        "pocket",
    )
    command.add_argument("packs", nargs="*", metavar="PACK", help="name under data/; all by default")


def _add_from_session(actions: Any) -> None:
    command = command_of(
        actions,
        "from-session",
        _from_session,
        "make a draft task of a session recorded by the proxy",
        "before after 12 packs/own/mended",
    )
    command.add_argument("before", type=Path, help="the folder as it was before the session")
    command.add_argument("after", type=Path, help="the folder as the session left it")
    command.add_argument("rollout", type=int, help="number of the recorded session (see `corral calls`)")
    command.add_argument("out", type=Path, help="PACK/NAME of the draft; it must not exist yet")
    command.add_argument("--family", default="sessions", help="its family")


def pack_of(name: str) -> Path:
    """A pack's folder by name or path."""
    return RunConfig.model_validate({"tasks": {"pack": name}}).pack_path


def _import(arguments: argparse.Namespace) -> int:
    from appliance.tasks.importers.harbor import Dockerfiles
    from appliance.tasks.importers.pack import import_pack

    with progress(arguments, "tasks import"):
        report = import_pack(arguments.source, arguments.out, arguments.split, Dockerfiles(arguments.dockerfiles))
    lines = [f"{len(report.imported)} tasks imported from {report.format} into {arguments.out}"]
    by_note: dict[str, list[str]] = {}
    for name, notes in report.imported.items():
        for note in notes:
            by_note.setdefault(note, []).append(name)
    lines += [f"  note ({len(names)} tasks, e.g. {names[0]}): {note}" for note, names in by_note.items()]
    lines += [f"  refused {origin}: {why}" for origin, why in report.refused.items()]
    show(
        arguments,
        {"format": report.format, "pack": str(arguments.out), "imported": report.imported, "refused": report.refused},
        "\n".join(lines),
    )
    return 0 if not report.refused else 1


def _list(arguments: argparse.Namespace) -> None:
    from appliance.tasks.pack import load_pack

    pack = load_pack(pack_of(arguments.pack))
    rows = [{"name": t.name, "family": t.family, "split": t.split, "instruction": t.instruction} for t in pack.tasks]
    text = "\n".join(f"{r['name']:<24} {r['split']:<9} {r['instruction'].splitlines()[0]}" for r in rows)
    show(arguments, {"pack": pack.name, "tasks": rows}, text)


def _show_task(arguments: argparse.Namespace) -> None:
    from appliance.tasks.pack import load_pack

    task = load_pack(pack_of(arguments.pack)).task(arguments.task)
    files = {
        str(f.relative_to(task.environment_files)): f.stat().st_size
        for f in sorted(task.environment_files.rglob("*"))
        if f.is_file()
    }
    found = {
        "name": task.name,
        "family": task.family,
        "split": task.split,
        "instruction": task.instruction,
        "files": files,
        "has_solution": task.has_solution,
        "steps": [step.name for step in task.steps],
        "agent_timeout_s": task.agent_timeout_s,
        "verifier_timeout_s": task.verifier_timeout_s,
        "mcp_servers": [asdict(server) for server in task.mcp_servers],
        "path": str(task.path),
    }
    listed = "\n".join(f"  {size:>8}  {name}" for name, size in files.items()) or "  (empty)"
    servers = "".join(f"MCP server {s.name}: {s.url or ' '.join((s.command, *s.args))}\n" for s in task.mcp_servers)
    text = (
        f"{task.name} · family {task.family} · {task.split} · agent {task.agent_timeout_s:g} s, grader "
        f"{task.verifier_timeout_s:g} s · oracle {'yes' if task.has_solution else 'no'}\n\n{task.instruction}\n\n"
        f"{servers}workspace ({task.path}):\n{listed}"
    )
    show(arguments, found, text)


def _new(arguments: argparse.Namespace) -> None:
    from appliance.tasks.authoring import new_task

    written = new_task(arguments.folder, arguments.family)
    text = f"written: {arguments.folder}\n" + "\n".join(f"  {line}" for line in written)
    show(arguments, {"task": str(arguments.folder), "files": written}, text)


def _split(arguments: argparse.Namespace) -> None:
    from appliance.tasks.authoring import split_pack

    splits = split_pack(pack_of(arguments.pack), arguments.held_out, arguments.by, arguments.seed)
    counts = {s: sum(v == s for v in splits.values()) for s in sorted(set(splits.values()))}
    show(arguments, {"splits": splits, "counts": counts}, "  ".join(f"{s}: {n}" for s, n in counts.items()))


def _generate(arguments: argparse.Namespace) -> None:
    from appliance.tasks.generated import generate, shipped_packs

    shipped = shipped_packs()
    named = {name: pack_of(name).resolve() for name in arguments.packs}
    if unknown := [name for name, pack in named.items() if pack not in shipped]:
        known = ", ".join(pack.name for pack in shipped)
        raise PackError(f"{unknown[0]}: not a shipped pack", f"name some of {known}, or none for all")
    found = [generate(pack) for pack in dict.fromkeys(named.values() or shipped)]
    lines = [f"{one.name}: {one.num_tasks} tasks in {one.folder}" for one in found]
    lines += [f"{one.name}: the folder that differed is now {one.kept}" for one in found if one.kept]
    rows = [
        {
            "pack": one.name, "folder": str(one.folder), "tasks": one.num_tasks, "digest": one.digest,
            "kept": str(one.kept) if one.kept else None,
        }
        for one in found
    ]  # fmt: skip
    show(arguments, {"packs": rows}, "\n".join(lines))


def _lint(arguments: argparse.Namespace) -> int:
    """Reads the pack, naming every task that is malformed; with --run, probes those that can be read."""
    from appliance.tasks.pack import read_pack

    with progress(arguments, "tasks lint"):
        pack, broken = read_pack(pack_of(arguments.pack))
    found: dict[str, Any] = {"tasks": len(pack.tasks), "malformed": broken}
    if arguments.run:
        found |= _probe(arguments, pack)
    lines = [f"✗ malformed  {name}: {why}" for name, why in broken.items()]
    for task, problems in found.get("reasons", {}).items():
        lines += [f"✗ {kind:<10} {task}: {why}" for kind, why in problems.items()]
    seen = f", oracle {_two(found['oracle_mean'])}, null {_two(found['null_mean'])}" if arguments.run else ""
    bad = len(broken) + len(found.get("reasons", {}))
    lines.append(f"{len(pack.tasks)} tasks read, {bad} with problems{seen}")
    show(arguments, found, "\n".join(lines))
    return 1 if bad else 0


def _probe(arguments: argparse.Namespace, pack: Any) -> dict[str, Any]:
    import anyio

    from appliance.operate.lintfindings import Findings, report
    from appliance.operate.pack_lint import lint_pack
    from appliance.sandbox.images.build import base_ref

    started = time.monotonic()

    def tell(one: Findings, done: int, of: int) -> None:
        left = (time.monotonic() - started) / done * (of - done)
        said = ", ".join(one.problems) or "well"
        message = f"{done}/{of} {one.task}: {said} ({one.seconds:.1f} s; about {left:.0f} s left)"
        show_event(arguments, {"part": "lint", "message": message})

    return report(anyio.run(lint_pack, home(), pack, base_ref(), max(1, arguments.parallel), tell))


def _rates(arguments: argparse.Namespace) -> None:
    from appliance.config.runconfig import from_record
    from appliance.record.access import reading
    from appliance.runs.schedule import pair_weights, solved_by_step
    from appliance.types import Purpose

    with reading(home()) as store:
        run = store.run(arguments.run)
        rollouts = store.rollouts(run.id, Purpose.TRAIN)
    train = from_record(run.config).train
    weights = pair_weights(rollouts, train.curriculum_least)
    rows: list[dict[str, Any]] = []
    lines = [f"{'task':<28} {'harness':<16} solved  weight  step: solved/graded"]
    for (task, harness), by_step in solved_by_step(rollouts).items():
        rate = sum(s for s, _ in by_step.values()) / sum(n for _, n in by_step.values())
        weight = weights[task, harness]
        steps = [{"step": step, "solved": s, "graded": n} for step, (s, n) in by_step.items()]
        rows.append({"task": task, "harness": harness, "rate": rate, "weight": weight, "steps": steps})
        said = "  ".join(f"{step}: {s}/{n}" for step, (s, n) in by_step.items())
        lines.append(f"{task:<28} {harness:<16} {100 * rate:>4.0f} %  {weight:>6.2f}  {said}")
    lines.append(f"{len(rows)} pairs with a grade; train.curriculum = {train.curriculum}")
    found = {"run": run.id, "curriculum": train.curriculum, "pairs": rows}
    show(arguments, found, "\n".join(lines))


def _two(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _from_session(arguments: argparse.Namespace) -> None:
    from appliance.record.access import reading
    from appliance.report.transcript import calls
    from appliance.tasks.sessiontask import draft_task

    with reading(home()) as store:
        said = calls(store, arguments.rollout)
    notes = draft_task(arguments.out, arguments.before, arguments.after, said, arguments.family)
    text = "\n".join([f"draft written: {arguments.out}; look at", *(f"  {note}" for note in notes)])
    show(arguments, {"task": str(arguments.out), "notes": notes}, text)
