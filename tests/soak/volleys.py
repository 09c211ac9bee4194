"""kill -9 over all five kinds of process of training runs: supervisor, engine, trainer, Podman service, monitors.

    python -m tests.soak.volleys FOLDER [--kills 200] [--most-s 600] [--seed 0]

Kills come in volleys; between two volleys the run must show that it goes on: a rollout graded or a version made. How
often each kind is killed is set beforehand, since an engine takes longer to come back than ten sandboxes. After
`--most-s` seconds the run is ended with Ctrl-C twice, nothing may be left, and the same command goes on another time;
when all kills were made, the last run goes on to its end. FOLDER/chaos.json has the promised keys, after each part for
all parts so far.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from appliance.errors import CorralError
from appliance.record.store import Store
from tests.soak.chaos import Chaos, is_clean, prepared

SHARES = {"conmon": 0.4, "service": 0.3, "supervisor": 0.1, "engine": 0.1, "trainer": 0.1}
VOLLEY = 12
PAUSE_S = (0.2, 2.5)
WAIT_S = 25.0
"""How long a volley waits for one of the processes it still has to kill."""
LULL_S = 120.0
MOST_FAILURES = 3
"""By when the run must have gone on after a volley; it does so much sooner unless it cannot."""


@dataclass
class Volleys:
    """A drill in parts. `kills`: how many in all; what the parts before this one found is read from the folder."""

    chaos: Chaos
    kills: int
    seconds: float = 0.0
    turns: int = 0
    volleys: int = 0
    stuck: int = 0
    left: list[str] = field(default_factory=list)
    failures: int = 0
    killed_before: int = -1

    @property
    def file(self) -> Path:
        """Where a part leaves what the next one needs."""
        return self.chaos.folder / "volleys.json"

    def load(self) -> None:
        """Takes up what earlier parts found."""
        if not self.file.exists():
            return
        was = json.loads(self.file.read_text())
        chaos = self.chaos
        chaos.by_process, chaos.batches = Counter(was["by_process"]), was["batches"]
        chaos.lost, chaos.repeated = set(was["lost"]), set(was["repeated"])
        chaos.calls = {int(number): digest for number, digest in was["calls"].items()}
        chaos.graded = {int(number): (attempt, reward) for number, (attempt, reward) in was["graded"].items()}
        chaos.seen = {(pid, started_at) for pid, started_at in was["seen"]}
        chaos.given_up = set(was.get("given_up", []))
        self.seconds, self.turns, self.volleys = was["seconds"], was["turns"], was["volleys"]
        self.stuck, self.left = was["stuck"], was["left"]

    def save(self) -> None:
        """Leaves all that for the next part."""
        chaos = self.chaos
        now = {
            "by_process": chaos.by_process, "batches": chaos.batches, "lost": sorted(chaos.lost),
            "repeated": sorted(chaos.repeated), "calls": chaos.calls, "graded": chaos.graded,
            "seen": sorted(chaos.seen), "seconds": self.seconds, "turns": self.turns, "volleys": self.volleys,
            "stuck": self.stuck, "left": self.left, "given_up": sorted(chaos.given_up),
        }  # fmt: skip
        self.file.write_text(json.dumps(now), encoding="utf-8")

    def missing(self) -> list[str]:
        """The kinds still to be killed, each as often as it is."""
        wanted = {kind: round(self.kills * share) for kind, share in SHARES.items()}
        wanted["conmon"] += self.kills - sum(wanted.values())
        return [kind for kind, count in wanted.items() for _ in range(count - self.chaos.by_process[kind])]

    def part(self, chance: random.Random, most_s: float) -> bool:
        """Volleys until all kills were made or so many seconds are over; whether all were made."""
        began = time.monotonic()
        self.turns += 1
        self.alive()
        while self.missing() and time.monotonic() - began < most_s:
            self.volley(chance)
            self.volleys += 1
            if not self.goes_on():
                self.stuck += 1
        is_done = not self.missing()
        if is_done:
            self.chaos.finish()
        else:
            self.chaos.leave()
        self.chaos.note()
        self.left += self.chaos.left()
        self.seconds += time.monotonic() - began
        self.save()
        return is_done

    def alive(self) -> None:
        """Sees that a supervisor runs: the next run when one is done, the same one after anything else."""
        process, kills = self.chaos.process, sum(self.chaos.by_process.values())
        code = process.poll() if process is not None else 0
        if code is None:
            return
        failed_by_itself = code != 0 and kills == self.killed_before
        self.failures = self.failures + 1 if failed_by_itself else 0
        if self.failures > MOST_FAILURES:
            raise RuntimeError(f"the run fails of itself, see {self.chaos.folder}/console.log")
        if failed_by_itself:
            self.chaos.give_up()
        elif code == 0:
            self.chaos.batches += 1
        self.killed_before = kills
        self.chaos.start()

    def volley(self, chance: random.Random) -> None:
        """A few kills of whatever lives; given up when what is left to kill does not live for long."""
        missing = self.missing()
        kinds = chance.sample(missing, min(VOLLEY, len(missing)))
        waited_since = time.monotonic()
        while kinds and time.monotonic() - waited_since < WAIT_S:
            time.sleep(chance.uniform(*PAUSE_S))
            self.alive()
            if kind := self._kill(chance, kinds):
                kinds.remove(kind)
                waited_since = time.monotonic()

    def _kill(self, chance: random.Random, kinds: list[str]) -> str:
        """One kill: rare processes while they live, and the supervisor, whose end ends the others, after them."""
        rare = [kind for kind in kinds if kind in ("engine", "trainer")]
        common = [kind for kind in kinds if kind != "supervisor"]
        if rare and (kind := self.chaos.kill_one(chance, rare)):
            return kind
        return self.chaos.kill_one(chance, common or kinds)

    def goes_on(self) -> bool:
        """Waits until the run has got further; whether it did."""
        before, deadline = self.progress(), time.monotonic() + LULL_S
        while time.monotonic() < deadline:
            self.alive()
            if self.progress() > before:
                return True
            time.sleep(0.5)
        return False

    def progress(self) -> tuple[int, int, int]:
        """Runs done, policy versions made, rollouts with an outcome, over all runs."""
        with suppress(CorralError):
            store = Store.open(self.chaos.folder / "record.db", readonly=True)
            try:
                (row,) = store.rows(
                    "SELECT (SELECT count(*) FROM runs WHERE state='done'), (SELECT count(*) FROM versions),"
                    " (SELECT count(*) FROM rollouts WHERE state IN ('graded', 'failed'))"
                )
                return int(row[0]), int(row[1]), int(row[2])
            finally:
                store.close()
        return 0, 0, 0

    def verdict(self) -> dict[str, Any]:
        """The promised object; also written to FOLDER/chaos.json."""
        found = self.chaos.verdict()
        found["left_behind"] += len(self.left)
        found["named"] += self.left
        found |= {
            "volleys": self.volleys,
            "without_progress": self.stuck,
            "runs": self.chaos.batches,
            "runs_given_up": len(self.chaos.given_up),
        }
        found |= {"turns": self.turns, "minutes": round(self.seconds / 60, 1), "missing": len(self.missing())}
        (self.chaos.folder / "chaos.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        return found


def drill(folder: Path, kills: int, seed: int, most_s: float, steps: int = 10) -> dict[str, Any] | None:
    """One part of the drill in `folder`; the verdict when it was the last, else None."""
    volleys = Volleys(Chaos(prepared(folder, ["pi"]), "train", seed, steps=steps), kills)
    volleys.load()
    try:
        is_done = volleys.part(random.Random(f"{seed} {volleys.turns}"), most_s)
    finally:
        volleys.chaos.end()
        volleys.save()
    found = volleys.verdict()
    return found if is_done else None


def main(arguments: Sequence[str]) -> int:
    """One part: 0 when the drill is done and clean, 1 when it is not clean, 3 when there is more to do."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most-s", type=float, default=float("inf"), help="end this part after so many seconds")
    asked = parser.parse_args(arguments)
    found = drill(asked.folder, asked.kills, asked.seed, asked.most_s)
    if found is None:
        print(f"not done yet; the same command goes on: {(asked.folder / 'volleys.json')}")
        return 3
    print(json.dumps(found, indent=1))
    return 0 if is_clean(found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
