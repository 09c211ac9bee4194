"""MCP servers of tasks: what task.toml may say, how an import keeps them, what is refused."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import PackError
from appliance.tasks.importers.pack import import_pack
from appliance.tasks.mcp import McpServer, Transport, quoted, read_servers, servers_toml
from appliance.tasks.pack import Task, load_pack
from tests.support.task_folders import MCP_SERVERS_TOML, TASK_TOML, a_harbor_folder, make_task

FILE = Path("task.toml")
STDIO = McpServer("stock", Transport.STDIO, "python3", ("/workspace/server.py", "--quiet"))


def read(text: str) -> tuple[McpServer, ...]:
    return read_servers(FILE, tomllib.loads(text)["environment"]["mcp_servers"])


def test_a_task_names_its_servers(tmp_path: Path) -> None:
    task = Task.from_dir(make_task(tmp_path, toml=TASK_TOML + MCP_SERVERS_TOML))
    assert task.mcp_servers == (STDIO, McpServer("notes", Transport.HTTP, url="http://127.0.0.1:8000/mcp"))
    assert servers_toml(task.mcp_servers) == MCP_SERVERS_TOML
    assert Task.from_dir(make_task(tmp_path, "plain")).mcp_servers == ()


def test_transports_are_read_as_harbor_reads_them() -> None:
    table = '[[environment.mcp_servers]]\nname = "x"\nurl = "http://localhost:80"\n'
    assert read(table)[0].transport is Transport.SSE
    assert read(table + 'transport = "http"\n')[0].transport is Transport.HTTP


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("", "[0].name: missing"),
        ('name = ""', "[0].name: '' is not text"),
        ('name = "a.b"', "'a.b' cannot stand in a harness's configuration"),
        ('name = "a__b"', "'a__b' cannot stand"),
        (f'name = "{"a" * 41}"', "cannot stand"),
        ('name = "x"\ntransport = "pipe"', "[0].transport: 'pipe' is unknown"),
        ('name = "x"\ntransport = 3', "[0].transport: 3 is unknown"),
        ('name = "x"\ntransport = "stdio"', "[0].command: missing"),
        ('name = "x"\ntransport = "stdio"\ncommand = ["a"]', "['a'] is not text"),
        ('name = "x"\ntransport = "stdio"\ncommand = "a\\u0000b"', "is not text without NUL bytes"),
        ('name = "x"\ntransport = "stdio"\ncommand = "a"\nargs = "b"', "[0].args: is not a list of strings"),
        ('name = "x"\ntransport = "stdio"\ncommand = "a"\nargs = ["\\u0000"]', "[0].args: is not a list of strings"),
        ('name = "x"\ntransport = "stdio"\ncommand = "a"\nurl = "http://localhost"', "url: stands beside transport"),
        ('name = "x"\nurl = "http://localhost"\ncommand = "a"', "command: stands beside transport 'sse'"),
        ('name = "x"', "[0].url: missing"),
        ('name = "x"\nurl = "localhost:80"', "'localhost:80' is not a URL"),
        ('name = "x"\nurl = "http://localhost:port/"', "is not a URL"),
        ('name = "x"\nurl = "http://localhost/\\n"', "is not a URL"),
        ('name = "x"\nurl = "http://mcp:8000/sse"', "http://mcp:8000/sse is another machine or service"),
        ('name = "x"\nurl = "https://example.org/mcp"', "a sandbox has no network"),
        ('name = "x"\nurl = "http://localhost@example.org/"', "is another machine"),
        ('name = "x"\nurl = "http://localhost"\nheaders = {A = "${KEY}"}', "[0].headers: nothing that a sandbox can"),
        ('name = "x"\ntransport = "stdio"\ncomand = "a"', "[0].comand: unknown"),
    ],
)  # fmt: skip
def test_what_a_server_cannot_be_is_named_with_its_key(entry: str, said: str) -> None:
    with pytest.raises(PackError) as caught:
        read(f"[[environment.mcp_servers]]\n{entry}\n")
    assert caught.value.message.startswith("task.toml: key environment.mcp_servers") and said in caught.value.message
    assert caught.value.remedy


def test_a_list_that_is_none_and_a_name_that_is_there_twice_are_refused() -> None:
    for value, said in ((3, "is not a list"), (["x"], "[0]: is not a table")):
        with pytest.raises(PackError, match=said.replace("[", r"\[")):
            read_servers(FILE, value)
    with pytest.raises(PackError, match="'x' is there twice"):
        read_servers(FILE, [{"name": "x", "url": "http://localhost"}] * 2)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20), max_size=4))
def test_whatever_an_argument_holds_comes_back_from_the_file(args: list[str]) -> None:
    server = McpServer("x", Transport.STDIO, "run", tuple(args))
    assert read(servers_toml([server])) == (server,)
    assert tomllib.loads(f"a = {quoted(''.join(args))}")["a"] == "".join(args)


def test_an_imported_task_keeps_its_servers_with_the_workspace_replaced(tmp_path: Path) -> None:
    toml = MCP_SERVERS_TOML.replace("/workspace", "/app") + "timeout = 5\n"
    folder = a_harbor_folder(tmp_path / "h", "t", toml)
    (folder / "environment" / "Dockerfile").write_text("FROM python:3.12\nWORKDIR /app\nCOPY server.py data.txt ./\n")
    (folder / "environment" / "server.py").write_text('open("/app/data.txt")\n')
    (folder / "environment" / "data.txt").write_text("/app\n")
    report = import_pack(tmp_path / "h", tmp_path / "pack")
    task = load_pack(tmp_path / "pack").task("t")
    assert task.mcp_servers == (STDIO, McpServer("notes", Transport.HTTP, url="http://127.0.0.1:8000/mcp"))
    assert (task.environment_files / "server.py").read_text() == 'open("/workspace/data.txt")\n', (
        "a server's own script"
    )
    assert (task.environment_files / "data.txt").read_text() == "/app\n", "inputs are as they were"
    notes = " · ".join(report.imported["t"])
    assert "mcp_servers.timeout is not used" in notes and "serves http://127.0.0.1:8000/mcp" in notes


@pytest.mark.parametrize(
    ("toml", "reason"),
    [
        ('[[environment.mcp_servers]]\nname = "x"\n', "task.toml: key environment.mcp_servers[0].url: missing"),
        (
            '[[environment.mcp_servers]]\nname = "x"\nurl = "http://mcp-server:8000/sse"\n',
            "http://mcp-server:8000/sse is another machine or service, and a sandbox has no network",
        ),
        ('[environment]\nmcp_servers = "x"\n', "is not a list of tables"),
        ('[[mcp_servers]]\nname = "x"\n', "mcp_servers stands outside [environment]"),
    ],
)
def test_servers_that_no_sandbox_can_hold_are_refused_on_import(tmp_path: Path, toml: str, reason: str) -> None:
    a_harbor_folder(tmp_path / "h", "bad", toml)
    a_harbor_folder(tmp_path / "h", "good", environment__files__a="1")
    report = import_pack(tmp_path / "h", tmp_path / "pack")
    assert list(report.imported) == ["good"] and reason in report.refused["bad"]
