"""Images from one machine to another, and none that nothing asks for any more."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.cli import main
from appliance.config.runconfig import CHECKOUT, home, podman_home
from appliance.errors import HostError
from appliance.harness.harness import Harness, load_harnesses
from appliance.sandbox.images.build import base_ref, build_images, image_exists, image_ref, remove_image
from appliance.sandbox.images.store import load, prune, save, stored, wanted_refs
from appliance.sandbox.settings import PodmanPlaces, podman_environment

HARNESSES = load_harnesses(CHECKOUT / "harnesses")
TOY = replace(
    HARNESSES["pi"], name="store-toy", image="", version="1", check=("echo", "1"), layer="FROM {base}\nENV TOY=1\n"
)


def test_an_image_whose_terms_bind_its_user_is_never_saved(tmp_path: Path) -> None:
    bound = HARNESSES["claude-code-bare"]
    assert "Anthropic" in bound.terms
    with pytest.raises(HostError, match="is not saved: Anthropic's") as caught:
        save(tmp_path, {"pi": HARNESSES["pi"], "claude-code-bare": bound}, tmp_path / "all.tar")
    assert "leave claude-code-bare out" in caught.value.remedy
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_exists_is_not_written_over_and_one_that_is_missing_is_named(tmp_path: Path) -> None:
    file = tmp_path / "images.tar"
    with pytest.raises(HostError, match="no such file"):
        load(tmp_path, file)
    file.write_text("x")
    with pytest.raises(HostError, match="exists"):
        save(tmp_path, {}, file)


def test_what_harness_files_ask_for_holds_the_images_below_them() -> None:
    wanted = wanted_refs([HARNESSES["pi"], HARNESSES["pi-messages"]])
    assert set(wanted) == {"base", "trixie", "node", "pi", "pi-messages"} and wanted["pi"] == wanted["pi-messages"]


@pytest.mark.parametrize(("arguments", "said"), [(["save", "pi"], "no file given"), (["load"], "takes one file")])
def test_a_slip_on_the_command_line_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    monkeypatch.setenv("CORRAL_HOME", str(tmp_path))
    assert main(["images", *arguments]) == 1
    assert said in capsys.readouterr().err


@pytest.fixture
def other_home(tmp_path: Path) -> Path:
    return tmp_path / "other"


@pytest.mark.real
def test_saved_images_work_on_another_machine_and_are_pruned_when_nothing_asks_for_them(
    tmp_path: Path, other_home: Path
) -> None:
    here = podman_home(home())
    here.mkdir(parents=True, exist_ok=True)
    build_images(here, [TOY], print)
    file = tmp_path / "images.tar"
    try:
        assert save(here, {"store-toy": TOY}, file) == sorted([base_ref(), image_ref(TOY)])
        with pytest.raises(HostError, match="not built"):
            save(here, {"none": replace(TOY, layer="FROM {base}\nENV TOY=2\n")}, tmp_path / "more.tar")
    finally:
        remove_image(podman_environment(here), image_ref(TOY))
    other_home.mkdir()
    try:
        assert sorted(load(other_home, file)) == sorted([base_ref(), image_ref(TOY)])
        there: list[Harness] = [TOY]
        assert {image.ref for image in stored(other_home, there) if image.wanted} == {base_ref(), image_ref(TOY)}
        assert prune(other_home, there) == []
        assert [image.ref for image in prune(other_home, [])] == [image_ref(TOY)]
        assert image_exists(podman_environment(other_home), base_ref())
        file.write_text("nonsense")
        with pytest.raises(HostError, match="podman load"):
            load(other_home, file)
    finally:
        remove_image(podman_environment(other_home), base_ref())
        shutil.rmtree(PodmanPlaces.under(other_home).run, ignore_errors=True)
