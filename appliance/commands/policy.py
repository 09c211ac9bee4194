"""Commands for a run's model: what memory it will take, and what it leaves for use elsewhere."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from appliance.commands.output import command_of, overrides_of, show
from appliance.commands.progress import progress
from appliance.config.runconfig import from_record, home, resolve
from appliance.errors import ApplianceError
from appliance.record.access import reading
from appliance.runs.memory_plan import Plan, advice


def add(commands: Any) -> None:
    """Adds plan."""
    command = command_of(
        commands, "plan", _plan, "the memory a run will take, before anything is loaded", "data/demo.toml"
    )
    command.add_argument("toml", type=Path, help="the run's TOML")
    command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key")


def _plan(arguments: argparse.Namespace) -> int:
    from appliance.runs.room import plan_of, shape_of

    config = resolve(arguments.toml, overrides_of(arguments))
    with progress(arguments, "plan"):
        shape = shape_of(config, home())
        found = plan_of(config, home())
    told = {p.where: advice(p, config, shape, p.available) for p in found if p.available is not None and not p.fits}
    rows = [
        {
            "where": p.where,
            "parts": {part.name: part.bytes for part in p.parts},
            "total_bytes": p.total,
            "available_bytes": p.available,
            "fits": p.fits,
            "advice": told.get(p.where, ""),
        }
        for p in found
    ]
    lines = [line for p in found for line in _lines(p, told.get(p.where, ""))]
    show(arguments, {"fits": all(p.fits for p in found), "devices": rows}, "\n".join(lines))
    return 0 if all(p.fits for p in found) else 1


def _lines(plan: Plan, told: str) -> list[str]:
    lines = [f"{plan.where}"]
    lines += [f"  {part.name:<24} {part.bytes / 2**30:9.2f} GiB   {part.setting}" for part in plan.parts]
    has = "" if plan.available is None else f" of {plan.available / 2**30:.2f} GiB free"
    lines.append(f"  {'in all':<24} {plan.total / 2**30:9.2f} GiB{has}")
    return [*lines, f"  does not fit: {told}"] if told else lines


def export_policy(arguments: argparse.Namespace, what: str, run_id: str) -> None:
    """Writes the adapter of a run, or its base with the adapter merged, to `--to`."""
    from appliance.train.exporting import export_adapter, export_merged

    with reading(home()) as store:
        run = store.run(run_id)
        config = from_record(run.config)
        versions = {number: path for number, path, _ in store.versions(run.id)}
    version = max(versions, default=-1) if arguments.version is None else arguments.version
    if version not in versions:
        raise ApplianceError(f"run {run.id} has no policy version {version}", f"it has {', '.join(map(str, versions))}")
    folder = arguments.to
    if what == "adapter":
        export_adapter(versions[version], folder)
    else:
        export_merged(home() / "runs" / run.id / "model" / "base", versions[version], folder)
    told = f"version {version} of run {run.id} is in {folder}"
    if what == "merged" and config.model.quantization == "nf4":
        told += "; it was trained on the base's NF4 values, so it answers a little differently"
    show(arguments, {"run": run.id, "version": version, "folder": str(folder), "what": what}, told)
