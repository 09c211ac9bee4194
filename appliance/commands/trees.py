"""Commands about a run's trees: why they fork, and whether the record gives its training again."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from appliance.commands.output import command_of, show
from appliance.commands.progress import progress
from appliance.config.runconfig import from_record, home


def add(commands: Any) -> None:
    """Adds forks and replay."""
    command = command_of(commands, "forks", _forks, "why a run's trees fork: causes, costs and what would remove them")
    command.add_argument("run", nargs="?", help="id of the run; the newest by default")
    command.add_argument("--all", action="store_true", help="show every fork, not one of each cause")
    command = command_of(
        commands, "replay", _replay, "rebuild a run's loss inputs from the record and compare them bit for bit"
    )
    command.add_argument("run", nargs="?", help="id of the run; the newest by default")


def _forks(arguments: argparse.Namespace) -> int:
    from appliance.record.access import newest, reading
    from appliance.report.fork_report import explain, text

    with reading(home()) as store:
        run = store.run(arguments.run) if arguments.run else newest(store)
        with progress(arguments, "forks", "rollouts") as told:
            found = explain(home(), store, run.id, told)
    counts = found.as_json()
    show(arguments, counts, text(found, arguments.all))
    return 1 if counts["unexplained"] else 0


def _replay(arguments: argparse.Namespace) -> int:
    from appliance.record.access import newest, reading
    from appliance.report.replay import replay
    from appliance.runs.run_pack import PackState, check_pack

    with reading(home()) as store:
        run = store.run(arguments.run) if arguments.run else newest(store)
        with progress(arguments, "replay", "steps") as told:
            found = replay(store, run.id, told)
        pack = check_pack(store, run, from_record(run.config))
    same = not found.differences
    lines = [
        f"run {run.id}: {found.steps} steps, {found.rollouts} rollouts trained on: "
        + ("identical, bit for bit" if same else f"{len(found.differences)} differences")
    ]
    for d in found.differences:
        lines.append(f"  step {d.step}" + (f" rollout {d.rollout}" if d.rollout else "") + f": {d.what}")
    if pack.message:
        lines.append(pack.message)
    as_json: dict[str, Any] = {"identical": same, "differences": [asdict(d) for d in found.differences]}
    if pack.message or pack.state is not PackState.UNKNOWN:
        as_json["pack"] = asdict(pack)
    show(arguments, as_json, "\n".join(lines))
    return 0 if same and pack.state is not PackState.DIFFERS else 1
