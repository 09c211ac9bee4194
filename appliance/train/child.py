"""The trainer as a child process: it shares the record and the adapter folders with us, and nothing else.

It runs under the guard, so that it ends with the supervisor whatever happens. A trainer that dies in the middle of
a step is started again and takes the step from the last version; one that stops with a message fails the run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType

import anyio
import anyio.abc

from appliance.errors import TrainingError
from appliance.record.store import Store
from appliance.system import guard
from appliance.system.offline import SWITCHES
from appliance.system.oom import describe_exit, kernel_kills
from appliance.system.scratch import cut_log

EXPLAINED_EXIT = 3
"""Exit code of a trainer that ended with a message of its own: starting it again would not help."""
MAX_RESTARTS = 3
POLL_S = 0.1
END_S = 20.0
TAIL_BYTES = 8000
ROOT_CAUSE = re.compile(r"Root Cause.*?rank +: (?P<rank>\d+).*?exitcode +: (?P<code>-?\d+)", re.DOTALL)
"""Where torchrun names the rank that failed first."""


LEAN_HEAP = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_MMAP_MAX_": "1000000", "MALLOC_ARENA_MAX": "1"}
"""glibc's own switches: every block of 64 KiB and more is mapped alone, and so given back when it is freed."""


def is_signal(code: int) -> bool:
    """Whether an exit code says that a signal ended the process; the guard passes 128 + the signal on."""
    return code < 0 or code > 128


class TrainChild:
    """`mode` is `coldstart` (ends by itself) or `train` (serves steps until closed); `ranks` share the training;

    lean: with glibc's switches of LEAN_HEAP."""

    def __init__(self, home: Path, run_id: str, mode: str, ranks: int = 1, lean: bool = False) -> None:
        self._home = home
        self._run_id = run_id
        self._mode = mode
        self._ranks = ranks
        self._switches = SWITCHES | LEAN_HEAP if lean else SWITCHES
        self._log = home / "runs" / run_id / "trainer.log"
        self._process: anyio.abc.Process | None = None
        self._kills_before = 0

    async def __aenter__(self) -> TrainChild:
        await self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def complete(self, store: Store) -> None:
        """Runs the child to its end, again when it was killed; TrainingError with its last lines when it fails."""
        for restarts in range(MAX_RESTARTS + 1):
            code = await self._run_once()
            if not code:
                return
            if code == EXPLAINED_EXIT or restarts == MAX_RESTARTS or not is_signal(code):
                raise self._failed(code)
            store.log("error", "trainer", f"{self._mode} {self._how(code)}; started again", self._run_id)

    async def _run_once(self) -> int:
        await self._start()
        assert self._process is not None
        try:
            return await self._process.wait()
        finally:
            await self._end()

    async def finish_step(self, store: Store, step: int, deadline_s: float) -> None:
        """Returns once the record shows the step as done; restarts a trainer that was killed meanwhile."""
        with anyio.move_on_after(deadline_s) as scope:
            await self._finish_step(store, step)
        if scope.cancelled_caught:
            raise TrainingError(
                f"step {step} was not finished in {deadline_s:.0f} s", f"see {self._log}, or train.step_deadline_s"
            )

    async def _finish_step(self, store: Store, step: int) -> None:
        restarts = 0
        while not any(s == step and state == "done" for s, state, _ in store.steps(self._run_id)):
            assert self._process is not None
            code = self._process.returncode
            if code is not None:
                code, last = self._end_of(code)
                restarts += 1
                if code == EXPLAINED_EXIT or restarts > MAX_RESTARTS:
                    raise self._failed(code)
                store.log(
                    "error",
                    "trainer",
                    f"{last if self._ranks > 1 else self._how(code)}; started again ({restarts} of {MAX_RESTARTS})",
                    self._run_id,
                )
                await anyio.sleep(restarts)
                await self._start()
            await anyio.sleep(POLL_S)

    async def _start(self) -> None:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.mkdtemp(prefix="corral-trainer-")
        trainer = [sys.executable, "-m", *self._module(), self._mode, str(self._home), self._run_id]
        cut_log(self._log)
        self._kills_before = kernel_kills()
        with self._log.open("ab") as log:
            self._process = await anyio.open_process(
                [sys.executable, "-I", "-S", guard.__file__, scratch, *trainer],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | self._switches,
                start_new_session=True,
            )

    def _module(self) -> list[str]:
        """The trainer alone, or as many of it as there are ranks, under torchrun on this machine."""
        if self._ranks == 1:
            return ["appliance.train.trainer"]
        local = ["--standalone", "--local-addr", "127.0.0.1", f"--nproc-per-node={self._ranks}"]
        return ["torch.distributed.run", *local, "-m", "appliance.train.trainer"]

    async def _end(self) -> None:
        process = self._process
        if process is None or process.stdin is None:
            return
        with anyio.move_on_after(END_S, shield=True):
            await process.stdin.aclose()
            await process.wait()

    def _how(self, code: int) -> str:
        """An end in words; a signal's number is in the code."""
        return describe_exit(128 - code if code < 0 else code, self._kills_before)

    def _end_of(self, code: int) -> tuple[int, str]:
        """Exit code and last words of what ended first: torchrun itself says 1 whichever rank failed, and how."""
        try:
            last = self._log.read_bytes()[-TAIL_BYTES:].decode(errors="replace").strip()
        except OSError as error:
            return code, f"(no log: {error})"
        root = ROOT_CAUSE.search(last)
        if self._ranks == 1 or root is None:
            return code, last
        rank, code = int(root["rank"]), int(root["code"])
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        words = [line for line in last[: last.rfind("Traceback")].splitlines() if line.strip() and line[0] not in "WEI"]
        told = words[-1] if code == EXPLAINED_EXIT and words else f"rank {rank} of {self._ranks} {how}"
        return code, told

    def _failed(self, code: int) -> TrainingError:
        code, last = self._end_of(code)
        explained = (
            last.splitlines()[-1] if code == EXPLAINED_EXIT and last else f"it {self._how(code)}; last lines:\n{last}"
        )
        return TrainingError(f"the trainer stopped: {explained}", f"see {self._log}")
