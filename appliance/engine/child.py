"""vLLM as a child process: its settings, command line, environment, log and end.

Invariant: the child and everything it starts live no longer than this process (see system/guard.py),
and nothing in it reaches for a network: hubs and telemetry are off and it listens on a unix socket
in a folder only we can enter.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import anyio
import anyio.abc

from appliance.errors import HostError
from appliance.system import guard
from appliance.system.offline import SWITCHES
from appliance.system.oom import describe_exit, kernel_kills
from appliance.system.scratch import cut_log

PLUGIN = "corral_cpu_lora"
"""Name of the entry point of vllm_plugin in pyproject.toml."""

NF4_PLUGIN = "bitsandbytes"
"""Name of vllm-bnb-plugin's entry point: NF4 left vLLM itself in 0.28."""

SERVE = "import runpy; runpy.run_module('vllm.entrypoints.openai.api_server', run_name='__main__')"
"""As `python -m`, but the spawned EngineCore then does not import the whole API server once more."""

TAIL_LINES = 8
TAIL_BYTES = 65_536
STAMP = re.compile(r"^\(\w+ pid=\d+\) (?:(?:ERROR|WARNING|INFO) \S+ \S+ \[[^]]+\] ?)?")
FRAME = re.compile(
    r"\s{4}|  File |Traceback|INFO: |The above exception|During handling| - |  warnings\.warn|\[shutdown\]"
    r"|.*(?:nanobind|resource_tracker)"
)
"""What never says why a server ended: stack frames, its own farewell, leak reports."""
STOP_DEADLINE_S = guard.GRACE_S + 5.0
NUM_LIVE_ADAPTERS = 2
"""Adapters kept loaded: the newest, and the one before it for calls still under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """One vLLM server. Times are in seconds, sizes in GiB.

    `program` is the command that serves (tests put a small fake here); the settings below are
    appended to it as vLLM's own options.
    """

    model: Path
    log: Path
    max_model_len: int = 4096
    max_num_seqs: int = 16
    kv_cache_gib: float = 0.5
    threads: int = 1
    dtype: str = "float32"
    is_nf4: bool = False
    """Whether vLLM itself quantises `model` to NF4 as it loads it; in bfloat16 only."""
    enforce_eager: bool = True
    max_lora_rank: int = 16
    startup_deadline_s: float = 180.0
    call_deadline_s: float = 180.0
    health_every_s: float = 2.0
    health_deadline_s: float = 20.0
    still_s: float = 6.0
    """A server that owes an answer and does nothing at all for so long hangs; a slow one has the deadlines."""
    device: Literal["cpu", "cuda"] = "cpu"
    sleeps: bool = False
    """Whether it can be put to sleep (sleep.py); on a GPU only."""
    gpu: int | None = None
    """Which GPU is its own; None: those it finds."""
    seed: int = 0
    block_size: int = 32
    program: tuple[str, ...] = (sys.executable, "-c", SERVE)


def command(settings: EngineSettings, socket: Path) -> list[str]:
    """The full command line of the server."""
    options = {
        "model": settings.model,
        "served-model-name": "base",
        "uds": socket,
        "dtype": settings.dtype,
        "seed": settings.seed,
        "max-model-len": settings.max_model_len,
        "max-num-seqs": settings.max_num_seqs,
        "block-size": settings.block_size,
        "kv-cache-memory-bytes": int(settings.kv_cache_gib * 2**30),
        # Logprobs after the temperature: the behaviour policy's own (I1).
        "logprobs-mode": "processed_logprobs",
        # The folder's generation_config.json must not change what we ask for.
        "generation-config": "vllm",
        "max-lora-rank": settings.max_lora_rank,
        # One more than are ever loaded: stock CPU kernels give rows without an adapter the
        # weights of the last slot, so it stays empty.
        "max-loras": NUM_LIVE_ADAPTERS + 1,
    }
    if settings.is_nf4:
        options |= {"quantization": "bitsandbytes", "load-format": "bitsandbytes"}
    flags = ["enable-lora", "enable-scale-out", "skip-tokenizer-init", "disable-fastapi-docs"]
    flags += ["disable-uvicorn-access-log"]
    flags += ["enforce-eager"] * settings.enforce_eager + ["enable-sleep-mode"] * settings.sleeps
    pairs = [text for key, value in options.items() for text in (f"--{key}", str(value))]
    return [*settings.program, *pairs, *(f"--{flag}" for flag in flags)]


def environment(settings: EngineSettings, folder: Path) -> dict[str, str]:
    """The server's environment: ours, with every switch that notes and measurements call for."""
    switches = SWITCHES | {
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        # Ours only: what else is installed must not change how the policy is sampled.
        "VLLM_PLUGINS": f"{PLUGIN},{NF4_PLUGIN}" if settings.is_nf4 else PLUGIN,
        # Else vLLM asks the routing table for its address, and gloo resolves the host's name.
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        # Its numbers are read from its metrics endpoint: no line of them in the log.
        "VLLM_LOG_STATS_INTERVAL": "31536000",
        "TMPDIR": str(folder),
        "PYTHONUNBUFFERED": "1",
    }
    if settings.sleeps:
        switches["VLLM_SERVER_DEV_MODE"] = "1"  # else it has no address for sleep; its socket is ours alone
    if settings.gpu is not None:
        switches["CUDA_VISIBLE_DEVICES"] = str(settings.gpu)
    if settings.device == "cpu":
        switches |= {
            # The worker inside EngineCore: one process and eight seconds of imports less.
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            # Unbound threads that sleep when idle: harness processes need the same cores.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(settings.threads),
            "OMP_WAIT_POLICY": "PASSIVE",
        }
        if settings.enforce_eager:
            # vLLM compiles its rank-of-a-token helper on the first call that asks for logprobs:
            # 20 s, and a C++ compiler, for nothing.
            switches["TORCHDYNAMO_DISABLE"] = "1"
    return os.environ | switches


