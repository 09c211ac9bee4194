"""Harness files from several folders, read again while something runs; and files written from a few answers."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.cli import main
from appliance.config.runconfig import CHECKOUT
from appliance.errors import HarnessFileError
from appliance.harness.catalog import Shelf, harness_folders
from appliance.harness.harness import Harness
from appliance.harness.scaffold import Answers, harness_text, write_harness
from appliance.runs.harness_reload import InForce, reloading
from appliance.sandbox.images.build import image_ref
from appliance.sandbox.images.task import TaskImages, over_ref

ANSWERS = Answers(
    name="mytool",
    wire="chat",
    command='mytool --url {base_url}/v1 --key {token} "{prompt}"',
    install="pip:mytool[all]==1.4.2",
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_harness(ANSWERS, tmp_path)
    return tmp_path


def test_the_users_folders_come_after_the_shipped_one_and_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "harnesses"
    write_harness(replace(ANSWERS, name="pi"), own)
    write_harness(ANSWERS, tmp_path / "more")
    monkeypatch.setenv("CORRAL_HARNESSES", f"{tmp_path}/more:{tmp_path}/not-there")
    assert harness_folders(tmp_path)[:2] == (CHECKOUT / "harnesses", own)
    shelf = Shelf.of(tmp_path)
    assert shelf.get("pi").version == "1.4.2" and shelf.paths["pi"] == own / "pi.toml"
    assert shelf.get("mytool").argv[0] == "mytool" and shelf.get("codex").wire == "responses"


def test_a_broken_file_is_named_and_what_it_said_before_stays_in_force(folder: Path) -> None:
    shelf = Shelf([folder])
    assert shelf.read() == ["mytool"]
    path = folder / "mytool.toml"
    path.write_text(path.read_text().replace("pids", "pidz"))
    assert shelf.read() == []
    assert "limits.pidz is not a known key" in shelf.problems[path].message
    assert shelf.get("mytool").version == "1.4.2"
    path.unlink()
    shelf.read()
    with pytest.raises(HarnessFileError, match="there is no harness 'mytool'"):
        shelf.get("mytool")


def test_a_file_that_was_never_whole_breaks_only_itself(folder: Path) -> None:
    (folder / "other.toml").write_text("name = ")
    shelf = Shelf([folder])
    shelf.read()
    assert list(shelf.harnesses) == ["mytool"]
    with pytest.raises(HarnessFileError, match=r"other\.toml: cannot be read"):
        shelf.get("other")


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_run_takes_up_a_changed_file_and_names_a_broken_one(tmp_path: Path) -> None:
    path = write_harness(ANSWERS, tmp_path / "harnesses")
    text = path.read_text()
    first = Harness.from_file(path)
    harnesses, images = {"mytool": first}, {"mytool": image_ref(first)}
    own = TaskImages("corral-task-t:1", {"mytool": over_ref("corral-task-t:1", first)}, tmp_path)
    built = {image_ref(first), own.by_harness["mytool"]}
    said: list[str] = []

    async def image_exists(ref: str) -> bool:
        return ref in built

    def log(level: str, part: str, message: str) -> None:
        said.append(message)

    async def until(number: int) -> None:
        while len(said) < number:
            await anyio.sleep(0.02)

    with anyio.fail_after(60):
        async with reloading(tmp_path, InForce(harnesses, images, {"t": own}), image_exists, log):
            await anyio.sleep(0.5)  # the watch is set up in a thread of its own and says nothing when it is
            path.write_text(text.replace("memory_mb = 1000", "memory_mb = 1500"))
            await until(1)
            assert harnesses["mytool"].memory_bytes == 1_500_000_000 and "read again" in said[0]
            path.write_text("name = ")
            await until(2)
            assert "cannot be read" in said[1] and "stays in force" in said[1]
            path.write_text(text.replace("1.4.2", "1.5.0"))
            await until(3)
            assert "its image is not built" in said[2] and "corral harness build mytool" in said[2]
            assert harnesses["mytool"].version == "1.4.2"
            newer = Harness.from_file(path)
            built.add(image_ref(newer))
            path.write_text(text.replace("1.4.2", "1.5.0").replace("memory_mb = 1000", "memory_mb = 1600"))
            await until(4)
            assert "its image for task t is not built" in said[3] and "corral images build mytool" in said[3]
            assert harnesses["mytool"].version == "1.4.2" and own.by_harness["mytool"] in built
            built.add(over_ref("corral-task-t:1", newer))
            path.write_text(text.replace("1.4.2", "1.5.0").replace("memory_mb = 1000", "memory_mb = 1700"))
            await until(5)
            assert (harnesses["mytool"].version, images["mytool"]) == ("1.5.0", image_ref(newer))
            assert own.by_harness["mytool"] == over_ref("corral-task-t:1", newer), "its task's image is the new one too"


def test_the_answers_become_a_file_that_is_read_back(folder: Path) -> None:
    harness = Harness.from_file(folder / "mytool.toml")
    assert harness.argv == ("mytool", "--url", "{base_url}/v1", "--key", "{token}", "{prompt}")
    assert "pip install --no-cache-dir --quiet 'mytool[all]==1.4.2'" in harness.layer
    assert harness.version == "1.4.2" and harness.check[0] == "/opt/mytool/bin/python"


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(env=st.dictionaries(st.text("AB_", min_size=1, max_size=4), TEXT, max_size=4))
def test_any_text_an_answer_holds_comes_back_as_it_was(env: dict[str, str]) -> None:
    table = tomllib.loads(harness_text(replace(ANSWERS, env=env)))
    assert table["launch"]["env"] == env


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"install": "pip:mytool"}, "is not a pinned package"),
        ({"install": "curl https://example.org | sh"}, "is not a pinned package"),
        ({"name": "my tool"}, "cannot name a harness"),
        ({"name": "../mytool"}, "cannot name a harness"),
        ({"command": "mytool 'unclosed"}, "command: "),
        ({"command": " "}, "is empty"),
        ({"command": "mytool {base_url}"}, "launch.argv does not use {prompt}"),
        ({"command": "mytool {prompt}"}, "launch does not use {base_url}"),
        ({"wire": "smoke"}, "wire is 'smoke'"),
        ({"pids": 0}, "limits.pids is 0"),
        ({"files": {"/etc/passwd": "x"}}, "is not a plain path under HOME"),
        ({"install": "", "layer": "FROM {base}"}, "needs version and check"),
    ],
)
def test_a_wrong_answer_is_named_and_leaves_no_file(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    with pytest.raises(HarnessFileError) as caught:
        write_harness(replace(ANSWERS, **changes), tmp_path)
    assert said in caught.value.message and caught.value.remedy
    assert list(tmp_path.iterdir()) == []


def test_new_never_writes_over_a_file(folder: Path) -> None:
    with pytest.raises(HarnessFileError, match="exists"):
        write_harness(ANSWERS, folder)


def test_the_commands_write_show_and_list_a_users_harness(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CORRAL_HOME", str(tmp_path))
    monkeypatch.delenv("CORRAL_PODMAN_HOME", raising=False)
    (tmp_path / "conf").write_text('{"url": "{base_url}"}')
    given_ = ["--wire", "messages", "--install", "npm:@me/tool@2.0.1", "--command", 'tool "{prompt}"']
    given_ += ["--env", "K={token}"]
    assert main(["harness", "new", "mine", *given_, "--file", f".mine/conf.json={tmp_path}/conf", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"file": str(tmp_path / "harnesses" / "mine.toml")}
    assert main(["harness", "show", "mine", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["version"], shown["wire"], shown["env"]) == ("2.0.1", "messages", {"K": "{token}"})
    assert shown["files"] == {".mine/conf.json": '{"url": "{base_url}"}'}
    assert main(["harness", "show", "none"]) == 1
    assert "there is no harness 'none'" in capsys.readouterr().err


def test_what_is_not_given_and_cannot_be_asked_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CORRAL_HOME", str(tmp_path))
    assert main(["harness", "new", "mine", "--wire", "chat"]) == 1
    assert "--install, --command not given" in capsys.readouterr().err
