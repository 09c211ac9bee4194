"""What can be done from the UI, as data: what an act needs, what it asks first, and what it does. No Textual.

An act either leaves a command in the record for the supervisor, or runs the command of the command line that does the
same; nothing here can do what `corral` in a shell could not.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from appliance.errors import ApplianceError
from appliance.record.store import Store
from appliance.types import RunState
from tui.pages.new_run import written
from tui.pages.snapshot import RunLine
from tui.text import plain

DEADLINE_S = 600


@dataclass(frozen=True, slots=True)
class Site:
    """What an act is done to. `others_live`: a supervisor works, on whichever run; `argument`: ids, a path, a name."""

    home: Path
    run: RunLine | None
    others_live: bool
    argument: str = ""

    @property
    def run_id(self) -> str:
        """The run's id; only after `needs` has found a run."""
        assert self.run is not None
        return self.run.id


@dataclass(frozen=True, slots=True)
class Act:
    """Something to do. `question` empty: it is done at once. `missing` says why it cannot be done now, or ``.

    `asks`: what is asked for when no argument is given, with a first suggestion.
    """

    name: str
    text: str
    missing: Callable[[Site], str]
    do: Callable[[Site], str]
    question: str = ""
    asks: tuple[str, str] | None = None
    key: str = ""


# ------------------------------------------------------------------ what an act needs


def _nothing(site: Site) -> str:
    return ""


def _live(site: Site) -> str:
    run = site.run
    if run is not None and run.is_live:
        return ""
    return f"the run {'lost its supervisor' if run and run.word == 'lost' else f'is {run.word}' if run else 'is gone'}"


def _idle_record(site: Site) -> str:
    if site.run is None:
        return "there is no run"
    return "a supervisor works on this record: stop it first" if site.others_live else ""


def _resumable(site: Site) -> str:
    if site.run is not None and site.run.word == RunState.DONE:
        return "the run is done"
    return _idle_record(site)


def _ended(site: Site) -> str:
    if site.run is None:
        return "there is no run"
    return "the run is still going: stop it first" if site.run.is_live else ""


def _a_run(site: Site) -> str:
    return "" if site.run is not None else "there is no run"


def _free(site: Site) -> str:
    return "a supervisor works on this record already" if site.others_live else ""


def _rollout(site: Site) -> str:
    if not all(part.isdigit() for part in site.argument.split()) or not site.argument:
        return "put the cursor on a rollout in view 2, or mark some with space"
    return _live(site)


# ------------------------------------------------------------------ what an act does


def _command(kind: str, told: str) -> Callable[[Site], str]:
    def do(site: Site) -> str:
        store = Store.open(site.home / "record.db")
        try:
            for argument in site.argument.split() or [""]:
                store.command(site.run_id, kind, argument)
        finally:
            store.close()
        return told.format(site.argument)

    return do


def _stop_now(site: Site) -> str:
    return _command("stop", "asked the supervisor to end at once")(Site(site.home, site.run, site.others_live, "now"))


def _stop(site: Site) -> str:
    return _command("stop", "asked the supervisor to stop; rollouts under way end first")(
        Site(site.home, site.run, site.others_live)
    )


