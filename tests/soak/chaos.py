"""kill -9 at random, again and again, over a run of real parts; then what the record and the machine say of it.

    python tests/soak/chaos.py FOLDER --kills 200 [--seed 0] [--most-s S]

Rollouts of the small scripted harness; victims are the supervisor, the Podman service and the sandboxes' monitors.
`volleys.py` is the drill over all five kinds of process, the engine and the trainer too, in training runs.
FOLDER/chaos.json gets the promised keys. Before each kill it notes what is committed: all of it must be there at the
end, unchanged. Ends with 0 when nothing was lost, repeated or left, and what was trained can be replayed bit by bit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import psutil

from appliance.config.runconfig import CHECKOUT, home, podman_home
from appliance.errors import CorralError
from appliance.harness.catalog import Shelf
from appliance.operate.record_check import check
from appliance.record.store import Store
from appliance.report.replay import replay
from appliance.sandbox.images.build import build_images
from appliance.sandbox.podman import Podman
from appliance.sandbox.service import runtime_containers
from appliance.sandbox.settings import PodmanPlaces, owner_of
from appliance.system.cgroup import ROOT, ids_under
from appliance.tasks.generated import tasks_folder
from appliance.types import RolloutState, RunState

DEADLINE_S = 900.0
ORDERLY_END_S = 90.0
LONGEST_PAUSE_S = 2.5
REMOVAL_S = 10.0
TRAIN = {
    "harnesses": "pi", "coldstart.rollouts": 4, "coldstart.steps": 30, "train.groups": 2, "train.group_size": 2,
    "evaluation.enabled": "false", "rollout.parallel": 4, "rollout.timeout_s": 240, "rollout.grade_timeout_s": 120,
    "rollout.retries": 8,
}  # fmt: skip
WORDS = {"service": "system service", "engine": "vllm", "trainer": "train.trainer"}
"""What the command line of each kind of child holds."""
DRILLS = ("soak/chaos.py", "soak.volleys")
"""The command lines of the drills themselves."""


@dataclass
class Chaos:
    """One drill in `folder`. `run`: `scripted`, or `train` with an engine and a trainer; `steps`: of each such run."""

    folder: Path
    run: str
    seed: int
    by_process: Counter[str] = field(default_factory=Counter)
    calls: dict[int, str] = field(default_factory=dict)
    graded: dict[int, tuple[int, float]] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)
    repeated: set[int] = field(default_factory=set)
    given_up: set[str] = field(default_factory=set)
    """Runs that failed of themselves: of taught rollouts that all failed, for one, nothing can be learnt."""
    batches: int = 0
    batch: int = 24
    steps: int = 10
    process: subprocess.Popen[bytes] | None = None
    seen: set[tuple[int, float]] = field(default_factory=set)
    """Process id and start of every process that the runs had when one of them was killed."""

    # ------------------------------------------------------------------ the run

    def start(self) -> None:
        """The supervisor, or the next one when the last ended: it goes on with what is unfinished."""
        if self.run == "scripted":
            count = str(self.batches * self.batch)
            words = ["-m", "appliance.bench.scripted_run", str(self.folder), count, "4"]
        elif run_id := self._unfinished():
            words = ["-m", "appliance.cli", "resume", run_id, "--plain"]
        else:
            own_settings = {"train.steps": self.steps, "seed": self.seed + self.batches, "tasks.pack": self._pack()}
            settings = [w for key, value in (TRAIN | own_settings).items() for w in ("--set", f"{key}={value}")]
            words = ["-m", "appliance.cli", "train", str(CHECKOUT / "data" / "demo.toml"), *settings]
        own = {"CORRAL_HOME": str(self.folder), "CORRAL_PODMAN_HOME": str(podman_home(home()))}
        with (self.folder / "console.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *words], env=os.environ | own, stdout=log, stderr=log, start_new_session=True
            )

    def _pack(self) -> Path:
        """The demo's tasks with time enough for a machine that has more to do than this."""
        pack = self.folder / "pack"
        if not pack.exists():
            shutil.copytree(tasks_folder(CHECKOUT / "data" / "pocket"), pack)
            for file in pack.rglob("task.toml"):
                text = file.read_text(encoding="utf-8")
                file.write_text(re.sub(r"timeout_sec = .*", "timeout_sec = 600.0", text), encoding="utf-8")
        return pack

    def _unfinished(self) -> str:
        """The newest run that is not done and was not given up; '' without one, or before there is a record."""
        tries = 10 if (self.folder / "record.db").exists() else 0
        for _ in range(tries):  # one that is busy, or was killed in its making, is no reason for another run
            with suppress(CorralError):
                store = Store.open(self.folder / "record.db", readonly=True)
                try:
                    open_runs = (run.id for run in store.runs() if run.state is not RunState.DONE)
                    return next((run_id for run_id in open_runs if run_id not in self.given_up), "")
                finally:
                    store.close()
            time.sleep(1.0)
        return ""

    def give_up(self) -> None:
        """The next start begins another run instead of the one that failed."""
        self.given_up.add(self._unfinished())
        self.batches += 1

    def end(self) -> None:
        """Ends what this drill started."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def leave(self) -> None:
        """Ends the run as a person would who is in a hurry: Ctrl-C twice. Another start goes on with it."""
        assert self.process is not None
        deadline = time.monotonic() + ORDERLY_END_S
        while self.process.poll() is None and time.monotonic() < deadline:
            self.process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(2.0)
        self.end()

    # ------------------------------------------------------------------ kills

    def victims(self) -> dict[str, list[int]]:
        """Kind → processes of this run that live now."""
        assert self.process is not None
        found: dict[str, list[int]] = {"supervisor": [self.process.pid], "service": [], "engine": [], "trainer": []}
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    words = " ".join(child.cmdline()).lower()
                    self.seen.add((child.pid, child.create_time()))
                    if "system/guard.py" in words:
                        continue
                    for kind, word in WORDS.items():
                        if word in words:
                            found[kind].append(child.pid)
        found["conmon"] = monitors(self.folder)
        return {kind: pids for kind, pids in found.items() if pids}

    def kill_one(self, chance: random.Random, kinds: Sequence[str] = ()) -> str:
        """Notes what is committed, then kill -9 of one process of a random kind that lives; '' when none does.

        `kinds`: from which to choose, a kind as often as it stands there; all alike without any.
        """
        assert self.process is not None
        if self.process.poll() is not None:
            return ""
        self.note()
        there = self.victims()
        possible = [kind for kind in kinds or sorted(there) if kind in there]
        if not possible:
            return ""
        kind = chance.choice(possible)
        pid = chance.choice(there[kind])
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            return ""
        if kind == "supervisor":
            self.process.wait()
        self.by_process[kind] += 1
        return kind

    # ------------------------------------------------------------------ what must not change

    def note(self) -> None:
        """Compares what is committed with what was before, and keeps it for the next comparison."""
        with suppress(CorralError):  # no record yet
            store = Store.open(self.folder / "record.db", readonly=True)
            try:
                self._compare(store)
            finally:
                store.close()

    def _compare(self, store: Store) -> None:
        rows = store.rows(
            "SELECT c.id, c.rollout_id, c.attempt, c.sequence, c.stop_reason, c.policy_version, n.ids, n.logprobs"
            " FROM calls c LEFT JOIN nodes n ON n.id=c.leaf"
        )
        now = {row["id"]: hashlib.sha256(repr(tuple(row)).encode()).hexdigest() for row in rows}
        self.lost |= {number for number, digest in self.calls.items() if now.get(number) != digest}
        self.calls = now
        graded = {
            row["id"]: (row["attempt"], row["reward"])
            for row in store.rows("SELECT id, attempt, reward FROM rollouts WHERE state=?", RolloutState.GRADED)
        }
        self.repeated |= {number for number, outcome in self.graded.items() if graded.get(number) != outcome}
        self.graded = graded

    def finish(self) -> None:
        """Lets the last batch come to its end without further kills; RuntimeError when it does not."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            assert self.process is not None
            with suppress(subprocess.TimeoutExpired):
                if self.process.wait(max(1.0, deadline - time.monotonic())) == 0:
                    self.note()
                    return
                self.start()  # it gave up after too many kills, as it should; the record goes on
        raise RuntimeError(f"the run did not end; see {self.folder}/console.log")

    def verdict(self) -> dict[str, Any]:
        """The promised object, and beside it what `corral db check` and the count of rollouts say."""
        store = Store.open(self.folder / "record.db", readonly=True)
        try:
            findings = check(store)
            runs = [run.id for run in store.runs() if any(s == "done" for _, s, _ in store.steps(run.id))]
            replays = [replay(store, run_id) for run_id in runs]
            states = Counter(row["state"] for row in store.rows("SELECT state FROM rollouts"))
        finally:
            store.close()
        left = self.left()
        return {
            "kills": sum(self.by_process.values()),
            "by_process": dict(sorted(self.by_process.items())),
            "calls_lost": len(self.lost),
            "graded_twice": len(self.repeated),
            "left_behind": len(left),
            "replay_identical": all(not found.differences for found in replays) if replays else None,
            "record_sound": findings.is_sound,
            "rollouts": dict(states),
            "steps_replayed": sum(found.steps for found in replays),
            "named": left + [text for broken in findings.broken.values() for text in broken],
            "seed": self.seed,
        }

    def left(self) -> list[str]:
        """What outlived the runs: by the folder's name, and every process that was ever seen to belong to them."""
        left = anyio.run(left_behind, self.folder)
        for pid, started_at in self.seen:
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                if process.create_time() == started_at and process.status() != psutil.STATUS_ZOMBIE:
                    left.append(f"process {pid}: {' '.join(process.cmdline())[:200]}")
        return left


