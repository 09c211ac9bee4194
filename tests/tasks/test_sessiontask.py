"""A recorded session becomes a draft task whose null agent earns nothing and whose oracle earns everything."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from appliance.errors import PackError
from appliance.tasks.pack import Task
from appliance.tasks.reward import read_reward
from appliance.tasks.sessiontask import difference, draft_task, instruction

SAID = [
    {
        "conversation": {
            "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "Tidy the notes."}]
        }
    },
    {
        "conversation": {
            "messages": [
                {"role": "user", "content": "Tidy the notes."},
                {"role": "assistant", "content": "Done."},
                {"role": "user", "content": "And drop old.txt."},
            ]
        }
    },
    {"conversation": None},
]


def two_folders(root: Path) -> tuple[Path, Path]:
    before, after = root / "before", root / "after"
    for folder in (before, after):
        (folder / "sub").mkdir(parents=True)
        (folder / ".git").mkdir()
        (folder / ".git" / "HEAD").write_text(folder.name)
        (folder / "same.txt").write_text("same\n")
        (folder / "picture.png").write_bytes(b"\x89PNG\0" + folder.name.encode())
    (before / "notes.md").write_text("b\na\nkept\n")
    (after / "notes.md").write_text("# Notes\na\nb\nkept\n")
    (before / "it's old.txt").write_text("old\n")
    (after / "sub" / "new.txt").write_text("new\n")
    return before, after


def grade(task: Task, root: Path, command: str = "") -> float:
    root.mkdir()
    workspace, logs = root / "workspace", root / "logs"
    subprocess.run(["cp", "-r", task.environment_files, workspace], check=True)
    logs.mkdir()
    env = {
        "PATH": os.environ["PATH"], "CORRAL_WORKSPACE": str(workspace), "CORRAL_TESTS": str(task.tests),
        "CORRAL_VERIFIER_LOGS": str(logs),
    }  # fmt: skip
    if command:
        subprocess.run(["bash", "-c", command], cwd=workspace, env=env, check=True)
    subprocess.run(["bash", task.tests / "test.sh"], env=env, check=True)
    return read_reward(logs).value


def test_a_session_becomes_a_task_that_its_own_result_solves(tmp_path: Path) -> None:
    before, after = two_folders(tmp_path)
    notes = draft_task(tmp_path / "pack" / "tidy", before, after, SAID, "notes")
    task = Task.from_dir(tmp_path / "pack" / "tidy")
    assert task.instruction == "Tidy the notes.\n\nAnd drop old.txt."
    assert any("picture.png" in note for note in notes) and "lint" in notes[-1]
    assert not (task.environment_files / ".git").exists()
    assert grade(task, tmp_path / "null") == 0.0
    assert task.solution
    assert grade(task, tmp_path / "oracle", f"bash {task.solution}/solve.sh") == 1.0
    half = "printf '# Notes\\na\\nb\\nkept\\n' > notes.md"
    assert grade(task, tmp_path / "part", half) == pytest.approx(1 / 3)
    harmed = f"bash {task.solution}/solve.sh && echo x >> same.txt"
    assert grade(task, tmp_path / "harm", harmed) == 0.5


def test_the_difference_names_what_was_written_and_removed(tmp_path: Path) -> None:
    before, after = two_folders(tmp_path)
    found = difference(before, after)
    assert set(found.written) == {"notes.md", "sub/new.txt"} and found.removed == ["it's old.txt"]
    assert found.unchecked == ["picture.png"] and ".git/HEAD" not in found.before


def test_what_cannot_be_a_task_is_said(tmp_path: Path) -> None:
    before, after = two_folders(tmp_path)
    with pytest.raises(PackError, match="does not differ"):
        draft_task(tmp_path / "a", before, before, SAID, "f")
    with pytest.raises(PackError, match="no recorded conversation"):
        draft_task(tmp_path / "b", before, after, [{"conversation": None}], "f")
    with pytest.raises(PackError, match="no message of a user"):
        instruction([{"conversation": {"messages": [{"role": "system", "content": "x"}]}}])
    (tmp_path / "there").mkdir()
    with pytest.raises(PackError, match="exists already"):
        draft_task(tmp_path / "there", before, after, SAID, "f")
    (before / "link").symlink_to("/etc/passwd")
    with pytest.raises(PackError, match="link or device"):
        draft_task(tmp_path / "c", before, after, SAID, "f")
    assert not (tmp_path / "c").exists()