class Child:
    """One running server. Made by `start`, ended by `stop`; never reused."""

    def __init__(self, process: anyio.abc.Process, folder: Path, log: Path) -> None:
        self._process = process
        self._folder = folder
        self._log = log
        self._kills_before = kernel_kills()

    @classmethod
    async def start(cls, settings: EngineSettings) -> Child:
        """Start the server; it is not ready yet. `HostError` when the log cannot be written."""
        # Unix socket paths end at 107 bytes, so not under the run's folder.
        folder = Path(tempfile.mkdtemp(prefix="corral-engine-"))
        launcher = [sys.executable, "-I", "-S", guard.__file__, str(folder)]
        try:
            settings.log.parent.mkdir(parents=True, exist_ok=True)
            cut_log(settings.log)
            with settings.log.open("ab") as log:
                process = await anyio.open_process(
                    [*launcher, *command(settings, folder / "api.sock")],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment(settings, folder),
                    start_new_session=True,
                )
        except OSError as e:
            shutil.rmtree(folder, ignore_errors=True)
            raise HostError(f"the engine cannot be started: {e}", "check the run's folder and disk") from e
        return cls(process, folder, settings.log)

    @property
    def socket(self) -> Path:
        """Where the server listens once it is ready."""
        return self._folder / "api.sock"

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.returncode

    def ending(self, code: int) -> str:
        """How it ended, in words."""
        return describe_exit(code, self._kills_before)

    def pid(self) -> int | None:
        """The API server's process id, None before it is known or after its end."""
        with suppress(OSError, ValueError):
            return int((self._folder / "pid").read_text())
        return None

    async def wait(self) -> int:
        """The exit code, once the server has ended and its process group is gone."""
        pid = self.pid()
        code = await self._process.wait()
        pid = self.pid() or pid
        # Only a guard that was itself killed leaves its folder, and perhaps processes, behind.
        if pid is not None and self._folder.exists():
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        shutil.rmtree(self._folder, ignore_errors=True)
        return code

    async def stop(self) -> None:
        """End the server and all its processes: politely, then by force; bounded and shielded."""
        with anyio.move_on_after(STOP_DEADLINE_S, shield=True):
            assert self._process.stdin is not None
            with suppress(OSError, anyio.ClosedResourceError, anyio.BrokenResourceError):
                await self._process.stdin.aclose()
            await self.wait()
        if self.exit_code is None:
            self.kill()
            with anyio.move_on_after(STOP_DEADLINE_S, shield=True):
                await self.wait()

    def kill(self) -> None:
        """End every process of the server at once."""
        for target in (self.pid(), None if self.exit_code is not None else self._process.pid):
            if target is not None:
                with suppress(ProcessLookupError):
                    os.killpg(target, signal.SIGKILL)

    def tail(self) -> str:
        """The last lines of the log that say something: without stack frames, stamps and repetition."""
        try:
            with self._log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
                lines = log.read().decode("utf-8", "replace").splitlines()
        except OSError as e:
            return f"(no log: {e})"
        told = (STAMP.sub("", line).rstrip() for line in lines)
        kept = dict.fromkeys(line[:300] for line in told if line and not FRAME.match(line))
        return "\n".join([*kept][-TAIL_LINES:])