def drill(folder: Path, kills: int, seed: int, most_s: float = float("inf")) -> dict[str, Any]:
    """Kills until there were so many, or so many seconds are over; the verdict, also in FOLDER/chaos.json."""
    folder = prepared(folder, [])
    chance, chaos, began = random.Random(seed), Chaos(folder, "scripted", seed), time.monotonic()
    try:
        chaos.batches = 1
        chaos.start()
        while sum(chaos.by_process.values()) < kills and time.monotonic() - began < most_s:
            time.sleep(chance.uniform(0.2, LONGEST_PAUSE_S))
            assert chaos.process is not None
            if chaos.process.poll() == 0:
                chaos.batches += 1
            chaos.kill_one(chance)
            if chaos.process.poll() is not None:
                chaos.start()
        chaos.finish()
    finally:
        chaos.end()
    found = chaos.verdict()
    (folder / "chaos.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def prepared(folder: Path, harnesses: Sequence[str]) -> Path:
    """The folder, made and open to the sandboxes' users, with the images that are needed."""
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o711)
    shelf = Shelf.of(home())
    build_images(podman_home(home()), [shelf.get(name) for name in harnesses], lambda line: None)
    return folder


def is_clean(found: dict[str, Any]) -> bool:
    """Whether a verdict is what must be reached."""
    nothing = not (found["calls_lost"] or found["graded_twice"] or found["left_behind"])
    return bool(nothing and found["record_sound"] and found["replay_identical"] is not False)


