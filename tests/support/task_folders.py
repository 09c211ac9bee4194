"""Small valid task folders, for a test to load, to import or to break.

`refused` gives the error of a pack that must not load.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.errors import PackError
from appliance.tasks.pack import load_pack

TASK_TOML = """
schema_version = "1.1"
[metadata]
family = "greeting"
split = "train"
[agent]
timeout_sec = 30
[verifier]
timeout_sec = 5.5
"""
MCP_SERVERS_TOML = """
[[environment.mcp_servers]]
name = "stock"
transport = "stdio"
command = "python3"
args = ["/workspace/server.py", "--quiet"]

[[environment.mcp_servers]]
name = "notes"
transport = "streamable-http"
url = "http://127.0.0.1:8000/mcp"
"""


def make_task(pack: Path, name: str = "hello", toml: str = TASK_TOML) -> Path:
    """A small valid task in Harbor's layout."""
    folder = pack / name
    contents = {
        "task.toml": toml,
        "instruction.md": "Write hello to answer.txt.\n",
        "environment/files/notes.txt": "hello\n",
        "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
        "solution/solve.sh": "echo hello > /workspace/answer.txt\n",
        "solution/teacher.json": '["cat notes.txt", "echo hello > answer.txt"]',
    }
    for path, text in contents.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def a_harbor_folder(root: Path, name: str, toml: str = "", **files: str) -> Path:
    """A Harbor task to import; `toml` ends its task.toml. A file's path is its keyword with `__` for each slash."""
    folder = root / name
    (folder / "tests").mkdir(parents=True)
    (folder / "environment").mkdir()
    (folder / "instruction.md").write_text("Do it.\n")
    (folder / "tests" / "test.sh").write_text("#!/bin/bash\necho 0 > /logs/verifier/reward.txt\n")
    (folder / "task.toml").write_text(f'schema_version = "1.4"\n[metadata]\ncategory = "programming"\n{toml}')
    for path, text in files.items():
        target = folder / path.replace("__", "/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return folder


def refused(path: Path) -> PackError:
    """The error of a pack that must not load; it always names a remedy."""
    with pytest.raises(PackError) as caught:
        load_pack(path)
    assert caught.value.remedy
    return caught.value
