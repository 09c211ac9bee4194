"""Real harnesses in real sandboxes use the MCP server of a task; a scripted policy calls its tool.

The server is of one file and the standard library alone. Only it knows the price, so a right answer has come from it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from appliance.config.sections import BranchesSection
from appliance.operate.harness_check import Trial
from appliance.tasks.pack import Task
from appliance.trees.recovery import recovered
from appliance.types import Answer, Message, Request, Said, Sample, StopReason, TokenIds, ToolCall
from tests.support.played import played

SERVER = '''\
"""An MCP server of one tool: over its pipes, or over HTTP on the port that is given."""
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOOL = {
    "name": "price",
    "description": "The price of an article in the stock.",
    "inputSchema": {"type": "object", "properties": {"article": {"type": "string"}}, "required": ["article"]},
}


def result(method, params):
    if method == "initialize":
        about = {"name": "stock", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": about}
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call":
        article = params["arguments"]["article"]
        return {"content": [{"type": "text", "text": f"{article} costs {sum(map(ord, article))} cents"}]}
    return {}


def answer(text):
    """The answer to one message; None to a notification."""
    message = json.loads(text)
    if "id" not in message:
        return None
    told = result(message["method"], message.get("params") or {})
    return json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": told})


class Web(BaseHTTPRequestHandler):
    def do_POST(self):
        said = answer(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(202 if said is None else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(said or "")))
        self.end_headers()
        self.wfile.write((said or "").encode())

    def do_GET(self):
        self.send_error(405)

    def log_message(self, *words):
        pass


if len(sys.argv) > 1:
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Web).serve_forever()
for line in sys.stdin:
    said = answer(line)
    if said is not None:
        print(said, flush=True)
'''
PRICE = sum(map(ord, "amber"))
INSTRUCTION = "Ask the stock for the price of amber in cents, and write it to answer.txt.\n"
GRADER = f"""\
[ "$(cat /workspace/answer.txt)" = {PRICE} ] && reward=1 || reward=0
echo $reward > /logs/verifier/reward.txt
"""
HEAD = '[metadata]\nfamily = "stock"\nsplit = "train"\n'
PIPED = '[[environment.mcp_servers]]\nname = "stock"\ntransport = "stdio"\ncommand = "python3"\nargs = ["server.py"]\n'
SERVED = '[[environment.mcp_servers]]\nname = "stock"\ntransport = "http"\nurl = "http://127.0.0.1:8765/mcp"\n'
SETUP = """\
python3 server.py 8765 > /dev/null 2>&1 &
until (: < /dev/tcp/127.0.0.1/8765) 2> /dev/null; do sleep 0.1; done
"""


def written(folder: Path, files: dict[str, str]) -> Task:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Task.from_dir(folder)


def piped_task(folder: Path) -> Task:
    """The harness starts the server."""
    files = {"task.toml": HEAD + PIPED, "instruction.md": INSTRUCTION, "tests/test.sh": GRADER}
    return written(folder, {**files, "environment/files/server.py": SERVER})


def served_task(folder: Path) -> Task:
    """The task starts it, in the setup of its only step."""
    files = {"instruction.md": INSTRUCTION, "tests/test.sh": GRADER, "workdir/setup.sh": SETUP}
    steps = {f"steps/ask/{name}": text for name, text in files.items()}
    toml = HEAD + SERVED + '[[steps]]\nname = "ask"\n'
    return written(folder, {**steps, "task.toml": toml, "environment/files/server.py": SERVER})


class Plays:
    """A policy that makes these calls (tool, arguments), then ends. `PRICE` is what the last result said."""

    renderer = None
    context_length = None
    grafts = False

    def __init__(self, *calls: tuple[str, dict[str, object]]) -> None:
        self.calls = calls

    async def answer(
        self, session: object, request: Request, prompt_ids: TokenIds | None
    ) -> tuple[Answer, Sample | None]:
        turn = sum(bool(message.tool_calls) for message in request.messages)
        if turn == len(self.calls):
            return Answer(Message("assistant", "done"), StopReason.STOP), None
        name, arguments = self.calls[turn]
        tool = next((tool for tool in request.tools if tool.name == name), None)
        prices = re.findall(r"costs (\d+) cents", request.messages[-1].content)
        text = json.dumps(arguments).replace("PRICE", prices[0] if prices else "PRICE")
        call = ToolCall("call_0", name, text, tool.namespace if tool else "")
        return Answer(Message("assistant", "", tool_calls=(call,)), StopReason.STOP), None


def results(call: Said) -> list[str]:
    return [message.content for message in call.messages if message.role == "tool"]


def holds(trial: Trial, at: int, tool: str) -> None:
    """The task is done, in one tree without a fork; call `at` asked the tool and the next one had its answer."""
    assert trial.rollout.reward == 1.0, (trial.rollout.failure_detail, trial.outcome and trial.outcome.output)
    asked = trial.calls[at].answer.tool_calls[0]
    assert asked.full_name == tool and json.loads(asked.arguments) == {"article": "amber"}
    assert f"amber costs {PRICE} cents" in results(trial.calls[at + 1])[-1]
    roles = recovered(trial.calls, BranchesSection()).roles
    assert [role.parent for role in roles] == [None, *range(len(trial.calls) - 1)]


ASK = {"article": "amber"}
WRITE = "echo PRICE > answer.txt"


@pytest.mark.real
def test_codex_has_the_tool_in_a_namespace(tmp_path: Path) -> None:
    trial = played("codex", piped_task(tmp_path), Plays(("price", ASK), ("exec_command", {"cmd": WRITE})))
    assert [(t.namespace, t.parameters) for t in trial.calls[0].tools if t.name == "price"] == [
        ("mcp__stock", '{"type": "object", "properties": {"article": {"type": "string"}}, "required": ["article"]}')
    ]
    holds(trial, 0, "mcp__stock.price")


@pytest.mark.real
def test_claude_code_has_the_tool_loaded_by_its_tool_search(tmp_path: Path) -> None:
    search = ("ToolSearch", {"query": "select:mcp__stock__price", "max_results": 1})
    bash = ("Bash", {"command": WRITE, "description": "write the answer"})
    trial = played("claude-code", piped_task(tmp_path), Plays(search, ("mcp__stock__price", ASK), bash))
    assert any("\nmcp__stock__price\n" in message.content for message in trial.calls[0].messages), "it is announced"
    assert '"name": "mcp__stock__price"' in results(trial.calls[1])[-1], "its parameters are shown when it is loaded"
    holds(trial, 1, "mcp__stock__price")


@pytest.mark.real
def test_claude_code_bare_reaches_a_server_that_the_task_itself_started(tmp_path: Path) -> None:
    bash = ("Bash", {"command": WRITE, "description": "write the answer"})
    trial = played("claude-code-bare", served_task(tmp_path), Plays(("mcp__stock__price", ASK), bash))
    assert [tool.name for tool in trial.calls[0].tools] == ["Bash", "mcp__stock__price"]
    holds(trial, 0, "mcp__stock__price")


@pytest.mark.real
def test_gemini_cli_has_the_tool_among_its_own(tmp_path: Path) -> None:
    shell = ("run_shell_command", {"command": WRITE})
    trial = played("gemini-cli", piped_task(tmp_path), Plays(("mcp_stock_price", ASK), shell))
    assert "mcp_stock_price" in [tool.name for tool in trial.calls[0].tools]
    holds(trial, 0, "mcp_stock_price")
