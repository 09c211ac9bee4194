"""Commands around the capture proxy: serve it alone, show one call's bytes, render a run's calls the other way."""

from __future__ import annotations

import argparse
import base64
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from appliance.commands.output import command_of, overrides_of, show
from appliance.commands.progress import progress
from appliance.config.runconfig import home, resolve
from appliance.errors import ConfigError


def add(commands: Any) -> None:
    """Adds proxy, call and compare-rendering."""
    command = command_of(commands, "proxy", _proxy, "the capture proxy alone: point a harness of your own at it")
    command.epilog = "example: corral proxy ~/models/qwen3-0.6b --engine http://127.0.0.1:8000/v1"
    command.add_argument(
        "model", nargs="?", help="folder with tokenizer and chat template; and weights, unless --engine"
    )
    command.add_argument("--engine", default="", metavar="URL", help="a running vLLM; its key in CORRAL_ENGINE_KEY")
    command.add_argument("--served-model", default="", help="the model's name in that vLLM, when it serves several")
    command.add_argument("--port", type=int, default=8123, help="port on 127.0.0.1 (8123); 0 lets the host choose")
    command.add_argument("--run", help="go on with the record of an earlier `corral proxy`")
    command.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="e.g. rollout.rendering=template"
    )
    command = command_of(commands, "call", _call, "one call: its request and its answer, as bytes with --raw")
    command.epilog = "example: corral call 17 --raw"
    command.add_argument("call", type=int, help="number of the call, as `corral calls --json` shows it")
    command.add_argument("--raw", action="store_true", help="the bytes as they came and went")
    command = command_of(
        commands, "compare-rendering", _compare, "what a run's calls would have been fed in the other rendering mode"
    )
    command.epilog = "example: corral compare-rendering RUN --engine http://127.0.0.1:8000/v1"
    command.add_argument("run", help="id of the run")
    command.add_argument("--model", type=Path, help="the model's folder, when it is no longer where the run had it")
    command.add_argument("--engine", default="", metavar="URL", help="a vLLM with the policy's weights, for logprobs")
    command.add_argument("--score", action="store_true", help="start the run's own policy for logprobs")


def _proxy(arguments: argparse.Namespace) -> None:
    import anyio

    from appliance.runs.standalone_proxy import Serving, Wish, serve

    if not arguments.model and not arguments.run:
        raise ConfigError("corral proxy: no model is named", "corral proxy FOLDER, or --run of an earlier proxy")
    overrides = overrides_of(arguments)
    if arguments.model:
        overrides["model.path"] = str(Path(arguments.model).expanduser().resolve())
    config = resolve(None, overrides)
    wish = Wish(config, arguments.engine, arguments.served_model, arguments.port, arguments.run)

    starting = ExitStack()

    async def ready(serving: Serving) -> None:
        starting.close()
        found = {"run": serving.run, "rollout": serving.rollout, "url": serving.url, "token": serving.token}
        show(arguments, found | {"base_url": serving.session_url, "model": serving.model}, _address(serving))
        await _until_stopped()

    with starting:
        starting.enter_context(progress(arguments, "proxy: getting ready"))
        anyio.run(serve, home(), wish, ready, backend_options={"use_uvloop": True})


def _address(serving: Any) -> str:
    base = serving.session_url
    return "\n".join(
        [
            f"rollout {serving.rollout} of {serving.run}; Ctrl-C stops, `corral proxy --run {serving.run}` goes on",
            f"  OpenAI     OPENAI_BASE_URL={base}/v1 OPENAI_API_KEY={serving.token}",
            f"  Anthropic  ANTHROPIC_BASE_URL={base} ANTHROPIC_API_KEY={serving.token}",
            f"  Gemini     GOOGLE_GEMINI_BASE_URL={base} GEMINI_API_KEY={serving.token}",
            f"look at it: corral calls {serving.rollout} · corral tree {serving.rollout} · corral call N --raw",
        ]
    )


async def _until_stopped() -> None:
    import signal

    import anyio

    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            return


def _call(arguments: argparse.Namespace) -> None:
    import sys

    from appliance.record.access import reading
    from appliance.report.transcript import one_call

    with reading(home()) as store:
        call, conversation = one_call(store, arguments.call)
    found = {
        "call": call.id,
        "rollout": call.rollout_id,
        "sequence": call.sequence,
        "wire": call.wire,
        "kind": str(call.kind),
        "delivered": call.delivered,
    }
    if arguments.json:
        bodies = {"request": call.request_bytes, "response": call.response_bytes}
        if arguments.raw:
            found |= {f"{key}_base64": base64.b64encode(value).decode() for key, value in bodies.items()}
        show(arguments, found | {"conversation": conversation}, "")
    elif arguments.raw:
        sys.stdout.buffer.write(call.request_bytes + b"\n" + call.response_bytes + b"\n")
        sys.stdout.buffer.flush()
    else:
        show(arguments, found, "\n".join([json.dumps(found), json.dumps(conversation, indent=1)]))


def _compare(arguments: argparse.Namespace) -> None:
    import anyio

    from appliance.operate.rerender import compare_run, compare_text

    with progress(arguments, "compare-rendering", "rollouts") as told:
        asked = (arguments.run, arguments.model, arguments.engine, arguments.score)
        found = anyio.run(compare_run, home(), *asked, told)
    show(arguments, found, compare_text(found))
