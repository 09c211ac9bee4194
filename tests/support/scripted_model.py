"""A scripted model on a Unix socket: one tool call, then a final text; speaks what the harnesses speak.

Real HTTP for real harnesses in real sandboxes; it keeps every request body as it came.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

FINAL_TEXT = "Done."


class ScriptedModel:
    """Answers the first call with `command` through the harness's shell tool and the next with `FINAL_TEXT`.

    `finish` is a command to run instead of the final text, for a harness that ends by one.
    """

    def __init__(self, command: str, finish: str = "") -> None:
        self.commands = [command, finish]
        self.bodies: list[bytes] = []
        self.paths: list[str] = []
        routes = [
            Route("/s/{token}/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/s/{token}/v1/responses", self.responses, methods=["POST"]),
        ]
        self.app = Starlette(routes=routes)

    async def chat(self, request: Request) -> Response:
        body, command = await self._next(request)
        message: dict[str, Any] = {"role": "assistant", "content": "" if command else FINAL_TEXT}
        if command:
            function = body["tools"][0]["function"]
            arguments = json.dumps(shell_arguments(function["parameters"], command))
            made = {"name": function["name"], "arguments": arguments}
            message["tool_calls"] = [{"id": f"call_{len(self.bodies)}", "type": "function", "function": made}]
        reason = "tool_calls" if command else "stop"
        head = {"id": "chatcmpl-1", "created": 1, "model": body["model"]}
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": reason}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            whole = head | {"object": "chat.completion", "choices": [choice], "usage": usage}
            return Response(json.dumps(whole), media_type="application/json")
        for index, call in enumerate(message.get("tool_calls", ())):
            call["index"] = index
        deltas = [{"delta": message, "finish_reason": None}, {"delta": {}, "finish_reason": reason}]
        chunk = head | {"object": "chat.completion.chunk"}
        events = [json.dumps(chunk | {"choices": [{"index": 0, **delta}]}) for delta in deltas]
        return Response("".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]), media_type="text/event-stream")

    async def responses(self, request: Request) -> Response:
        body, command = await self._next(request)
        if command:
            tool = next(tool for tool in body["tools"] if shell_arguments(tool.get("parameters", {}), command))
            arguments = json.dumps(shell_arguments(tool["parameters"], command))
            item = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": tool["name"]}
            item["arguments"] = arguments
        else:
            content = [{"type": "output_text", "text": FINAL_TEXT}]
            item = {"type": "message", "id": "msg_1", "role": "assistant", "content": content}
        events = [
            {"type": "response.created", "response": {"id": "resp_1"}},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": {"id": "resp_1", "output": [item]}},
        ]
        text = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
        return Response(text, media_type="text/event-stream")

    async def _next(self, request: Request) -> tuple[dict[str, Any], str]:
        """The request's body, and the command to answer with ('' for the final text)."""
        self.bodies.append(await request.body())
        self.paths.append(request.url.path)
        turn = len(self.bodies) - 1
        return json.loads(self.bodies[-1]), self.commands[turn] if turn < len(self.commands) else ""


def shell_arguments(schema: dict[str, Any], command: str) -> dict[str, object]:
    """`command` as the arguments of a shell tool with this JSON schema; {} when it is no shell tool."""
    properties = schema.get("properties", {})
    for key in ("command", "cmd"):
        if key in properties:
            return {key: ["bash", "-lc", command] if properties[key].get("type") == "array" else command}
    return {}


@asynccontextmanager
async def serving(app: Any, folder: Path) -> AsyncIterator[None]:
    """Serve `app` on proxy.sock in `folder`."""
    settings = uvicorn.Config(app, uds=str(folder / "proxy.sock"), log_level="warning", lifespan="off")
    server = uvicorn.Server(settings)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve)
        while not server.started:
            await anyio.sleep(0.01)
        yield
        server.should_exit = True


def keep(bodies: list[bytes], folder: Path, name: str) -> None:
    """Write request bodies as NAME-1.json, NAME-2.json … for a person to read."""
    for number, body in enumerate(bodies, 1):
        (folder / f"{name}-{number}.json").write_bytes(body)
