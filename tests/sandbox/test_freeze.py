"""The final workspace before it is graded: what could show or stall the grader is gone, honest work stays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from appliance.errors import HarnessError
from appliance.sandbox.freeze import freeze, leads_out


@pytest.mark.parametrize(
    "target",
    [
        "/tests/expected.txt", "/", "/logs/verifier/reward.txt", "../tests/expected.txt", "sub/../../tests/x",
        "/proc/self/root/tests/x", "/var/run/../tests/x", "/workspace/../tests/x", "/workspace/away/../tests/x",
        "away/../tests/x", "/usr/../tests", "/dev/fd/3", "/home/agent/x",
    ],
)  # fmt: skip
def test_a_link_to_the_graders_places_is_removed(tmp_path: Path, target: str) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "away").symlink_to("/usr")
    (tmp_path / "out.txt").symlink_to(target)
    assert freeze(tmp_path) == ["out.txt"]
    assert not os.path.lexists(tmp_path / "out.txt")


@pytest.mark.parametrize(
    "target", ["/usr/bin/python3", "notes.txt", "sub/../notes.txt", "../notes.txt", "/workspace/notes.txt", "/dev/null"]
)
def test_an_honest_link_stays(tmp_path: Path, target: str) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/link").symlink_to(target)
    assert freeze(tmp_path) == []
    assert leads_out(tmp_path, "link", "../notes.txt")  # the same words one folder higher lead out


def test_what_would_stall_a_reader_is_removed_and_closed_folders_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "shut").mkdir()
    (tmp_path / "shut/kept.txt").write_text("kept")
    (tmp_path / "shut").chmod(0)
    tmp_path.chmod(0)
    assert freeze(tmp_path) == ["pipe"]
    assert (tmp_path / "shut/kept.txt").read_text() == "kept"
    assert (tmp_path / "shut").stat().st_mode & 0o700 == 0o700


def test_folders_nested_beyond_any_path_are_named_and_not_followed(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(60):
        os.mkdir("d" * 100, dir_fd=here)
        deeper = os.open("d" * 100, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)
    with pytest.raises(HarnessError, match="too deep") as caught:
        freeze(tmp_path)
    assert caught.value.label == "harness:bad_workspace"
