"""A scripted engine over a real socket, as vLLM's OpenAI server would answer, in a process of its own.

It answers a completion of token ids with ids and logprobs, and a chat completion with the same words as text, after
a fixed time to think. What it says is a tool call, spelt so that no harness echoes it byte for byte.

    python -m appliance.bench.load.engine TOKENIZER_FOLDER THINK_S     prints its port and serves until its stdin closes
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from appliance.bench.load.http import Handler, serve

SAYS = '<tool_call>\n{"name": "bash",  "arguments": {"command":"ls -a"} }\n</tool_call>'
END = "<|im_end|>"
MAX_MODEL_LEN = 1 << 20


def main() -> None:
    """Serves until standard input closes."""
    folder, think_s = Path(sys.argv[1]), float(sys.argv[2])
    asyncio.run(serve(_handler(folder, think_s)))


def _handler(folder: Path, think_s: float) -> Handler:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = tokenizer.encode(SAYS + END, add_special_tokens=False).ids
    routes: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
        "/v1/completions": lambda body: _completion(body, ids),
        "/v1/chat/completions": _chat,
    }

    async def handle(path: str, body: bytes) -> bytes:
        if path.startswith("/v1/models"):
            return json.dumps(
                {"object": "list", "data": [{"id": "scripted", "object": "model", "max_model_len": MAX_MODEL_LEN}]}
            ).encode()
        # The time to think begins when the request is here, and reading it counts as thinking.
        started = asyncio.get_running_loop().time()
        answer = json.dumps(routes[path](json.loads(body))).encode()
        await asyncio.sleep(max(0.0, started + think_s - asyncio.get_running_loop().time()))
        return answer

    return handle


def _completion(body: dict[str, Any], ids: list[int]) -> dict[str, Any]:
    tops = [{f"token_id:{i}": -0.5, "token_id:0": -1.0} for i in ids]
    choice = {
        "index": 0,
        "text": "",
        "token_ids": ids,
        "prompt_token_ids": body["prompt"],
        "finish_reason": "stop",
        "logprobs": {"token_logprobs": [-0.5] * len(ids), "top_logprobs": tops},
    }
    return {"id": "c", "object": "text_completion", "model": "scripted", "created": 0, "choices": [choice]}


def _chat(body: dict[str, Any]) -> dict[str, Any]:
    function = {"name": "bash", "arguments": '{"command":"ls -a"}'}
    call = {"id": "call_0", "type": "function", "function": function}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls", "logprobs": None}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    head = {"id": "c", "object": "chat.completion", "model": body.get("model", ""), "created": 0}
    return {**head, "choices": [choice], "usage": usage}


if __name__ == "__main__":
    main()
