"""Commands that read the record or the machine and change nothing."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from appliance.commands.output import command_of, show
from appliance.commands.progress import progress
from appliance.config.runconfig import home


def add(commands: Any) -> None:
    """Adds status, report, calls, doctor and info."""
    command = command_of(commands, "status", _status, "what runs now: phase, steps, rollouts by state, sandboxes")
    command.add_argument("run", nargs="?", help="id of the run; the newest by default")
    command = command_of(commands, "report", _report, "the closing table of a run")
    command.add_argument("run", nargs="?", help="id of the run; the newest by default")
    command.epilog = "example: corral report demo-1129-101500-0a1b --html run.html"
    command.add_argument("--html", type=Path, metavar="FILE", help="write one self-contained page that opens offline")
    command = command_of(commands, "calls", _calls, "the calls of one rollout, as text", "42")
    command.add_argument("rollout", type=int, help="number of the rollout")
    command = command_of(commands, "doctor", _doctor, "check this machine; every failure with its remedy")
    command.epilog = "example: corral doctor --fix · corral doctor --report corral-report.json"
    command.add_argument("--fix", action="store_true", help="first mend what can be mended without asking")
    command.add_argument("--report", type=Path, metavar="FILE", help="write a file for a bug report, without secrets")
    command_of(commands, "info", _info, "versions, paths, and how large each part is")


def _status(arguments: argparse.Namespace) -> None:
    from appliance.report.status import status, status_text

    found = status(home(), arguments.run)
    show(arguments, found, status_text(found))


def _report(arguments: argparse.Namespace) -> None:
    from appliance.record.access import newest, reading
    from appliance.report.summary import curve_lines, summary, table

    with reading(home()) as store:
        run = store.run(arguments.run) if arguments.run else newest(store)
        found = summary(store, run.id)
        lines = [table(found), *curve_lines(store.rollouts(run.id))]
        if arguments.html:
            from appliance.report.run_html import write_report

            with progress(arguments, "report --html"):
                write_report(home(), store, run.id, arguments.html)
            found, lines = found | {"html": str(arguments.html)}, [*lines, str(arguments.html)]
    show(arguments, found, "\n".join(lines))


def _calls(arguments: argparse.Namespace) -> None:
    from appliance.record.access import reading
    from appliance.report.transcript import calls, calls_text

    with reading(home()) as store:
        found = calls(store, arguments.rollout)
    show(arguments, {"rollout": arguments.rollout, "calls": found}, calls_text(found))


def _doctor(arguments: argparse.Namespace) -> int:
    from appliance.operate.doctor import checks
    from appliance.operate.mending import mend

    with progress(arguments, "doctor"):
        mended = mend(home()) if arguments.fix else []
        found = checks(home())
    lines = [f"✓ mended {what}" for what in mended]
    lines += [
        f"{'✓ ok  ' if c['ok'] else '✗ FAIL'} {c['name']:<12} {c['found']}"
        + (f"\n         remedy: {c['remedy']}" if not c["ok"] else "")
        for c in found
    ]
    if arguments.report:
        from appliance.operate.bug_report import write

        lines.append(f"report: {write(home(), found, arguments.report)}; look through it before you send it")
    show(arguments, {"checks": found} | ({"mended": mended} if arguments.fix else {}), "\n".join(lines))
    return 0 if all(c["ok"] for c in found) else 1


def _info(arguments: argparse.Namespace) -> None:
    from appliance.report.status import info, info_text

    found = info(home())
    show(arguments, found, info_text(found))
