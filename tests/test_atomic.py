"""Folders and files appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.atomic import new_file, new_folder


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
