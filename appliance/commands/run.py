"""Commands that start, stop and go on with runs, rollouts and evaluations."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from appliance.commands.output import command_of, overrides_of, show, show_event
from appliance.commands.progress import progress
from appliance.config.runconfig import CHECKOUT, home, resolve, sources
from appliance.system.files import private_folder

EXIT_STOPPED = 3
TOML = "data/demo.toml"
DEMO = CHECKOUT / "data" / "demo.toml"


def add(commands: Any) -> None:
    """Adds demo, train, coldstart, resume, stop, and rollout."""
    for name, act, text, example in (
        ("demo", _demo, "run the shipped demonstration to its closing table", ""),
        ("train", _train, "start a run from a TOML: cold start, training, evaluation", f"{TOML} --set train.steps=4"),
        ("coldstart", _coldstart, "make only the first policy: teacher rollouts, then supervised training", TOML),
    ):
        command = command_of(commands, name, act, text, example)
        if name != "demo":
            command.add_argument("toml", type=Path, help="the run's TOML, for example data/demo.toml")
        else:
            command.add_argument("toml", type=Path, nargs="?", default=DEMO, help="another TOML than the shipped one")
        command.add_argument(
            "--set", action="append", default=[], metavar="KEY=VALUE", help="override a key, e.g. seed=1"
        )
        command.add_argument(
            "--started-at", type=float, default=None, help="Unix seconds from which minutes_total counts"
        )
        command.add_argument("--detach", action="store_true", help="run in the background; look with `corral`")
    command = command_of(commands, "resume", _resume, "go on with a stopped, failed or killed run, from the record")
    command.add_argument("run", nargs="?", help="id of the run; the newest unfinished one by default")
    command.add_argument("--detach", action="store_true", help="run in the background")
    command = command_of(commands, "stop", _stop, "drain a run: no new rollouts, those under way end")
    command.add_argument("run", nargs="?", help="id of the run; the active one by default")
    example = "data/demo.toml --task count-lesson-00 --harness pi --teacher"
    command = command_of(commands, "rollout", _rollout, "make one rollout and show its calls and reward", example)
    command.add_argument("run", help="a run that has a policy, or a TOML with --teacher")
    command.add_argument("--task", required=True, help="name of a task in the run's pack")
    command.add_argument("--harness", required=True, help="name of a harness")
    command.add_argument("--teacher", action="store_true", help="the run's teacher answers instead of the policy")


def _demo(arguments: argparse.Namespace) -> int:
    return _start(arguments, overrides_of(arguments))


def _train(arguments: argparse.Namespace) -> int:
    return _start(arguments, overrides_of(arguments))


def _coldstart(arguments: argparse.Namespace) -> int:
    overrides = overrides_of(arguments) | {"train.steps": "0", "evaluation.enabled": "false"}
    return _start(arguments, overrides)


def _start(arguments: argparse.Namespace, overrides: Mapping[str, str]) -> int:
    from appliance.runs import lifecycle

    run_id = lifecycle.create(home(), resolve(arguments.toml, overrides))
    decided = {key: source for key, source in sources(arguments.toml, overrides).items() if source != "default"}
    (home() / "runs" / run_id / "sources.json").write_text(json.dumps(decided, indent=1) + "\n", encoding="utf-8")
    return _go_on(arguments, run_id)


def _go_on(arguments: argparse.Namespace, run_id: str) -> int:
    """Runs the supervisor here, printing events as they come, or starts it in the background."""
    from appliance.record.access import reading
    from appliance.report.summary import curve_lines, table, write
    from appliance.runs import lifecycle

    started_at = getattr(arguments, "started_at", None)
    if arguments.detach:
        log = detach(run_id)
        show(arguments, {"run": run_id, "log": str(log)}, f"run {run_id} goes on in the background; look with `corral`")
        return 0
    state = lifecycle.supervise(home(), run_id, lambda event: show_event(arguments, event))
    with reading(home()) as store:
        path = write(home(), store, run_id, started_at)
        found = json.loads(path.read_text())
        lines = [table(found), *curve_lines(store.rollouts(run_id)), str(path)]
        message = store.run(run_id).message
    if state == "done":
        show(arguments, found | {"path": str(path)}, "\n".join(lines))
        return 0
    show(arguments, {"run": run_id, "state": state, "message": message}, f"run {run_id} {state}: {message}")
    return EXIT_STOPPED if state == "stopped" else 1


def detach(run_id: str) -> Path:
    """Starts the supervisor of a run as a process of its own; returns its log."""
    log = private_folder(private_folder(home() / "runs") / run_id) / "supervisor.log"
    with log.open("ab") as out:
        subprocess.Popen(
            [sys.executable, "-m", "appliance.cli", "resume", run_id, "--plain"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return log


def _resume(arguments: argparse.Namespace) -> int:
    from appliance.runs import lifecycle

    return _go_on(arguments, lifecycle.unfinished_run(home(), arguments.run))


def _stop(arguments: argparse.Namespace) -> int:
    from appliance.runs import lifecycle

    run_id = lifecycle.stop(home(), arguments.run)
    show(
        arguments,
        {"run": run_id, "command": "stop"},
        f"run {run_id}: draining; `corral status` shows when it has stopped",
    )
    return 0


def _rollout(arguments: argparse.Namespace) -> int:
    from appliance.runs import lifecycle

    with progress(arguments, f"rollout in {arguments.harness}{' by the teacher' if arguments.teacher else ''}"):
        found = lifecycle.single(home(), arguments.run, arguments.task, arguments.harness, arguments.teacher)
    show(arguments, found, lifecycle.single_text(found))
    return 0 if found["failure"] == "" else 1
