"""Prompts against vLLM's own: its rendering server, which needs no weights, encodes the same ids."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from appliance.capture.rendering.renderer import Renderer
from appliance.capture.server import loopback_socket
from appliance.types import Message, Tool, ToolCall
from tests.support.tiny_tokenizer import QWEN_STYLE, model_folder

START_S = 240.0
BASH = Tool("bash", "Run.", '{"type": "object", "properties": {"command": {"type": "string"}}}')
CONVERSATION = [
    Message("system", "You run commands."),
    Message("user", "Find kéy and stop."),
    Message("assistant", "Looking.", tool_calls=(ToolCall("call_0", "bash", '{"command": "grep -rh key= ."}'),)),
    Message("tool", "key=word\n", tool_call_id="call_0"),
]
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 309,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    folder = model_folder(tmp_path_factory.mktemp("model"), QWEN_STYLE)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    probe = loopback_socket(0)
    port = probe.getsockname()[1]
    probe.close()
    run = "import runpy; runpy.run_module('vllm.entrypoints.launchers.render.entry', run_name='__main__')"
    options = ["--model", str(folder), "--served-model-name", "tiny", "--port", str(port), "--host", "127.0.0.1"]
    options += ["--max-model-len", "4096", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    log = folder / "log"
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    with log.open("wb") as file:
        child = subprocess.Popen([sys.executable, "-c", run, *options], stdout=file, stderr=file, env=environment)
    url = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + START_S
        while True:
            assert child.poll() is None and time.monotonic() < until, log.read_text(errors="replace")[-2000:]
            try:
                if httpx.get(f"{url}/health", trust_env=False, timeout=5).is_success:
                    break
            except httpx.TransportError:
                time.sleep(0.5)
        yield folder, url
    finally:
        child.terminate()
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def as_dict(message: Message) -> dict[str, object]:
    found: dict[str, object] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        functions = [{"name": c.name, "arguments": c.arguments} for c in message.tool_calls]
        found["tool_calls"] = [{"id": "call_0", "type": "function", "function": f} for f in functions]
    if message.tool_call_id:
        found["tool_call_id"] = message.tool_call_id
    return found


@pytest.mark.real
@pytest.mark.parametrize("length", [2, 4])
def test_our_prompt_is_the_one_that_vllm_renders(server: tuple[Path, str], length: int) -> None:
    folder, url = server
    function = {"name": BASH.name, "description": BASH.description, "parameters": json.loads(BASH.parameters)}
    body = {
        "model": "tiny",
        "messages": [as_dict(message) for message in CONVERSATION[:length]],
        "tools": [{"type": "function", "function": function}],
    }
    reply = httpx.post(f"{url}/v1/chat/completions/render", json=body, trust_env=False, timeout=120)
    assert reply.status_code == 200, reply.text
    ours = Renderer.from_folder(folder).render(CONVERSATION[:length], [BASH])
    assert reply.json()["token_ids"] == ours.tolist()
