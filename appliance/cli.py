"""The command line: every act and view, plain or as JSON. `corral` alone opens the terminal UI.

Exit codes: 0 done · 1 failed with a message · 2 wrong usage · 3 stopped before the end (`corral resume` goes on).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from appliance.config import CHECKOUT, RunConfig, home, leaves, resolve, sources
from appliance.errors import ApplianceError, ConfigError, CorralError

EXIT_STOPPED = 3
DEMO = CHECKOUT / "data" / "demo.toml"
EXAMPLES = """examples:
  corral                         the terminal UI
  corral demo                    the shipped run: cold start, training, evaluation
  corral train RUN.toml --set train.steps=4
  corral status --json           what runs now
  corral stop                    drain the active run; `corral resume` goes on
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Parses, runs one command, and turns errors of ours into one message and an exit code."""
    arguments = build_parser().parse_args(argv)
    try:
        return int(arguments.act(arguments) or 0)
    except CorralError as error:
        _complain(error, arguments)
        return 1
    except BrokenPipeError:
        return 0


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="corral",
        description="Train agent policies inside the harnesses they will run in.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(act=_tui, json=False, plain=False, readonly=False)
    parser.add_argument("--readonly", action="store_true", help="the UI shows everything and changes nothing")
    commands = parser.add_subparsers(metavar="COMMAND")
    _add_running(commands)
    _add_looking(commands)
    _add_keeping(commands)
    return parser


def _command(
    commands: Any, name: str, act: Callable[[argparse.Namespace], int | None], text: str
) -> argparse.ArgumentParser:
    example = f"example: corral {name}"
    command: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text, epilog=example)
    command.set_defaults(act=act)
    command.add_argument("--json", action="store_true", help="one JSON object, or one a line for a stream")
    command.add_argument("--plain", action="store_true", help="plain lines without colour or cursor movement")
    return command


def _add_running(commands: Any) -> None:
    for name, act, text in (
        ("demo", _demo, "run the shipped demonstration to its closing table"),
        ("train", _train, "start a run from a TOML: cold start, training, evaluation"),
        ("coldstart", _coldstart, "make only the first policy: teacher rollouts, then supervised training"),
    ):
        command = _command(commands, name, act, text)
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
    command = _command(commands, "resume", _resume, "go on with a stopped, failed or killed run, from the record")
    command.add_argument("run", nargs="?", help="id of the run; the newest unfinished one by default")
    command.add_argument("--detach", action="store_true", help="run in the background")
    command = _command(commands, "stop", _stop, "drain a run: no new rollouts, those under way end")
    command.add_argument("run", nargs="?", help="id of the run; the active one by default")
    command = _command(commands, "rollout", _rollout, "make one rollout and show its calls and reward")
    command.add_argument("run", help="a run that has a policy, or a TOML with --teacher")
    command.add_argument("--task", required=True, help="name of a task in the run's pack")
    command.add_argument("--harness", required=True, help="name of a harness")
    command.add_argument("--teacher", action="store_true", help="the run's teacher answers instead of the policy")
    command = _command(commands, "eval", _eval, "Pass@1 of a run's policy on held-out tasks, for each harness")
    command.add_argument("run", help="id of the run")
    command.add_argument("--version", type=int, default=None, help="policy version; the newest by default")


def _add_looking(commands: Any) -> None:
    command = _command(commands, "status", _status, "what runs now: phase, steps, rollouts by state, sandboxes")
    command.add_argument("run", nargs="?", help="id of the run; the newest by default")
    command = _command(commands, "report", _report, "the closing table of a run")
    command.add_argument("run", nargs="?", help="id of the run; the newest by default")
    command = _command(commands, "calls", _calls, "the calls of one rollout, as text")
    command.add_argument("rollout", type=int, help="number of the rollout")
    _command(commands, "doctor", _doctor, "check this machine; every failure with its remedy")
    _command(commands, "info", _info, "versions and paths")


def _add_keeping(commands: Any) -> None:
    command = _command(commands, "config", _config, "show every key of a run, its value and meaning")
    command.add_argument("action", choices=["show"], help="show")
    command.add_argument("toml", type=Path, nargs="?", help="the run's TOML")
    command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key")
    command.add_argument("--sources", action="store_true", help="also say what decided each value")
    command = _command(commands, "images", _images, "build or list the sandbox images")
    command.add_argument("action", choices=["build", "list"], help="build what is missing, or list what is there")
    command.add_argument("names", nargs="*", help="only these harnesses")
    command = _command(commands, "tasks", _tasks, "list the tasks of a pack")
    command.add_argument("action", choices=["list"], help="list")
    command.add_argument("pack", nargs="?", default="pocket", help="name under data/, or a folder")


# ------------------------------------------------------------------ running


def _overrides(arguments: argparse.Namespace) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in arguments.set:
        key, equals, value = item.partition("=")
        if not equals:
            raise ConfigError(f"--set {item}: not KEY=VALUE", "write for example --set train.steps=4")
        found[key.strip()] = value.strip()
    return found


def _demo(arguments: argparse.Namespace) -> int:
    return _start(arguments, resolve(arguments.toml, _overrides(arguments)))


def _train(arguments: argparse.Namespace) -> int:
    return _start(arguments, resolve(arguments.toml, _overrides(arguments)))


def _coldstart(arguments: argparse.Namespace) -> int:
    overrides = _overrides(arguments) | {"train.steps": "0", "evaluation.enabled": "false"}
    return _start(arguments, resolve(arguments.toml, overrides))


def _start(arguments: argparse.Namespace, config: RunConfig) -> int:
    from appliance import running

    run_id = running.create(home(), config)
    return _go_on(arguments, run_id)


def _go_on(arguments: argparse.Namespace, run_id: str) -> int:
    """Runs the supervisor here, printing events as they come, or starts it in the background."""
    from appliance import running
    from appliance.finish import curve_lines, table, write
    from appliance.record import reading

    started_at = getattr(arguments, "started_at", None)
    if arguments.detach:
        log = detach(run_id)
        _show(
            arguments, {"run": run_id, "log": str(log)}, f"run {run_id} goes on in the background; look with `corral`"
        )
        return 0
    state = running.supervise(home(), run_id, lambda event: _event(arguments, event))
    with reading(home()) as store:
        path = write(home(), store, run_id, started_at)
        found = json.loads(path.read_text())
        lines = [table(found), *curve_lines(store.rollouts(run_id)), str(path)]
        message = store.run(run_id).message
    if state == "done":
        _show(arguments, found | {"path": str(path)}, "\n".join(lines))
        return 0
    _show(arguments, {"run": run_id, "state": state, "message": message}, f"run {run_id} {state}: {message}")
    return EXIT_STOPPED if state == "stopped" else 1


def detach(run_id: str) -> Path:
    """Starts the supervisor of a run as a process of its own; returns its log."""
    log = home() / "runs" / run_id / "supervisor.log"
    log.parent.mkdir(parents=True, exist_ok=True)
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
    from appliance import running

    return _go_on(arguments, running.unfinished_run(home(), arguments.run))


def _stop(arguments: argparse.Namespace) -> int:
    from appliance import running

    run_id = running.stop(home(), arguments.run)
    _show(
        arguments,
        {"run": run_id, "command": "stop"},
        f"run {run_id}: draining; `corral status` shows when it has stopped",
    )
    return 0


def _rollout(arguments: argparse.Namespace) -> int:
    from appliance import running

    found = running.single(home(), arguments.run, arguments.task, arguments.harness, arguments.teacher)
    _show(arguments, found, running.single_text(found))
    return 0 if found["failure"] == "" else 1


def _eval(arguments: argparse.Namespace) -> int:
    from appliance import running

    rows = running.evaluate(home(), arguments.run, arguments.version, lambda event: _event(arguments, event))
    lines = [
        f"{r['harness']:<16} Pass@1 {r['pass_at_1']} {r['interval']}  n {r['n']}  failed {r['failures']}" for r in rows
    ]
    _show(arguments, {"rows": rows}, "\n".join(lines))
    return 0


# ------------------------------------------------------------------ looking


def _status(arguments: argparse.Namespace) -> None:
    from appliance import views

    found = views.status(home(), arguments.run)
    _show(arguments, found, views.status_text(found))


def _report(arguments: argparse.Namespace) -> None:
    from appliance.finish import curve_lines, summary, table
    from appliance.record import newest, reading

    with reading(home()) as store:
        run = store.run(arguments.run) if arguments.run else newest(store)
        found = summary(store, run.id)
        lines = [table(found), *curve_lines(store.rollouts(run.id))]
    _show(arguments, found, "\n".join(lines))


def _calls(arguments: argparse.Namespace) -> None:
    from appliance.record import reading
    from appliance.transcript import calls, calls_text

    with reading(home()) as store:
        found = calls(store, arguments.rollout)
    _show(arguments, {"rollout": arguments.rollout, "calls": found}, calls_text(found))


def _doctor(arguments: argparse.Namespace) -> int:
    from appliance.doctor import checks

    found = checks(home())
    lines = [
        f"{'✓ ok  ' if c['ok'] else '✗ FAIL'} {c['name']:<12} {c['found']}"
        + (f"\n         remedy: {c['remedy']}" if not c["ok"] else "")
        for c in found
    ]
    _show(arguments, {"checks": found}, "\n".join(lines))
    return 0 if all(c["ok"] for c in found) else 1


def _info(arguments: argparse.Namespace) -> None:
    from appliance import views

    found = views.info(home())
    _show(arguments, found, "\n".join(f"{key:<14} {value}" for key, value in found.items()))


# ------------------------------------------------------------------ keeping


def _config(arguments: argparse.Namespace) -> None:
    overrides = _overrides(arguments)
    config = resolve(arguments.toml, overrides)
    origin = sources(arguments.toml, overrides) if arguments.sources else {}
    rows = [
        {"key": k, "value": v, "meaning": m} | ({"source": origin[k]} if origin else {}) for k, v, m in leaves(config)
    ]
    lines = [f"{r['key']:<26} = {json.dumps(r['value']):<22} {_origin(r)}{r['meaning']}" for r in rows]
    _show(arguments, {"keys": rows}, "\n".join(lines))


def _images(arguments: argparse.Namespace) -> None:
    from appliance import views

    if arguments.action == "build":
        views.build_images(home(), arguments.names, lambda line: _event(arguments, {"part": "images", "message": line}))
    found = views.images(home())
    lines = [f"{'✓' if i['present'] else '✗ missing'} {i['name']:<16} {i['ref']}" for i in found]
    _show(arguments, {"images": found}, "\n".join(lines))


def _tasks(arguments: argparse.Namespace) -> None:
    from appliance.tasks import load_pack

    pack = load_pack(RunConfig(tasks={"pack": arguments.pack}).pack_path)
    rows = [{"name": t.name, "family": t.family, "split": t.split, "instruction": t.instruction} for t in pack.tasks]
    _show(
        arguments,
        {"pack": pack.name, "tasks": rows},
        "\n".join(f"{r['name']:<24} {r['split']:<9} {r['instruction']}" for r in rows),
    )


def _tui(arguments: argparse.Namespace) -> None:
    from tui.app import run

    def start_demo() -> None:
        from appliance import running

        detach(running.create(home(), resolve(DEMO)))

    run(home(), arguments.readonly, start_demo)


# ------------------------------------------------------------------ printing


def _origin(row: dict[str, Any]) -> str:
    return f"[{row['source']}] " if "source" in row else ""


def _show(arguments: argparse.Namespace, found: object, text: str) -> None:
    print(json.dumps(found, ensure_ascii=False) if arguments.json else text, flush=True)


def _event(arguments: argparse.Namespace, event: dict[str, Any]) -> None:
    if arguments.json:
        print(json.dumps(event, ensure_ascii=False), flush=True)
        return
    at = time.strftime("%H:%M:%S", time.localtime(event.get("at", time.time())))
    level = event.get("level", "info")
    print(f"{at}  {event['part']:<10} {'' if level == 'info' else level + ': '}{event['message']}", flush=True)


def _complain(error: CorralError, arguments: argparse.Namespace) -> None:
    remedy = error.remedy if isinstance(error, ApplianceError) else ""
    if arguments.json:
        print(json.dumps({"error": error.message, "remedy": remedy}), flush=True)
    else:
        print(f"corral: {error}", file=sys.stderr)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
