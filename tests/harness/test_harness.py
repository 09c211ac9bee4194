"""How harness files are read and turned into a command line."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from appliance.errors import HarnessFileError
from appliance.harness.harness import Harness, load_harnesses

SHIPPED = Path(__file__).resolve().parents[2] / "harnesses"
BASE_URL = "http://127.0.0.1:8123/s/tok-1"

GOOD = """\
name = "toy"
version = "1.0"
wire = "chat"
[image]
check = ["toy", "--version"]
layer = "FROM {base}"
[launch]
argv = ["toy", "--url", "{base_url}/v1", "{prompt}"]
env = { KEY = "{token}" }
[files]
".toy/config.json" = '{"model": "{model}", "max": {max_tokens}}'
[limits]
memory_mb = 100
pids = 32
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "toy.toml"
    path.write_text(text)
    return path


def test_a_launch_fills_in_the_placeholders(tmp_path: Path) -> None:
    harness = Harness.from_file(written(tmp_path, GOOD))
    launch = harness.launch("say hi", BASE_URL, "tok-1", "policy", 256)
    assert launch.argv == ("toy", "--url", f"{BASE_URL}/v1", "say hi")
    assert launch.env == {"KEY": "tok-1"}
    assert json.loads(launch.files[".toy/config.json"]) == {"model": "policy", "max": 256}
    assert harness.memory_bytes == 100_000_000


def test_a_prompt_that_looks_like_a_placeholder_stays_as_it_is(tmp_path: Path) -> None:
    harness = Harness.from_file(written(tmp_path, GOOD))
    assert harness.launch("print {token} and {model}", BASE_URL, "t", "m", 1).argv[-1] == "print {token} and {model}"


def test_a_model_name_that_would_break_a_file_is_refused(tmp_path: Path) -> None:
    harness = Harness.from_file(written(tmp_path, GOOD))
    with pytest.raises(ValueError, match="model"):
        harness.launch("p", BASE_URL, "t", 'x", "evil": "', 1)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('wire = "chat"', 'wyre = "chat"', "wyre is not a known key"),
        ('wire = "chat"', 'wire = "telepathy"', "wire is 'telepathy'"),
        ('wire = "chat"\n', "", "wire is missing"),
        ('version = "1.0"', "version = 1.0", "version must be a str"),
        ("pids = 32", "pids = 0", "limits.pids is 0"),
        ('layer = "FROM {base}"', "", "image.layer is missing"),
        ('layer = "FROM {base}"', 'layer = "FROM {base}"\nsame_as = "pi"', "image.check stands beside same_as"),
        ('check = ["toy", "--version"]\nlayer = "FROM {base}"', 'same_as = "none"', "image.same_as is 'none'"),
        ('name = "toy"', 'name = "to y"', "name is 'to y'"),
        ('name = "toy"', 'name = "töy"', "name is 'töy'"),
        ('name = "toy"', 'name = "../toy"', "name is '../toy'"),
        ("pids = 32", "pids = 32\ndisk = 3", "limits.disk is not a known key"),
        ('check = ["toy", "--version"]', "check = []", "image.check must be a non-empty list"),
        ('"{prompt}"]', '"fixed"]', "launch.argv does not use {prompt}"),
        ('"--url", "{base_url}/v1", ', "", "launch does not use {base_url}"),
        ('".toy/config.json"', '"../outside"', "is not a plain path under HOME"),
        ('name = "toy"', 'name = "other"', "name is 'other', but the file is called toy.toml"),
        ("[launch]", "[launch", "cannot be read"),
    ],
)
def test_a_mistake_is_named_with_its_file_and_key(tmp_path: Path, before: str, after: str, said: str) -> None:
    assert before in GOOD
    with pytest.raises(HarnessFileError) as caught:
        Harness.from_file(written(tmp_path, GOOD.replace(before, after, 1)))
    assert "toy.toml" in caught.value.message
    assert said in caught.value.message
    assert caught.value.remedy


def test_a_near_miss_gets_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(HarnessFileError, match=r"did you mean limits\.memory_mb"):
        Harness.from_file(written(tmp_path, GOOD.replace("memory_mb", "memory_bm")))


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(HarnessFileError, match="no harness files"):
        load_harnesses(tmp_path)


def test_a_variant_shares_the_image_of_its_program_and_must_agree_on_the_version(tmp_path: Path) -> None:
    written(tmp_path, GOOD)
    image = 'check = ["toy", "--version"]\nlayer = "FROM {base}"'
    variant = GOOD.replace('name = "toy"', 'name = "toy-two"').replace(image, 'same_as = "toy"')
    path = tmp_path / "toy-two.toml"
    path.write_text(variant)
    harness = Harness.from_file(path)
    assert (harness.image, harness.layer) == ("toy", "FROM {base}")
    path.write_text(variant.replace('"1.0"', '"2.0"'))
    with pytest.raises(HarnessFileError, match=r"version is not that of toy, 1\.0"):
        Harness.from_file(path)


def test_the_shipped_harnesses_write_valid_files_and_pin_what_they_install() -> None:
    harnesses = load_harnesses(SHIPPED)
    programs = {harness.image for harness in harnesses.values()}
    assert len(programs) >= 12 and {"openclaw", "claude-code", "pi", "codex", "mini-swe-agent"} <= programs
    for harness in harnesses.values():
        assert harness.version in harness.layer
        for path, text in harness.launch("p", BASE_URL, "tok-1", "policy", 512).files.items():
            if path.endswith(".json"):
                json.loads(text)
            if path.endswith(".toml"):
                tomllib.loads(text)
            if path.endswith(".py"):
                compile(text, path, "exec")
