"""Commands that measure policies: eval and transfer."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from appliance.commands.output import command_of, overrides_of, show, show_event
from appliance.config.runconfig import home
from appliance.errors import ApplianceError


def add(commands: Any) -> None:
    """Adds eval and transfer."""
    command = command_of(
        commands, "eval", _eval, "Pass@1 of policies on held-out tasks, for each pack and harness", "RUN@0 RUN"
    )
    command.add_argument("policy", nargs="+", help="RUN or RUN@VERSION; later ones are compared with the first")
    command.add_argument(
        "--pack", action="append", default=[], help="name under data/ or a folder; the run's by default"
    )
    command.add_argument("--harness", action="append", default=[], help="the run's own by default")
    command.add_argument("--attempts", type=int, default=0, help="attempts a task; 2 and more give pass@k and pass^k")
    command.add_argument("--max-tasks", type=int, default=0, help="tasks a pack, drawn by the run's seed")
    command.add_argument(
        "--family", action="append", default=[], help="family of tasks; the run's by default, all in another pack"
    )
    command.add_argument("--split", default="", help="split of the tasks; the run's held-out split by default")
    command.add_argument("--out", type=Path, help="also write eval.json, eval.md and eval.svg into this folder")
    command = command_of(
        commands, "transfer", _transfer, "train in each harness and in the mix, test in every harness", "data/demo.toml"
    )
    command.add_argument("toml", type=Path, help="the run's TOML, for example data/demo.toml")
    command.add_argument(
        "--train-in",
        action="append",
        default=[],
        metavar="A[+B…]",
        help="harnesses of one training; each and all by default",
    )
    command.add_argument("--seeds", default="0", help="comma-separated seeds, pooled in the matrix")
    command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key")
    command.add_argument("--out", type=Path, help="also write transfer.json, transfer.md and transfer.svg here")


def _eval(arguments: argparse.Namespace) -> None:
    from appliance.report.charts import interval_bars_svg
    from appliance.runs import evaluate as e

    for option, value in (("--attempts", arguments.attempts), ("--max-tasks", arguments.max_tasks)):
        if value < 0:
            raise ApplianceError(f"{option} is {value}", "name 1 or more, or leave it out")
    packs, harnesses, families = (tuple(x) for x in (arguments.pack, arguments.harness, arguments.family))
    asked = e.Asked(packs, harnesses, arguments.attempts, arguments.split, arguments.max_tasks, families)
    policies = [e.Policy.parse(text) for text in arguments.policy]
    found = e.evaluate(home(), policies, asked, lambda event: show_event(arguments, event))
    text = e.evaluation_markdown(found)
    if arguments.out:
        bars = [(f"{r['policy']} {r['harness']} {r['pack']}", r["pass_at_1"], r["interval"]) for r in found["rows"]]
        paths = e.write_all(arguments.out, "eval", found, text, interval_bars_svg(bars, "Pass@1 with 95 % intervals"))
        text += "\n".join(map(str, paths))
    show(arguments, found, text)


def _transfer(arguments: argparse.Namespace) -> None:
    from appliance.config.runconfig import resolve
    from appliance.report.charts import heat_svg
    from appliance.runs import evaluate as e

    overrides = overrides_of(arguments)
    own = tuple(resolve(arguments.toml, overrides).harnesses)
    mixes = tuple(tuple(text.split("+")) for text in arguments.train_in) or (*((h,) for h in own), own)
    if not all(seed.strip().isdigit() for seed in arguments.seeds.split(",")):
        raise ApplianceError(f"--seeds is {arguments.seeds!r}", "write whole numbers with commas, for example 0,1,2")
    seeds = tuple(dict.fromkeys(int(seed) for seed in arguments.seeds.split(",")))
    plan = e.TransferPlan(arguments.toml, overrides, mixes, seeds)
    found = e.transfer(home(), plan, lambda event: show_event(arguments, event))
    text = e.transfer_markdown(found)
    if arguments.out:
        cells = {(row, h): cell["pass_at_1"] for row, columns in found.items() for h, cell in columns.items()}
        picture = heat_svg(list(found), plan.harnesses, cells, f"Pass@1 in %, seeds {arguments.seeds}")
        text += "\n".join(map(str, e.write_all(arguments.out, "transfer", found, text, picture)))
    show(arguments, found, text)