def launched(home: Path, words: Sequence[str], log: Path) -> None:
    """Starts a command of Corral that outlives the UI; what it says goes to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        process = subprocess.Popen(
            _argv(words), env=_environment(home), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    threading.Thread(target=process.wait, daemon=True).start()  # so that it leaves no zombie when it ends before us


def told(home: Path, words: Sequence[str]) -> str:
    """Runs a command of Corral to its end and gives what it said; ApplianceError when it failed."""
    try:
        done = subprocess.run(
            _argv(words), env=_environment(home), capture_output=True, text=True, check=False, timeout=DEADLINE_S
        )
    except subprocess.TimeoutExpired as error:
        raise ApplianceError(f"corral {' '.join(words)}: not done after {DEADLINE_S} s", "try it in a shell") from error
    if done.returncode:
        raise ApplianceError(plain((done.stderr or done.stdout).strip()[-400:]) or f"exit code {done.returncode}")
    return plain(done.stdout.strip()[-400:])


def _argv(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "appliance.cli", *words, "--plain"]


def _environment(home: Path) -> dict[str, str]:
    return os.environ | {"CORRAL_HOME": str(home), "PYTHONUNBUFFERED": "1"}


def _resume(site: Site) -> str:
    log = site.home / "runs" / site.run_id / "supervisor.log"
    launched(site.home, ["resume", site.run_id], log)
    return f"going on with {site.run_id}; its supervisor writes {log}"


def _evaluate(site: Site) -> str:
    log = site.home / "runs" / site.run_id / "evaluate.log"
    launched(site.home, ["eval", site.run_id], log)
    return f"evaluating the newest version on held-out tasks; see checkpoints, and {log}"


def _start(site: Site) -> str:
    path, *pairs = shlex.split(site.argument)
    if not Path(path).expanduser().is_file():
        raise ApplianceError(f"{path}: no such file", "name a run's TOML, for example data/demo.toml")
    words = ["train", str(Path(path).expanduser()), "--detach"]
    return told(site.home, [*words, *(word for pair in pairs for word in ("--set", pair))])


def _start_form(site: Site) -> str:
    path = written(site.home, site.argument)
    words = ["train", str(path), "--detach"]
    return f"{told(site.home, words)}   its TOML is {path}"


def _export(site: Site) -> str:
    target = _fresh(site, "messages.jsonl")
    return told(site.home, ["export", site.run_id, "--format", "messages", "--to", str(target)])


def _checkpoint(site: Site) -> str:
    return told(site.home, ["export", "adapter", site.run_id, "--to", str(_fresh(site, "adapter"))])


def _fresh(site: Site, name: str) -> Path:
    folder = site.home / "runs" / site.run_id / "exports"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{time.strftime('%m%d-%H%M%S')}-{name}"


def _prune(kind: str) -> Callable[[Site], str]:
    return lambda site: told(site.home, ["db", "prune", site.run_id, f"--{kind}"])


def _end_sandbox(site: Site) -> str:
    return told(site.home, ["sandboxes", "stop", site.argument])


def _orphans(site: Site) -> str:
    return told(site.home, ["sandboxes", "prune"])


ACTS: tuple[Act, ...] = (
    Act("stop", "drain: start nothing new, finish what is under way", _live, _stop,
        "Stop this run?\n{name} ({id}) starts no new rollouts, finishes those under way\n"
        "and keeps all it has recorded. `corral resume` goes on from there.", key="s"),
    Act("stop now", "end at once; what is under way is made again on resume", _live, _stop_now,
        "End this run at once?\nRollouts under way in {name} are thrown away and made again\nwhen it is resumed."),
    Act("pause", "start no new rollouts until it is told to go on", _live,
        _command("pause", "asked the supervisor to pause; rollouts under way end")),
    Act("unpause", "go on after a pause", _live, _command("unpause", "asked the supervisor to go on")),
    Act("resume", "go on with a stopped, failed or lost run", _resumable, _resume, key="r"),
    Act("kill", "end a rollout as failed; its group goes on without it", _rollout,
        _command("kill", "asked the supervisor to end rollout {}"),
        "Kill rollout {argument}?\nIt counts as failed (harness:killed), has no reward\nand takes no part in training.",
        key="x"),
    Act("retry", "make a rollout again: one under way, or one that failed", _rollout,
        _command("retry", "asked the supervisor to make rollout {} again"), key="r"),
    Act("evaluate", "measure the newest version on held-out tasks", _idle_record, _evaluate),
    Act("checkpoint", "keep a copy of the newest version now", _a_run, _checkpoint),
    Act("export", "write the run's conversations as JSONL", _a_run, _export),
    Act("prune bodies", "take the raw bodies of an ended run out of the record", _ended, _prune("bodies"),
        "Take out raw bodies?\nRequests and responses of {name} ({id}) are deleted from the record.\n"
        "Tokens, rewards and metrics stay."),
    Act("prune run", "take an ended run out of the record", _ended, _prune("all"),
        "Take out the whole run?\nEverything the record holds of {name} ({id}) is deleted.\n"
        "Its folder under runs/ stays."),
    Act("new run", "fill in a form: it makes a TOML and starts it", _free, _start_form, key="n"),
    Act("start", "a run from a TOML, with settings if you like", _free, _start,
        asks=("TOML of the run, then settings: train.steps=4 seed=1", "data/demo.toml")),
    Act("remove orphans", "remove sandboxes that nobody owns", _nothing, _orphans,
        "Remove orphans?\nSandboxes whose supervisor is gone are removed with what is in them."),
)  # fmt: skip
HIDDEN: tuple[Act, ...] = (
    Act("end sandbox", "end one sandbox", _nothing, _end_sandbox,
        "End this sandbox?\n{argument}\nIts rollout then ends as its harness does."),
)  # fmt: skip
BY_NAME = {act.name: act for act in (*ACTS, *HIDDEN)}
