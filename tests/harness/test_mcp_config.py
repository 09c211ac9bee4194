"""How harnesses are told of MCP servers: each form's file worked by hand, and what a harness file may not say."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from appliance.config.runconfig import CHECKOUT
from appliance.errors import HarnessFileError
from appliance.harness.harness import Harness, load_harnesses
from appliance.harness.mcp_config import Registration
from appliance.tasks.mcp import McpServer, Transport

STOCK = McpServer("stock", Transport.STDIO, "python3", ("/workspace/server.py", 'say "hi"'))
BARE = McpServer("bare", Transport.STDIO, "serve")
LIVE = McpServer("live", Transport.SSE, url="http://127.0.0.1:9000/sse")
WEB = McpServer("web-1", Transport.HTTP, url="http://localhost:8000/mcp")
HARNESSES = load_harnesses(CHECKOUT / "harnesses")


def told(name: str, *servers: McpServer) -> str:
    """The file by which the shipped harness is told of the servers, as it is at the launch."""
    harness = HARNESSES[name]
    assert harness.mcp is not None
    return harness.launch("p", "http://127.0.0.1:8123/s/t", "tok", "policy", 512, servers).files[harness.mcp.file]


def test_claude_code_has_them_in_a_file_of_their_own() -> None:
    assert json.loads(told("claude-code", STOCK, LIVE, WEB)) == {
        "mcpServers": {
            "stock": {"type": "stdio", "command": "python3", "args": ["/workspace/server.py", 'say "hi"']},
            "live": {"type": "sse", "url": "http://127.0.0.1:9000/sse"},
            "web-1": {"type": "http", "url": "http://localhost:8000/mcp"},
        }
    }
    assert told("claude-code", BARE) == (
        '{\n "mcpServers": {\n  "bare": {\n   "type": "stdio",\n   "command": "serve",\n   "args": []\n  }\n }\n}\n'
    )


def test_claude_code_bare_and_qwen_code_are_told_of_their_file_on_the_command_line() -> None:
    for name in ("claude-code-bare", "qwen-code"):
        launch = HARNESSES[name].launch("p", "http://x/s/t", "tok", "policy", 512, [STOCK])
        assert launch.argv[-2:] == ("--mcp-config", "/home/agent/mcp.json") and "mcp.json" in launch.files
        plain = HARNESSES[name].launch("p", "http://x/s/t", "tok", "policy", 512)
        assert plain.argv == launch.argv[:-2] and "mcp.json" not in plain.files


def test_codex_has_them_at_the_end_of_its_toml() -> None:
    plain = HARNESSES["codex"].launch("p", "http://127.0.0.1:8123/s/t", "tok", "policy", 512).files
    assert told("codex", STOCK, WEB) == plain[".codex/config.toml"] + (
        "[mcp_servers.stock]\n"
        'command = "python3"\n'
        'args = ["/workspace/server.py", "say \\"hi\\""]\n'
        "required = true\nstartup_timeout_sec = 60\n"
        "[mcp_servers.web-1]\n"
        'url = "http://localhost:8000/mcp"\n'
        "required = true\nstartup_timeout_sec = 60\n"
    )


def test_gemini_cli_and_opencode_keep_their_own_settings_beside_them() -> None:
    found = json.loads(told("gemini-cli", STOCK, LIVE, WEB))
    assert found["mcpServers"] == {
        "stock": {"command": "python3", "args": ["/workspace/server.py", 'say "hi"']},
        "live": {"url": "http://127.0.0.1:9000/sse"},
        "web-1": {"httpUrl": "http://localhost:8000/mcp"},
    }
    assert found["security"]["auth"] == {"selectedType": "gemini-api-key"}
    found = json.loads(told("opencode", STOCK, WEB))
    assert found["mcp"] == {
        "stock": {"type": "local", "command": ["python3", "/workspace/server.py", 'say "hi"']},
        "web-1": {"type": "remote", "url": "http://localhost:8000/mcp", "oauth": False},
    }
    assert found["model"] == "corral/policy"


def test_keys_within_keys_and_lists_of_servers() -> None:
    assert list(json.loads(told("openclaw", BARE))["mcp"]["servers"]) == ["bare"]
    assert list(json.loads(told("nanobot", BARE))["tools"]["mcpServers"]) == ["bare"]
    assert told("mistral-vibe", BARE, WEB).endswith(
        "[[mcp_servers]]\n"
        'name = "bare"\ntransport = "stdio"\ncommand = "serve"\nargs = []\nstartup_timeout_sec = 60\n'
        "[[mcp_servers]]\n"
        'name = "web-1"\ntransport = "streamable-http"\nurl = "http://localhost:8000/mcp"\nstartup_timeout_sec = 60\n'
    )


STDIO = {Transport.STDIO: {"command": "{command}", "args": "{args}", "on": True, "env": {"A": "b"}}}


def test_yaml_and_inline_tables() -> None:
    yml = Registration("c.yaml", "servers", STDIO).registered({"c.yaml": "a: 1\n"}, [BARE])
    assert yml == {
        "c.yaml": 'a: 1\nservers: {"bare": {"command": "serve", "args": [], "on": true, "env": {"A": "b"}}}\n'
    }
    toml = Registration("c.toml", "a.b", STDIO).registered({}, [BARE])
    assert toml == {"c.toml": '[a.b.bare]\ncommand = "serve"\nargs = []\non = true\nenv = {"A" = "b"}\n'}


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20), max_size=4))
def test_whatever_an_argument_holds_is_read_back_by_each_form(args: list[str]) -> None:
    server = McpServer("x", Transport.STDIO, "run", tuple(args))
    for suffix, read in (("json", json.loads), ("toml", tomllib.loads), ("yaml", yaml.safe_load)):
        (text,) = Registration(f"c.{suffix}", "servers", STDIO).registered({}, [server]).values()
        assert read(text)["servers"]["x"]["args"] == args


def test_a_harness_that_cannot_be_told_says_why() -> None:
    assert HARNESSES["pi"].why_not([STOCK]) == "its file has no [mcp] table" and HARNESSES["pi"].why_not([]) == ""
    assert HARNESSES["codex"].why_not([STOCK, LIVE]) == "its file has no mcp.sse, which live is"
    with pytest.raises(HarnessFileError, match="harness pi cannot be told of the MCP server stock: its file has no"):
        HARNESSES["pi"].launch("p", "http://x/s/t", "tok", "policy", 512, [STOCK])


FILE = """\
name = "toy"
version = "1"
wire = "chat"
[image]
check = ["toy"]
layer = "FROM {base}"
[launch]
argv = ["toy", "{base_url}", "{prompt}"]
env = {}
[files]
"c.json" = '{"n": {max_tokens}, "taken": {}}'
"c.toml" = "taken = 1"
"c.yaml" = "taken: 1"
[limits]
memory_mb = 1
pids = 1
[mcp]
"""


@pytest.mark.parametrize(
    ("mcp", "said"),
    [
        ("", "mcp.file is missing"),
        ('file = "c.json"', "mcp.key is missing"),
        ('file = "c.json"\nkey = "a"', "mcp names no transport: add one of stdio, sse, streamable-http"),
        ('file = "c.json"\nkey = "a"\nstdio = "x"', "mcp.stdio must be a dict"),
        ('file = "c.json"\nkey = "a"\npipe = {}', "mcp.pipe is not a known key"),
        ('file = "/c.json"\nkey = "a"\nstdio = {}', "mcp file '/c.json' is not a plain path under HOME"),
        ('file = "c.ini"\nkey = "a"\nstdio = {}', "mcp file 'c.ini' is none of .json, .toml, .yaml, .yml"),
        ('file = "c.json"\nkey = "a..b"\nstdio = {}', "mcp key 'a..b' is not a key"),
        ('file = "c.yaml"\nkey = "a.b"\nstdio = {}', "mcp key 'a.b' is not at the top"),
        ('file = "c.json"\nkey = "taken"\nstdio = {}', "mcp c.json: taken is taken already"),
        ('file = "c.json"\nkey = "n.a"\nstdio = {}', "mcp c.json: n.a is taken already"),
        ('file = "c.yaml"\nkey = "taken"\nstdio = {}', "mcp c.yaml: taken is taken already"),
        ('file = "c.toml"\nkey = "taken"\nstdio = {}', "mcp c.toml: "),
        ('file = "c.json"\nkey = "a"\nsse = {c = "{command}"}', "mcp sse uses {command}; it may use {name}, {url}"),
        ('file = "c.json"\nkey = "a"\nsse = {u = "{url}"}\nstdio = {n = "{name}"}', "mcp sse lacks {name}"),
    ],
)
def test_a_table_that_cannot_work_is_refused_when_the_file_is_read(tmp_path: Path, mcp: str, said: str) -> None:
    (tmp_path / "toy.toml").write_text(FILE + mcp)
    with pytest.raises(HarnessFileError) as caught:
        Harness.from_file(tmp_path / "toy.toml")
    assert f"{tmp_path / 'toy.toml'}: {said}" in caught.value.message and caught.value.remedy
