"""Shipped packs: written by their generator where they are missing, checked where they are there, never half there."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from appliance.cli import main
from appliance.config.runconfig import CHECKOUT
from appliance.errors import PackError
from appliance.tasks import generated
from appliance.tasks.authoring import split_pack
from appliance.tasks.digest import differences, file_digest, pack_digest, task_digest
from appliance.tasks.generated import generate, is_generated, shipped_packs, tasks_folder
from appliance.tasks.pack import load_pack

POCKET = CHECKOUT / "data" / "pocket"


def pythons() -> list[str]:
    """The Pythons of this machine that Corral runs on; a name on the PATH may be that of a launcher without one."""
    found = [shutil.which(name) for name in ("python3.11", "python3.12", "python3.13")]
    return [path for path in found if path and subprocess.call([path, "-c", ""], stderr=subprocess.DEVNULL) == 0]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    monkeypatch.setenv("CORRAL_HOME", str(folder))
    return folder.resolve()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_first_load_writes_all_tasks_into_the_state_folder_and_the_next_one_finds_them(home: Path) -> None:
    pack = load_pack(POCKET)
    assert len(pack.tasks) == 304 and pack.name == "pocket"
    assert pack.path == home / "packs" / "098e34c170f3" / "pocket"
    before = pack.path.stat().st_ino
    assert load_pack(POCKET).path.stat().st_ino == before
    assert names(home / "packs") == {".lock", "098e34c170f3"}


def test_every_folder_with_a_manifest_is_a_shipped_pack() -> None:
    assert [pack.name for pack in shipped_packs()] == ["claw", "pocket"]
    assert is_generated(POCKET) and not is_generated(POCKET / "samples") and not is_generated(CHECKOUT / "data")


def test_a_folder_of_tasks_is_taken_as_it_is(tmp_path: Path) -> None:
    assert tasks_folder(POCKET / "samples") == POCKET / "samples"
    assert len(load_pack(POCKET / "samples").tasks) == 14
    assert tasks_folder(tmp_path / "nowhere") == tmp_path / "nowhere"


def test_a_changed_task_is_named_and_generated_again_on_request_and_the_changed_folder_is_kept(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tasks_folder(POCKET)
    (folder / "count-train-00" / "instruction.md").write_text("Do something else.\n")
    shutil.rmtree(folder / "sort-held-01")
    assert main(["tasks", "list"]) == 1
    said = capsys.readouterr().err
    assert f"{folder}: is not the pack pocket of 304 tasks any more" in said
    assert "count-train-00 is changed, sort-held-01 is missing" in said and "corral tasks generate pocket" in said
    assert main(["tasks", "generate", "pocket", "--json"]) == 0
    (pack,) = json.loads(capsys.readouterr().out)["packs"]
    assert pack["tasks"] == 304 and pack["digest"].startswith("098e34c170f3")
    assert (Path(pack["kept"]) / "count-train-00" / "instruction.md").read_text() == "Do something else.\n"
    assert len(load_pack(POCKET).tasks) == 304
    assert names(home / "packs" / "098e34c170f3") == {"pocket", "pocket.changed-1"}


def test_generating_a_whole_pack_again_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    before = tasks_folder(POCKET).stat().st_ino
    assert generate(POCKET).kept is None and tasks_folder(POCKET).stat().st_ino == before
    assert main(["tasks", "generate", "pockets"]) == 1
    assert "name some of claw, pocket" in capsys.readouterr().err
    assert main(["tasks", "generate", "pocket", str(POCKET), f"{POCKET}/", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["packs"]) == 1


def test_a_kill_while_tasks_are_written_leaves_no_half_pack(home: Path, tmp_path: Path) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text(
        "import sys\nfrom pathlib import Path\nfrom appliance.tasks import generated\n"
        "real = generated._run\n"
        "def run(*words):\n    real(*words)\n    print('written', flush=True)\n    sys.stdin.read()\n"
        "generated._run = run\ngenerated.tasks_folder(Path(sys.argv[1]))\n"
    )
    process = subprocess.Popen(
        [sys.executable, slow, POCKET], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
    )  # fmt: skip
    assert process.stdout and process.stdout.readline() == b"written\n"
    assert any(name.startswith(".writing-") for name in names(home / "packs"))
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert len(load_pack(POCKET).tasks) == 304
    assert names(home / "packs") == {".lock", "098e34c170f3"}


def test_two_processes_that_need_a_pack_at_once_both_get_it(home: Path) -> None:
    code = "import sys; from appliance.tasks.pack import load_pack; from pathlib import Path\n"
    code += "print(len(load_pack(Path(sys.argv[1])).tasks))"
    own = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    both = [subprocess.Popen([sys.executable, "-c", code, POCKET], stdout=subprocess.PIPE, env=own) for _ in range(2)]
    assert [process.communicate()[0] for process in both] == [b"304\n", b"304\n"]
    assert names(home / "packs") == {".lock", "098e34c170f3"}


def test_a_generator_that_writes_other_tasks_than_its_manifest_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generated, "DATA", tmp_path)
    pack = Path(shutil.copytree(POCKET, tmp_path / "pocket"))
    (pack / "words.txt").write_text((pack / "words.txt").read_text().replace("velvet", "velour"))
    with pytest.raises(PackError, match=r"generate\.py: wrote 304 tasks with digest [0-9a-f]{64}, and .* asks for 304"):
        load_pack(pack)
    (pack / "generate.py").write_text("raise SystemExit('out of words')\n")
    with pytest.raises(PackError, match=r"generate\.py: failed: out of words"):
        load_pack(pack)
    (pack / "pack.json").write_text("{}")
    with pytest.raises(PackError, match=r"pack\.json: cannot be read \(KeyError"):
        load_pack(pack)


def test_no_generator_of_another_folder_is_ever_run(tmp_path: Path) -> None:
    pack = Path(shutil.copytree(POCKET, tmp_path / "a pack" / "pocket"))
    (pack / "generate.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    assert len(load_pack(pack).tasks) == 304  # its pack.json asks for what ours asks for: ours is taken
    (pack / "pack.json").write_text('{"tasks": 304, "digest": "another"}')
    with pytest.raises(PackError, match="belongs to another Corral") as error:
        load_pack(pack)
    assert f"python3 '{pack / 'generate.py'}' --out FOLDER" in error.value.remedy and not (tmp_path / "ran").exists()


def test_a_pack_of_a_user_may_hold_files_of_these_names(tmp_path: Path) -> None:
    pack = Path(shutil.copytree(POCKET / "samples", tmp_path / "own"))
    (pack / "pack.json").write_text('{"made": "by hand"}')
    assert len(load_pack(pack).tasks) == 14
    (pack / "generate.py").write_text("raise SystemExit('never run')\n")
    assert len(load_pack(pack).tasks) == 14


def test_a_full_disk_is_named_and_leaves_nothing(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generated, "DATA", tmp_path)
    pack = Path(shutil.copytree(POCKET, tmp_path / "pocket"))
    (pack / "generate.py").write_text("with open('/dev/full', 'w') as file:\n    file.write('x')\n")
    with pytest.raises(PackError, match="cannot be written there: No space left on device") as error:
        load_pack(pack)
    assert "free some space" in error.value.remedy and names(home / "packs") == {".lock"}


def test_a_home_that_cannot_be_written_is_named(home: Path) -> None:
    home.mkdir()
    (home / "packs").write_text("in the way")
    with pytest.raises(PackError, match="packs: ") as error:
        load_pack(POCKET)
    assert "free some space" not in error.value.remedy


def test_a_shipped_pack_is_not_split_but_a_copy_of_it_is(tmp_path: Path) -> None:
    with pytest.raises(PackError, match="a shipped pack's splits are its generator's") as error:
        split_pack(POCKET, 0.5, "task", 0)
    copy = Path(shutil.copytree(error.value.remedy.split()[-2], tmp_path / "own"))
    assert len(split_pack(copy, 0.5, "task", 0)) == 216
    assert len(load_pack(POCKET).split("train")) == 132


@pytest.mark.slow
@pytest.mark.parametrize("python", pythons())
@pytest.mark.parametrize("pack", ["pocket", "claw"])
def test_every_python_of_this_machine_writes_the_same_bytes(tmp_path: Path, pack: str, python: str) -> None:
    subprocess.run(
        [python, "-I", "-B", CHECKOUT / "data" / pack / "generate.py", "--out", tmp_path / "out"], check=True
    )
    wanted = json.loads((CHECKOUT / "data" / pack / "pack.json").read_text())["digest"]
    entries = (tmp_path / "out").iterdir()
    assert pack_digest({e.name: task_digest(e) if e.is_dir() else file_digest(e) for e in entries}) == wanted


IN_THE_WAY = {
    "a file": lambda folder: (shutil.rmtree(folder), folder.write_text("x")),
    "a link to nowhere": lambda folder: (shutil.rmtree(folder), folder.symlink_to("nowhere")),
    "a link to the same tasks": lambda folder: (
        folder.rename(folder.with_name("away")),
        folder.symlink_to(folder.with_name("away")),
    ),
    "a task.toml beside the tasks": lambda folder: (folder / "task.toml").write_text(""),
    "other words": lambda folder: (folder / "words.txt").write_text("one two\n"),
    "no words": lambda folder: (folder / "words.txt").unlink(),
    "a folder whose name is not UTF-8": lambda folder: Path(os.fsdecode(os.fsencode(folder) + b"/\xff")).mkdir(),
}


@pytest.mark.slow
@pytest.mark.parametrize("change", IN_THE_WAY.values(), ids=IN_THE_WAY)
def test_whatever_lies_there_instead_is_named_and_steps_aside_on_request(
    change: object, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tasks_folder(POCKET)
    assert callable(change)
    change(folder)
    assert main(["tasks", "list"]) == 1
    assert f"{folder}: is not the pack pocket of 304 tasks any more: " in capsys.readouterr().err
    kept = generate(POCKET).kept
    assert kept is not None and os.path.lexists(kept)
    assert len(load_pack(POCKET).tasks) == 304


def test_a_changed_pack_is_called_changed_also_where_nothing_can_be_written(home: Path) -> None:
    folder = tasks_folder(POCKET)
    shutil.rmtree(folder / "sort-held-01")
    (home / "packs" / ".lock").unlink()
    (home / "packs" / ".lock").mkdir()
    with pytest.raises(PackError, match="is not the pack pocket of 304 tasks any more: some tasks are changed"):
        load_pack(POCKET)


def test_a_home_whose_name_is_not_utf_8_takes_the_tasks(tmp_path: Path) -> None:
    odd = os.fsencode(tmp_path) + b"/home\xff"
    command = [sys.executable, "-m", "appliance.cli", "tasks", "list", "--json"]
    own = os.environb | {b"CORRAL_HOME": odd}
    done = subprocess.run(command, env=own, cwd=CHECKOUT, capture_output=True, check=True)
    assert len(json.loads(done.stdout)["tasks"]) == 304


@pytest.mark.parametrize("lost", ["pack.json", "generate.py"])
def test_a_shipped_pack_that_lost_a_file_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    monkeypatch.setattr(generated, "DATA", tmp_path)
    pack = Path(shutil.copytree(POCKET, tmp_path / "pocket"))
    (pack / lost).unlink()
    with pytest.raises(PackError, match=rf"{lost}: is missing") as error:
        load_pack(pack)
    assert f"restore {pack}" in error.value.remedy


@pytest.mark.parametrize("text", ["{}", "[", '{"tasks": 1e999, "digest": "a"}', "[" * 100_000, '{"tasks": 3}'])
def test_a_broken_manifest_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(generated, "DATA", tmp_path)
    pack = Path(shutil.copytree(POCKET, tmp_path / "pocket"))
    (pack / "pack.json").write_text(text)
    with pytest.raises(PackError, match=r"pack\.json: cannot be read"):
        load_pack(pack)


def test_an_orphaned_generator_is_waited_for_before_what_it_left_is_removed(home: Path, tmp_path: Path) -> None:
    code = "import sys; from appliance.tasks import generated; from pathlib import Path\n"
    code += "generated.DATA = Path(sys.argv[1]); generated.generate(Path(sys.argv[1]) / 'pocket')"
    pack = Path(shutil.copytree(POCKET, tmp_path / "data" / "pocket"))
    text = (pack / "generate.py").read_text()
    begin = "    names = write_pack(options.out"
    (pack / "generate.py").write_text(text.replace(begin, f"    __import__('time').sleep(1)\n{begin}"))
    own = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    process = subprocess.Popen([sys.executable, "-c", code, pack.parent], env=own)
    deadline = time.monotonic() + 30
    while not [folder for folder in home.glob("packs/.writing-*/pocket") if _runs(folder)]:
        assert time.monotonic() < deadline
    process.kill()
    process.wait()
    assert len(load_pack(POCKET).tasks) == 304
    assert names(home / "packs") == {".lock", "098e34c170f3"}


def _runs(folder: Path) -> bool:
    """Whether a generator that writes to this folder is alive."""
    commands = (Path(f"/proc/{pid}/cmdline") for pid in os.listdir("/proc") if pid.isdigit())
    return any(os.fsencode(folder) in _bytes(command) for command in commands)


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # ended meanwhile
        return b""


# ------------------------------------------------------------------ digests


def a_folder(root: Path) -> Path:
    (root / "tests").mkdir(parents=True)
    (root / "tests" / "test.sh").write_text("exit 0\n")
    (root / "instruction.md").write_text("Do it.\n")
    return root


CHANGES = {
    "another byte": lambda task: (task / "instruction.md").write_text("Do it!\n"),
    "another name": lambda task: (task / "instruction.md").rename(task / "instructions.md"),
    "one file more": lambda task: (task / "new").write_text(""),
    "one empty folder more": lambda task: (task / "new").mkdir(),
    "one file less": lambda task: (task / "tests" / "test.sh").unlink(),
    "the right to be executed": lambda task: (task / "tests" / "test.sh").chmod(0o755),
    "a link for a file": lambda task: ((task / "instruction.md").unlink(), (task / "instruction.md").symlink_to("x")),
    "a name that is not UTF-8": lambda task: Path(os.fsdecode(os.fsencode(task) + b"/\xff")).write_text(""),
    "bytes moved from one file to the next": lambda task: (
        (task / "instruction.md").write_text("Do it.\ne"),
        (task / "tests" / "test.sh").write_text("xit 0\n"),
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_whatever_changes_in_a_task_changes_its_digest(tmp_path: Path, change: object) -> None:
    before = task_digest(a_folder(tmp_path / "task"))
    assert task_digest(a_folder(tmp_path / "twin")) == before
    assert callable(change)
    change(tmp_path / "task")
    assert task_digest(tmp_path / "task") != before


def test_times_and_the_place_of_a_task_do_not_change_its_digest(tmp_path: Path) -> None:
    before = task_digest(a_folder(tmp_path / "task"))
    os.utime(tmp_path / "task" / "instruction.md", (time.time() - 9e6, 0))
    assert task_digest((tmp_path / "task").rename(tmp_path / "moved")) == before


def test_a_digest_of_a_pack_is_the_one_worked_out_with_other_tools(tmp_path: Path) -> None:
    lines = "a 1\nb 2\n"
    by_hand = subprocess.run(["sha256sum"], input=lines.encode(), capture_output=True, check=True).stdout
    assert pack_digest({"b": "2", "a": "1"}) == by_hand.split()[0].decode()


def test_differences_name_three_tasks_and_count_the_rest() -> None:
    assert differences({"a": "1", "b": "2"}, {"b": "2", "a": "1"}) == ""
    assert differences({"a": "1", "b": "2"}, {"b": "3", "c": "4"}) == "a is missing, b is changed, c is new"
    assert differences({}, {name: "" for name in "abcde"}) == "a is new, b is new, c is new and 2 more"
