"""Task packs: what loads, and the message for everything that does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.errors import PackError
from appliance.tasks.pack import Task, load_pack, read_pack
from tests.support.task_folders import TASK_TOML, make_task, refused


def test_a_task_is_read_from_its_folder(tmp_path: Path) -> None:
    folder = make_task(tmp_path)
    assert Task.from_dir(folder) == Task(
        name="hello",
        family="greeting",
        split="train",
        instruction="Write hello to answer.txt.",
        path=folder,
        environment_files=folder / "environment" / "files",
        tests=folder / "tests",
        solution=folder / "solution",
        agent_timeout_s=30.0,
        verifier_timeout_s=5.5,
        teacher=("cat notes.txt", "echo hello > answer.txt"),
    )


def test_a_pack_holds_its_tasks_in_name_order_and_by_split(tmp_path: Path) -> None:
    make_task(tmp_path, "zebra")
    make_task(tmp_path, "apple", TASK_TOML.replace('"train"', '"held-out"'))
    (tmp_path / "README.md").write_text("a file beside the tasks is no task")
    (tmp_path / "__pycache__").mkdir()
    pack = load_pack(tmp_path)
    assert [task.name for task in pack.tasks] == ["apple", "zebra"]
    assert [task.name for task in pack.split("held-out")] == ["apple"]
    assert pack.task("zebra").split == "train"
    with pytest.raises(PackError, match="did you mean zebra"):
        pack.task("zebr")


def test_a_pack_can_be_cut_to_families_and_a_slip_among_them_is_named(tmp_path: Path) -> None:
    for family in ("greeting", "sums", "letters"):
        make_task(tmp_path, family, TASK_TOML.replace('"greeting"', f'"{family}"'))
    assert [task.name for task in load_pack(tmp_path, ("sums", "greeting")).tasks] == ["greeting", "sums"]
    assert load_pack(tmp_path, ()) == load_pack(tmp_path)
    with pytest.raises(PackError, match=r"tasks\.families: .* has no family 'sum'") as error:
        load_pack(tmp_path, ("letters", "sum"))
    assert error.value.remedy == "did you mean sums?"
    with pytest.raises(PackError) as error:
        load_pack(tmp_path, ("zzz",))
    assert error.value.remedy == "name some of greeting, letters, sums, or none for all"


def test_solution_teacher_and_timeouts_may_be_left_out_as_in_harbor(tmp_path: Path) -> None:
    folder = make_task(tmp_path, toml='[metadata]\nfamily = "f"\nsplit = "train"\ntags = ["x"]\n')
    (folder / "solution" / "solve.sh").unlink()
    (folder / "solution" / "teacher.json").unlink()
    task = Task.from_dir(folder)
    assert (task.solution, task.teacher) == (None, ())
    assert (task.agent_timeout_s, task.verifier_timeout_s) == (600.0, 600.0)


def test_keys_of_harbor_that_corral_does_not_read_are_left_alone(tmp_path: Path) -> None:
    make_task(
        tmp_path,
        toml='version = "1.0"\nsource = "x"\n[environment]\ncpus = 2\n'
        + TASK_TOML.split("\n", 2)[2]
        + 'env = { KEY = "value" }\nuser = "root"\n',
    )
    assert len(load_pack(tmp_path).tasks) == 1


def test_harbors_task_name_counts_without_its_organisation(tmp_path: Path) -> None:
    make_task(tmp_path, "folder", '[task]\nname = "corral/hello"\n' + TASK_TOML.split("\n", 2)[2])
    assert load_pack(tmp_path).tasks[0].name == "hello"


def test_two_tasks_of_one_name_are_refused_and_both_are_named(tmp_path: Path) -> None:
    named = '[task]\nname = "corral/hello"\n' + TASK_TOML.split("\n", 2)[2]
    make_task(tmp_path, "one", named)
    make_task(tmp_path, "two", named)
    message = refused(tmp_path).message
    assert "two/task.toml: key task.name: hello" in message and "one/task.toml" in message


def test_a_missing_pack_says_what_to_name(tmp_path: Path) -> None:
    assert "does not exist" in refused(tmp_path / "nowhere").message
    (tmp_path / "file").write_text("")
    assert "is not a folder" in refused(tmp_path / "file").message


def test_a_folder_without_tasks_is_no_pack(tmp_path: Path) -> None:
    assert "holds no task" in refused(tmp_path).message
    with pytest.raises(PackError, match="holds no task"):
        read_pack(tmp_path)


def test_a_task_given_as_a_pack_points_to_its_parent(tmp_path: Path) -> None:
    assert str(tmp_path) in refused(make_task(tmp_path)).remedy


def test_broken_toml_names_file_and_line(tmp_path: Path) -> None:
    make_task(tmp_path, toml='[metadata]\nfamily = "unclosed\n')
    message = refused(tmp_path).message
    assert "hello/task.toml: is not TOML" in message and "line 2" in message


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("task.toml", "task.toml: missing"),
        ("instruction.md", "instruction.md: missing"),
        ("tests/test.sh", "test.sh: missing"),
        ("environment/files/notes.txt", None),
    ],
)
def test_a_missing_file_is_named(tmp_path: Path, path: str, shown: str | None) -> None:
    (make_task(tmp_path) / path).unlink()
    if shown is None:
        assert load_pack(tmp_path).tasks
    else:
        assert shown in refused(tmp_path).message


def test_a_task_may_have_a_dockerfile_instead_of_files(tmp_path: Path) -> None:
    folder = make_task(tmp_path)
    (folder / "environment" / "files" / "notes.txt").unlink()
    (folder / "environment" / "files").rmdir()
    assert "environment/files: missing" in refused(tmp_path).message
    (folder / "environment" / "Dockerfile").write_text("FROM corral-base\n")
    (task,) = load_pack(tmp_path).tasks
    assert task.dockerfile == folder / "environment" / "Dockerfile" and not task.environment_files.exists()


@pytest.mark.parametrize(
    ("old", "new", "message", "remedy"),
    [
        ('family = "greeting"', "", "key metadata.family: missing", "[metadata]"),
        ('family = "greeting"', "family = 3", "key metadata.family: 3", "family ="),
        ('family = "greeting"', 'famly = "greeting"', "key metadata.famly: unknown", "did you mean family?"),
        ('"train"', '"held_out"', "key metadata.split: 'held_out'", "did you mean held-out?"),
        ("[agent]", "[agnet]", "key agnet: unknown", "did you mean agent?"),
        ("timeout_sec = 30", "timeout_s = 30", "key agent.timeout_s: unknown", "timeout_sec"),
        ("timeout_sec = 30", "timeout_sec = 0", "key agent.timeout_sec: 0", "above 0"),
        ("timeout_sec = 30", "timeout_sec = nan", "key agent.timeout_sec: nan", "above 0"),
        ("timeout_sec = 30", f"timeout_sec = 1{'0' * 400}", "key agent.timeout_sec: 1000", "above 0"),
        ("timeout_sec = 5.5", 'timeout_sec = "5"', "key verifier.timeout_sec: '5'", "above 0"),
        ("timeout_sec = 5.5", "timeout_sec = true", "key verifier.timeout_sec: True", "above 0"),
        ('schema_version = "1.1"', "agent = 1\n[x]", "key agent: is not a table", "[agent]"),
        ('schema_version = "1.1"', '[task]\nname = "a b"', "key task.name: 'a b'", "letters"),
    ],
)
def test_a_wrong_key_is_named_with_its_remedy(tmp_path: Path, old: str, new: str, message: str, remedy: str) -> None:
    toml = TASK_TOML.replace(old, new)
    if new.startswith("agent = 1"):
        toml = toml.replace("[agent]", "[y]")
    make_task(tmp_path, toml=toml)
    error = refused(tmp_path)
    assert f"hello/task.toml: {message}" in error.message
    assert remedy in error.remedy


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "is not JSON"),
        ("[]", "at least one command"),
        ('{"a": 1}', "is not a list"),
        ('["ls", 3]', "key [1]"),
        ('["ls\\nrm x"]', "key [0]"),
        ('[""]', "key [0]"),
    ],
)
def test_a_broken_teacher_is_named(tmp_path: Path, text: str, message: str) -> None:
    (make_task(tmp_path) / "solution" / "teacher.json").write_text(text)
    shown = refused(tmp_path).message
    assert "teacher.json" in shown and message in shown


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b" \n", "is empty"),
        (b"\xff\xfe", "is not UTF-8"),
        (b"a\0b", "NUL"),
        (b"a" * 1_048_577, "larger than"),
    ],
    ids=["empty", "not UTF-8", "NUL", "large"],
)
def test_an_unusable_instruction_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    (make_task(tmp_path) / "instruction.md").write_bytes(data)
    assert message in refused(tmp_path).message


def test_a_link_among_the_workspace_files_is_refused_since_the_host_copies_them(tmp_path: Path) -> None:
    folder = make_task(tmp_path)
    (folder / "environment" / "files" / "secret").symlink_to("/etc/passwd")
    assert "files/secret: is neither a file nor a folder" in refused(tmp_path).message


@pytest.mark.parametrize(
    "path", ["instruction.md", "task.toml", "tests/test.sh", "tests/data", "environment/files", "solution", "."]
)
def test_a_link_anywhere_in_a_task_is_refused_whatever_it_leads_to(tmp_path: Path, path: str) -> None:
    folder, away = make_task(tmp_path / "pack"), tmp_path / "away"
    target = folder / path
    if target.exists():
        target.rename(away)
    else:
        away.write_text("secret")
    target.symlink_to(away)
    with pytest.raises(PackError, match="is neither a file nor a folder") as caught:
        load_pack(tmp_path / "pack")
    assert str(folder / path) in str(caught.value)


def test_only_what_a_dockerfile_is_built_with_may_hold_links(tmp_path: Path) -> None:
    folder = make_task(tmp_path)
    (folder / "environment" / "src").mkdir()
    (folder / "environment" / "src" / "link").symlink_to("nowhere")
    assert "src/link" in str(refused(tmp_path))
    (folder / "environment" / "Dockerfile").write_text("FROM corral-base\n")
    assert load_pack(tmp_path).task("hello").dockerfile
    (folder / "environment" / "files" / "link").symlink_to("/etc/passwd")
    assert "files/link" in str(refused(tmp_path))


@pytest.mark.parametrize("part", ["environment/files", "tests", "solution"])
def test_two_gigabytes_in_a_task_are_named_and_refused(tmp_path: Path, part: str) -> None:
    with (make_task(tmp_path) / part / "huge.bin").open("wb") as file:
        file.truncate(2 << 30)  # sparse: costs no disk
    assert "huge.bin: brings the task's files over 512 MB" in str(refused(tmp_path))


def test_a_task_name_with_a_path_in_it_is_refused(tmp_path: Path) -> None:
    make_task(tmp_path, toml='[task]\nname = "../../etc"\n' + TASK_TOML)
    assert "'../../etc' cannot name a task" in str(refused(tmp_path))
