"""Folders and files appear whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from appliance.system.files import new_file, new_folder, private_folder, written


def test_a_folder_replaces_the_one_before_it_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    for text in ("old", "new"):
        with new_folder(tmp_path / "deep" / "v1") as temporary:
            (temporary / text).write_text(text)
    assert [f.name for f in (tmp_path / "deep").iterdir()] == ["v1"]
    assert [f.name for f in (tmp_path / "deep" / "v1").iterdir()] == ["new"]


def test_what_fails_half_way_leaves_what_was_there(tmp_path: Path) -> None:
    with new_folder(tmp_path / "v1") as temporary:
        (temporary / "weights").write_text("good")
    with new_file(tmp_path / "state") as file:
        file.write_text("good")
    with pytest.raises(OSError, match="disk full"), new_folder(tmp_path / "v1") as temporary:
        (temporary / "weights").write_text("ha")
        raise OSError("disk full")
    with pytest.raises(OSError, match="disk full"), new_file(tmp_path / "state") as file:
        file.write_text("ha")
        raise OSError("disk full")
    assert (tmp_path / "v1" / "weights").read_text() == "good" and (tmp_path / "state").read_text() == "good"
    assert sorted(f.name for f in tmp_path.iterdir()) == ["state", "v1"]


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_what_is_written_for_its_owner_is_closed_to_others_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with written(tmp_path / "page.html") as file:
            file.write_text("x")
        with written(tmp_path / "job", is_folder=True) as folder:
            (folder / "trial").mkdir()
            (folder / "trial" / "result.json").write_text("{}")
        private_folder(tmp_path / "runs")
    finally:
        os.umask(before)
    assert mode(tmp_path / "page.html") == mode(tmp_path / "job" / "trial" / "result.json") == 0o600
    assert mode(tmp_path / "job") == mode(tmp_path / "job" / "trial") == mode(tmp_path / "runs") == 0o700


def test_a_folder_that_others_could_enter_is_closed(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs").chmod(0o755)
    assert mode(private_folder(tmp_path / "runs")) == 0o700