def monitors(folder: Path) -> list[int]:
    """The monitors of this record's sandboxes, told by their container's name."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            line = process.cmdline()
            if line and line[0].endswith("conmon") and any(owner_of(folder) in word for word in line):
                found.append(process.pid)
    return found


async def left_behind(folder: Path) -> list[str]:
    """Sandboxes, folders, file systems, cgroups and processes that outlived the run."""
    places = PodmanPlaces.under(podman_home(home()))
    async with Podman(podman_home(home())) as podman:
        left = await podman.list({"corral.owner": owner_of(folder)})
        # Other records may share this storage: what they start or remove between the two looks is nobody's leftover.
        with_cgroups = ids_under(ROOT, places.cgroup)
        listed = {c.id for c in runtime_containers(places.storage)}
        known = {entry["Id"] for entry in await podman.request("GET", "/containers/json", {"all": "true"})}
        await anyio.sleep(REMOVAL_S)
        left += [f"cgroup of {name}" for name in (with_cgroups - known) & ids_under(ROOT, places.cgroup)]
        forgotten = sorted((listed - known) & {c.id for c in runtime_containers(places.storage)})
    left += [name for name in forgotten if is_of(folder, places.storage, name)]
    left += [str(path) for path in (folder / "sandboxes").glob("*")]
    left += [line for line in Path("/proc/mounts").read_text().splitlines() if str(folder) in line]
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            words = process.cmdline()
            is_ours = process.pid == os.getpid() or any(name in " ".join(words) for name in DRILLS)
            if not is_ours and any(str(folder) in word or owner_of(folder) in word for word in words[1:]):
                left.append(" ".join(words)[:200])
    return left


def is_of(folder: Path, storage: Path, container: str) -> bool:
    """Whether a container that only the OCI runtime still knows mounts something of this record's."""
    with suppress(OSError):
        return str(folder) in (storage / "overlay-containers" / container / "userdata" / "config.json").read_text()
    return False


def main(arguments: Sequence[str]) -> int:
    """The long form."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most-s", type=float, default=float("inf"), help="stop killing after so many seconds")
    asked = parser.parse_args(arguments)
    found = drill(asked.folder, asked.kills, asked.seed, asked.most_s)
    print(json.dumps(found, indent=1))
    return 0 if is_clean(found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
