"""Other people's proxies to compare with, each in a virtual environment of its own that is made on request.

They are never installed beside the product: their versions would change its own.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from appliance.bench.load.drive import Target
from appliance.errors import HostError

START_S = 240.0
_RUN_AGENTLIGHTNING = """
import asyncio, sys
from agentlightning.llm_proxy import LLMProxy
from agentlightning.store import InMemoryLightningStore

async def main():
    store = InMemoryLightningStore(thread_safe=True)
    params = {"model": "openai/scripted", "api_base": f"http://127.0.0.1:{sys.argv[1]}/v1", "api_key": "x"}
    models = [{"model_name": "scripted", "litellm_params": params}]
    proxy = LLMProxy(port=int(sys.argv[2]), host="127.0.0.1", model_list=models, store=store, launch_mode="thread")
    await proxy.start()
    await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


@dataclass(frozen=True, slots=True)
class Peer:
    """One proxy: what pip installs, how it is started, and the path of a client's calls."""

    name: str
    requirement: str
    arguments: Callable[[Path, int, int], list[str]]
    path: Callable[[int], str]


def _litellm(folder: Path, engine_port: int, port: int) -> list[str]:
    params = {"model": "openai/scripted", "api_base": f"http://127.0.0.1:{engine_port}/v1", "api_key": "x"}
    config = folder / "litellm.yaml"
    # JSON is YAML.
    config.write_text(json.dumps({"model_list": [{"model_name": "scripted", "litellm_params": params}]}))
    program = str(folder / "litellm" / "bin" / "litellm")
    return [program, "--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"]


def _agentlightning(folder: Path, engine_port: int, port: int) -> list[str]:
    program = str(folder / "agentlightning" / "bin" / "python")
    return [program, "-c", _RUN_AGENTLIGHTNING, str(engine_port), str(port)]


PEERS = (
    Peer("litellm", "litellm[proxy]==1.110.2", _litellm, lambda _: "/v1/chat/completions"),
    Peer(
        "agentlightning",
        "agentlightning==0.3.0",
        _agentlightning,
        lambda n: f"/rollout/r{n}/attempt/a{n}/v1/chat/completions",
    ),
)


def installed(peer: Peer, folder: Path) -> bool:
    """Whether the peer's environment is there."""
    return (folder / peer.name / ".complete").exists()


def install(peer: Peer, folder: Path) -> None:
    """Makes the peer's environment; HostError with pip's last words when that does not succeed."""
    place = folder / peer.name
    folder.mkdir(parents=True, exist_ok=True)
    steps = (
        [sys.executable, "-m", "venv", str(place)],
        [str(place / "bin" / "python"), "-m", "pip", "install", "-q", peer.requirement],
    )
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        if done.returncode:
            raise HostError(f"{peer.requirement} cannot be installed: {done.stderr[-400:]}", "measure without --peers")
    (place / ".complete").touch()


@contextmanager
def running(peer: Peer, folder: Path, engine_port: int) -> Iterator[Target]:
    """The peer in front of the scripted engine; HostError when it does not answer a first call."""
    port, key = _free_port(), f"sk-{secrets.token_hex(32)}"
    environment = os.environ | {"LITELLM_MASTER_KEY": key, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    environment.pop("PYTHONPATH", None)
    log = folder / f"{peer.name}.log"
    with log.open("wb") as file:
        child = subprocess.Popen(
            peer.arguments(folder, engine_port, port), stdin=subprocess.PIPE, stdout=file, stderr=file,
            env=environment, start_new_session=True,
        )  # fmt: skip
    assert child.stdin is not None
    try:
        _wait(port, child, log)
        yield Target(port, peer.path, f"authorization: Bearer {key}\r\n", (child.pid,))
    finally:
        child.stdin.close()
        child.terminate()
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _wait(port: int, child: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        if child.poll() is not None:
            break
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise HostError(f"{log.stem} did not start: {log.read_text(errors='replace')[-400:]}", f"see {log}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
