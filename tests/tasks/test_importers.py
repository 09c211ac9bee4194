"""Importing tasks of other formats: what is honoured, what is noted, what is refused, and that scores stay the same."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from appliance.cli import main
from appliance.errors import GraderError, PackError
from appliance.tasks.importers.clawgym import CLAW_WORKSPACE
from appliance.tasks.importers.harbor import Dockerfiles
from appliance.tasks.importers.pack import import_pack
from appliance.tasks.pack import Task, load_pack
from appliance.tasks.reward import read_reward
from tests.support.task_folders import a_harbor_folder

CHECK = """\
import json, os, sys
root = sys.argv[1]
path = os.path.join(root, "out.txt")
text = open(path).read() if os.path.exists(path) else ""
print(json.dumps({"exists": 0.0, "is_right": float(text.strip() == "7"), "input_kept": 1.0}))
"""


def a_claw_folder(root: Path, name: str, mount: str = CLAW_WORKSPACE, **entry: object) -> Path:
    """A folder in ClawGym's form whose check gives 1/3 for nothing."""
    folder = root / name
    (folder / "input_files" / "input").mkdir(parents=True)
    (folder / "reward").mkdir()
    (folder / "input_files" / "input" / "data.csv").write_text("a,b\n3,4\n")
    (folder / "reward" / "check.py").write_text(CHECK)
    (folder / "reward" / "reward.sh").write_text(
        "#!/usr/bin/env bash\nset -euo pipefail\n"
        f"python3 {mount}/reward/check.py {mount} | python3 -c 'import json, sys; d = json.load(sys.stdin); "
        "print(sum(d.values()) / len(d))'\n"
    )
    document = {
        "task_id": name,
        "user_query": f"Add the numbers of {mount}/input/data.csv and write the sum to {mount}/out.txt.",
        "metadata": {"category": "Analysis", "grading_type": "automated"},
        "input_mount_dir": mount,
    }
    (folder / "data_entry.json").write_text(json.dumps(document | entry))
    return folder


def grade(task: Task, root: Path, solve: str = "", is_fine: bool = True) -> float:
    """What our test.sh makes of a workspace, without a container."""
    workspace, logs = root / "workspace", root / "logs"
    subprocess.run(["cp", "-r", task.environment_files, workspace], check=True)
    logs.mkdir()
    env = {
        "PATH": os.environ["PATH"], "CORRAL_WORKSPACE": str(workspace), "CORRAL_TESTS": str(task.tests),
        "CORRAL_VERIFIER_LOGS": str(logs),
    }  # fmt: skip
    if solve:
        subprocess.run(["bash", "-c", solve], cwd=workspace, check=True)
    subprocess.run(["bash", task.tests / "test.sh"], env=env, check=is_fine, timeout=60)
    return read_reward(logs).value


def test_a_claw_folder_scores_as_its_own_reward_script_does_by_hand(tmp_path: Path) -> None:
    """By hand: the inputs and reward/ laid at the mount point, then reward.sh."""
    mount = tmp_path / "mount"
    folder = a_claw_folder(tmp_path / "download", "task_00_sum", str(mount))
    subprocess.run(["cp", "-r", folder / "input_files", mount], check=True)
    subprocess.run(["cp", "-r", folder / "reward", mount / "reward"], check=True)
    by_hand = subprocess.run(
        ["bash", mount / "reward" / "reward.sh"], capture_output=True, text=True, check=True
    ).stdout
    report = import_pack(tmp_path / "download", tmp_path / "pack")
    assert report.format == "clawgym" and not report.refused
    task = load_pack(tmp_path / "pack").task("task_00_sum")
    assert task.family == "Analysis"
    assert task.instruction == "Add the numbers of /workspace/input/data.csv and write the sum to /workspace/out.txt."
    assert grade(task, tmp_path / "null_") == float(by_hand) == pytest.approx(1 / 3)
    assert grade(task, tmp_path / "right", "echo 7 > out.txt") == pytest.approx(2 / 3)
    assert not (task.environment_files / "reward").exists(), "the check is hidden from the agent"


@pytest.fixture(autouse=True)
def folders(tmp_path: Path) -> None:
    for name in ("null_", "right"):
        (tmp_path / name).mkdir()


# What the public folders vary in: how reward.sh gets to the check, what the check prints, how it ends.
LAST = "python3 -c 'import json, sys; d = json.load(sys.stdin); print(sum(d.values()) / len(d))'"
SCRIPTS = {
    "absolute": "set -euo pipefail\npython3 {w}/reward/check.py {w} | " + LAST,
    "relative": "cd {w}\npython3 reward/check.py . | " + LAST,
    "from its own folder": 'cd "$(dirname "$0")/.."\npython3 reward/check.py "$PWD" | ' + LAST,
    "inside its folder": 'cd "$(dirname "${{BASH_SOURCE[0]}}")"\npython3 check.py .. | ' + LAST,
    "by a name": 'W="{w}"\nscore=$(python3 "$W/reward/check.py" "$W" | ' + LAST + ')\necho note >&2\necho "$score"',
    "inline": "python3 -c 'import os; print(0.25 if os.path.exists(\"{w}/input/data.csv\") else 0)'",
    "its own path": "export PATH=/nowhere:$PATH\npython3 {w}/reward/check.py {w} | " + LAST,
    "chatty": "echo checking {w}\nls {w}/input\necho 0.5",
    "fails after the score": "set -euo pipefail\n(python3 {w}/reward/check.py {w}; exit 3) | " + LAST,
    "scalar": "python3 -c 'print(1)' | python3 -c 'import json, sys; print(float(json.load(sys.stdin)))'",
}


@pytest.mark.parametrize("kind", SCRIPTS)
def test_a_null_score_is_what_the_folders_own_script_prints_by_hand(tmp_path: Path, kind: str) -> None:
    mount = tmp_path / "mount"
    folder = a_claw_folder(tmp_path / "d", "t", str(mount))
    (folder / "reward" / "reward.sh").write_text("#!/usr/bin/env bash\n" + SCRIPTS[kind].format(w=mount) + "\n")
    (folder / "input_files" / "input" / "latin.bin").write_bytes(b"\xff\xfe\x00")
    subprocess.run(["cp", "-r", folder / "input_files", mount], check=True)
    subprocess.run(["cp", "-r", folder / "reward", mount / "reward"], check=True)
    by_hand = subprocess.run(
        ["bash", mount / "reward" / "reward.sh"], cwd=mount, capture_output=True, text=True, check=False
    ).stdout
    import_pack(tmp_path / "d", tmp_path / "pack")
    task = load_pack(tmp_path / "pack").task("t")
    assert (task.environment_files / "input" / "latin.bin").read_bytes() == b"\xff\xfe\x00"
    assert grade(task, tmp_path / "null_") == float(by_hand.split()[-1])
    assert not (tmp_path / "null_" / "workspace" / "reward").exists(), "nothing of the check is left behind"


@pytest.mark.parametrize("script", ["true", "exit 1", "echo; echo", "python3 -c 'raise SystemExit(2)' | " + LAST])
def test_a_script_that_prints_no_score_gives_no_reward_and_never_a_zero(tmp_path: Path, script: str) -> None:
    folder = a_claw_folder(tmp_path / "d", "t")
    (folder / "reward" / "reward.sh").write_text(f"#!/bin/bash\n{script}\n")
    import_pack(tmp_path / "d", tmp_path / "pack")
    with pytest.raises(GraderError) as caught:
        grade(load_pack(tmp_path / "pack").task("t"), tmp_path / "null_", is_fine=False)
    assert caught.value.cause == "no_reward"


def test_modules_left_in_the_workspace_do_not_grade_it(tmp_path: Path) -> None:
    a_claw_folder(tmp_path / "d", "t")
    import_pack(tmp_path / "d", tmp_path / "pack")
    logs = tmp_path / "right" / "logs"
    forged = f"import atexit\natexit.register(lambda: open('{logs}/reward.txt', 'w').write('1'))\n"
    solve = f"mkdir reward; echo 'print(1)' > reward/check.py; cat > json.py <<'E'\n{forged}E\n"
    assert grade(load_pack(tmp_path / "pack").task("t"), tmp_path / "right", solve) == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("mount", "where"),
    [("input", "input/input/data.csv"), ("./", "input/data.csv"), (f"{CLAW_WORKSPACE}/", "input/data.csv"), (None,
     "input/data.csv"), ("/data", "input/data.csv"), ("", "input/data.csv")],
)  # fmt: skip
def test_inputs_lie_where_input_mount_dir_says(tmp_path: Path, mount: object, where: str) -> None:
    folder = a_claw_folder(tmp_path / "d", "t", input_mount_dir=mount, user_query="Look into ~/.openclaw/workspace/x.")
    if mount == "/data":
        (folder / "reward" / "check.py").write_text("open('/data/input/data.csv'); open('/database')\n")
    import_pack(tmp_path / "d", tmp_path / "pack")
    task = load_pack(tmp_path / "pack").task("t")
    assert (task.environment_files / where).is_file()
    assert task.instruction == "Look into /workspace/x."
    if mount == "/data":
        moved = (task.tests / "reward" / "check.py").read_text()
        assert moved == "open('/workspace/input/data.csv'); open('/database')\n"


@pytest.mark.parametrize("mount", ["/", "../x", f"{CLAW_WORKSPACE}/../../x"])
def test_a_mount_point_that_cannot_be_is_refused(tmp_path: Path, mount: str) -> None:
    a_claw_folder(tmp_path / "d", "t", input_mount_dir=mount)
    with pytest.raises(PackError, match="input_mount_dir"):
        import_pack(tmp_path / "d", tmp_path / "pack")


def test_huge_linked_and_broken_files_are_refused_by_name_and_the_rest_is_imported(tmp_path: Path) -> None:
    root = tmp_path / "d"
    a_claw_folder(root, "good")
    for name, part in (("huge-entry", "data_entry.json"), ("huge-input", "input_files/x"), ("huge-check", "reward/x")):
        with (a_claw_folder(root, name) / part).open("ab") as file:
            file.truncate(2 << 30)  # sparse: costs no disk
    (a_claw_folder(root, "latin") / "data_entry.json").write_bytes('{"user_query": "ö"}'.encode("latin-1"))
    (a_claw_folder(root, "twin") / "data_entry.json").write_text('{"task_id": "good", "user_query": "x"}')
    (root / "linked").symlink_to(root / "good")
    (a_claw_folder(root, "link-inside") / "reward" / "data").symlink_to("/etc/passwd")
    folder = a_claw_folder(root, "link-inputs")
    (folder / "input_files").rename(tmp_path / "away")
    (folder / "input_files").symlink_to(tmp_path / "away")
    report = import_pack(root, tmp_path / "pack")
    assert list(report.imported) == ["good"]
    reasons = {
        "huge-entry": "larger than 16 MB", "huge-input": "larger than 512 MB", "huge-check": "larger than 512 MB",
        "latin": "is not UTF-8", "twin": "used by an earlier", "linked": "is a link", "link-inside": "data is a link",
        "link-inputs": "input_files is a link",
    }  # fmt: skip
    assert report.refused.keys() == reasons.keys()
    assert all(reason in report.refused[name] for name, reason in reasons.items()), report.refused


def test_a_line_too_long_to_hold_is_refused_and_the_next_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.tasks.importers.clawgym.MAX_LINE_BYTES", 1000)
    line = {"prompt": "Write.", "hook_code": "", "input_files": [{"file_path": "reward/check.py", "content": CHECK}]}
    source = tmp_path / "x.jsonl"
    lines = [json.dumps(line | {"prompt": "x" * size, "task_id": f"t{size}"}) for size in (2, 900, 5000, 3)]
    source.write_text("\n".join(lines) + "\n")
    report = import_pack(source, tmp_path / "pack")
    assert list(report.imported) == ["t2", "t3"] and list(report.refused) == ["line 2", "line 3"]


def test_broken_yaml_refuses_its_task_alone(tmp_path: Path) -> None:
    for name, text in (("a", "instruction: [\n"), ("b", "- x\n"), ("c", "instruction: x\n")):
        folder = tmp_path / "tb" / name
        folder.mkdir(parents=True)
        (folder / "task.yaml").write_text(text)
        (folder / "run-tests.sh").write_text("true\n")
    (tmp_path / "tb" / "c" / "docker-compose.yaml").write_text("services: [a, b]\n")
    report = import_pack(tmp_path / "tb", tmp_path / "pack")
    assert list(report.imported) == ["c"]
    assert "is not YAML" in report.refused["a"] and "is not a mapping" in report.refused["b"]


def test_a_mount_point_below_the_workspace_keeps_its_place(tmp_path: Path) -> None:
    a_claw_folder(tmp_path / "d", "t", f"{CLAW_WORKSPACE}/inbox")
    import_pack(tmp_path / "d", tmp_path / "pack")
    task = load_pack(tmp_path / "pack").task("t")
    assert (task.environment_files / "inbox" / "input" / "data.csv").is_file()
    assert "/workspace/inbox/out.txt" in task.instruction


def test_lines_of_clawgyms_jsonl_become_tasks_with_their_hook(tmp_path: Path) -> None:
    line = {
        "prompt": "Write 7 to out.txt.",
        "hook_code": f"python3 reward/test.py {CLAW_WORKSPACE}",
        "input_files": [
            {"file_path": "reward/test.py", "content": CHECK}, {"file_path": "input/a.txt", "content": "1\n"},
        ],
        "rule": [{"criterion": "The text is polite.", "points": 1}],
        "origin_template": "---\nid: task_07_write\nname: x\n---\n",
    }  # fmt: skip
    bad = [line | {"input_files": [{"file_path": "../../etc/passwd", "content": "x"}]}, line, {"prompt": "no check"}, 7]
    source = tmp_path / "syn_task.jsonl"
    source.write_text("\n".join([json.dumps(line), "", *map(json.dumps, bad), "{broken"]) + "\n")
    report = import_pack(source, tmp_path / "pack", "held-out")
    assert list(report.imported) == ["task_07_write"]
    assert {k: v.split(" ")[0] for k, v in report.refused.items()} == {
        "line 3": "the", "line 4": "its", "line 5": "reward/", "line 6": "is", "line 7": "Expecting",
    }  # fmt: skip
    task = load_pack(tmp_path / "pack").task("task_07_write")
    assert task.split == "held-out" and (task.environment_files / "input" / "a.txt").read_text() == "1\n"
    assert json.loads((task.tests / "rubric.json").read_text())["weight"] == 0.3
    assert any("hybrid" in note for note in report.imported["task_07_write"])
    assert grade(task, tmp_path / "null_") == pytest.approx(1 / 3)


def test_a_harbor_folder_keeps_names_limits_and_what_its_dockerfile_places(tmp_path: Path) -> None:
    folder = a_harbor_folder(
        tmp_path / "h", "hello",
        '[task]\nname = "org/hello-world"\n[agent]\ntimeout_sec = 120.0\nuser = "root"\n[environment]\ncpus = 2\n'
        'network_mode = "none"\n[environment.healthcheck]\ncommand = "true"\n',
        environment__data__a_txt="1",
    )  # fmt: skip
    (folder / "environment" / "Dockerfile").write_text(
        "FROM python:3.12\nWORKDIR /app\nCOPY data /app/data\nCOPY main.py .\nRUN pip install x\n"
    )
    (folder / "environment" / "main.py").write_text("print(1)\n")
    report = import_pack(folder, tmp_path / "pack")
    task = load_pack(tmp_path / "pack").task("hello-world")
    assert (task.agent_timeout_s, task.family) == (120.0, "programming")
    placed = sorted(
        str(f.relative_to(task.environment_files)) for f in task.environment_files.rglob("*") if f.is_file()
    )
    assert placed == ["data/a_txt", "main.py"]
    notes = " · ".join(report.imported["hello-world"])
    for said in (
        "healthcheck is run before the agent",
        "agent.{user} is not used",
        "environment.{cpus}",
        "not python:3.12",
        "RUN lines",
    ):
        assert said in notes, notes


DOCKERFILE = """\
FROM python:3.12-slim AS base
FROM base
WORKDIR /app
COPY data.txt /app/in/
RUN echo 1 > /app/made.txt
"""


def a_harbor_folder_in_app(root: Path) -> Path:
    """A Harbor task that works in /app, as most do."""
    folder = a_harbor_folder(root, "t", environment__Dockerfile=DOCKERFILE)
    (folder / "environment" / "data.txt").write_text("see /app\n")
    (folder / "instruction.md").write_text("Write /app/out.txt, not /apple or x/app.\n")
    (folder / "tests" / "test.sh").write_text(
        'test -s /app/out.txt && echo 1 > "$CORRAL_VERIFIER_LOGS"/reward.txt || echo 0 > /logs/verifier/reward.txt\n'
    )
    return folder


def test_the_folder_that_a_harbor_task_works_in_is_ours(tmp_path: Path) -> None:
    a_harbor_folder_in_app(tmp_path / "h")
    report = import_pack(tmp_path / "h", tmp_path / "pack")
    task = load_pack(tmp_path / "pack").task("t")
    assert task.instruction == "Write /workspace/out.txt, not /apple or x/app."
    assert "test -s /workspace/out.txt" in (task.tests / "test.sh").read_text()
    assert (task.environment_files / "in" / "data.txt").read_text() == "see /app\n", "inputs are as they were"
    assert task.dockerfile is None
    notes = " · ".join(report.imported["t"])
    assert "RUN lines are not run" in notes and "--dockerfiles rebase" in notes and "working folder is" in notes


def test_a_harbor_dockerfile_is_kept_to_be_built_when_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_harbor_folder_in_app(tmp_path / "h")
    for choice, start in ((Dockerfiles.KEEP, "python:3.12-slim"), (Dockerfiles.REBASE, "corral-base")):
        command = ["tasks", "import", str(tmp_path / "h"), str(tmp_path / choice), "--dockerfiles", choice, "--json"]
        assert main(command) == 0
        report = json.loads(capsys.readouterr().out.splitlines()[-1])
        task = load_pack(tmp_path / choice).task("t")
        wanted = DOCKERFILE.replace("/app", "/workspace").replace("python:3.12-slim", start)
        assert task.dockerfile is not None and task.dockerfile.read_text() == wanted
        assert (task.path / "environment" / "data.txt").is_file() and not any(task.environment_files.iterdir())
        (note,) = (note for note in report["imported"]["t"] if "corral images build" in note)
        assert "python:3.12-slim" in note


@pytest.mark.parametrize(
    ("toml", "files", "reason"),
    [
        ('[environment]\nnetwork_mode = "full"\n', {}, "network_mode is 'full'"),
        ("[environment]\nallow_internet = true\n", {}, "allow_internet is true"),
        ('[[steps]]\nname = "01"\n', {}, "steps/01 is missing"),
        ('[[environment.mcp_servers]]\nname = "x"\n', {}, "mcp_servers[0].url: missing"),
        ("", {"environment__docker-compose.yaml": "services: {}"}, "starts further services"),
        ('[environment]\ndocker_image = "org/x:1"\n', {}, "fetched from a registry"),
        ('[environment]\nallow_internet = "yes"\n', {}, "allow_internet is yes"),
        ('[environment]\nos = "windows"\n', {}, "os is 'windows'"),
        ('[agent]\ntimeout_sec = "long"\n', {}, "agent.timeout_sec: 'long' is not a time"),
        ("[verifier]\ntimeout_sec = nan\n", {}, "verifier.timeout_sec: nan is not a time"),
        ("[agent]\ntimeout_sec = -5\n", {}, "agent.timeout_sec: -5 is not a time"),
        ('[task]\nname = "../../x"\n', {}, "'../../x' is not a name"),
        ("[task]\nname = 3\n", {}, "3 is not a name"),
        ("", {"environment__Dockerfile": "FROM x\nCOPY /etc/passwd .\n"}, "leaves its folder"),
        ("", {"environment__Dockerfile": "FROM x\nCOPY nothing .\n"}, "is missing"),
        ("not toml", {}, "Expected"),
    ],
)
def test_what_a_sandbox_cannot_give_is_refused_with_its_reason(
    tmp_path: Path, toml: str, files: dict[str, str], reason: str
) -> None:
    a_harbor_folder(tmp_path / "h", "bad", toml, **files)
    a_harbor_folder(tmp_path / "h", "good", environment__files__a="1")
    report = import_pack(tmp_path / "h", tmp_path / "pack")
    assert list(report.imported) == ["good"] and reason in report.refused["bad"]


@pytest.mark.parametrize(
    ("copy", "placed"),
    [
        ("COPY a.txt b.txt ./", ["a.txt", "b.txt"]),
        ("COPY *.txt in", ["in/a.txt", "in/b.txt"]),
        ('ADD ["a.txt", "/app/c.txt"]', ["c.txt"]),
        ("COPY --chown=1:1 --chmod=600 b.txt /app/", ["b.txt"]),
        ("COPY files/a.txt sub/", ["sub/a.txt"]),
        ("COPY --from=other /x /app/", ["a.txt"]),
        ("ADD https://example.org/x /app/", ["a.txt"]),
    ],
)
def test_every_way_to_copy_files_places_them_or_is_noted(tmp_path: Path, copy: str, placed: list[str]) -> None:
    folder = a_harbor_folder(tmp_path / "h", "t", environment__Dockerfile=f"FROM x\nWORKDIR /app\n{copy}\n")
    for path in ("a.txt", "b.txt", "files/a.txt"):
        (folder / "environment" / path).parent.mkdir(exist_ok=True)
        (folder / "environment" / path).write_text(path)
    report = import_pack(tmp_path / "h", tmp_path / "pack")
    files = load_pack(tmp_path / "pack").task("t").environment_files
    own = {"a.txt"} if "files/" not in copy else set()  # Corral's own layout: environment/files is the workspace
    found = {str(path.relative_to(files)) for path in files.rglob("*") if path.is_file()}
    assert found == own | set(placed)
    assert any("lines are not run" in note for note in report.imported["t"]) == ("--from" in copy or "https" in copy)


def test_a_newer_schema_is_noted(tmp_path: Path) -> None:
    file = a_harbor_folder(tmp_path / "h", "t") / "task.toml"
    file.write_text(file.read_text().replace("1.4", "1.5") + '[solution]\nenv = {A = "b"}\n')
    notes = import_pack(tmp_path / "h", tmp_path / "pack").imported["t"]
    assert "schema_version 1.5 is not known here: it was read as 1.4" in notes and "solution.{env} is not used" in notes


def test_terminal_bench_tasks_are_graded_by_exit_code(tmp_path: Path) -> None:
    folder = tmp_path / "tb" / "make-it"
    (folder / "tests").mkdir(parents=True)
    (folder / "task.yaml").write_text("instruction: |\n  Make done.txt.\ncategory: files\nmax_agent_timeout_sec: 90\n")
    (folder / "run-tests.sh").write_text('#!/bin/bash\npython3 "$TEST_DIR/test_outputs.py"\n')
    (folder / "tests" / "test_outputs.py").write_text("import os\nassert os.path.exists('done.txt')\n")
    (folder / "seed.txt").write_text("s\n")
    (folder / "Dockerfile").write_text("FROM ubuntu\n")
    import_pack(tmp_path / "tb", tmp_path / "pack")
    task = load_pack(tmp_path / "pack").task("make-it")
    assert task.agent_timeout_s == 90.0 and (task.environment_files / "seed.txt").is_file()
    assert grade(task, tmp_path / "null_") == 0.0
    assert grade(task, tmp_path / "right", "touch done.txt") == 1.0


def test_nothing_is_left_when_an_import_fails_and_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for source, words in ((tmp_path / "empty", "no task of a known form"), (tmp_path / "none", "does not exist")):
        with pytest.raises(PackError, match=words):
            import_pack(source, tmp_path / "pack")
    a_harbor_folder(tmp_path / "h", "bad", '[environment]\nnetwork_mode = "host"\n')
    with pytest.raises(PackError, match="no task could be imported"):
        import_pack(tmp_path / "h", tmp_path / "pack")
    a_claw_folder(tmp_path / "d", "t")
    (tmp_path / "there").mkdir()
    with pytest.raises(PackError, match="exists already"):
        import_pack(tmp_path / "d", tmp_path / "there")
    assert sorted(p.name for p in tmp_path.iterdir() if "pack" in p.name) == []


def test_a_byte_order_mark_is_no_fault_and_a_reason_names_the_task_not_a_draft(tmp_path: Path) -> None:
    marked = a_claw_folder(tmp_path / "d", "marked") / "data_entry.json"
    marked.write_bytes(b"\xef\xbb\xbf" + marked.read_bytes())
    a_claw_folder(tmp_path / "d", "nul", user_query="a\0b")
    report = import_pack(tmp_path / "d", tmp_path / "pack")
    assert list(report.imported) == ["marked"]
    assert report.refused["nul"].startswith("nul/instruction.md: holds a NUL byte")


def test_two_hundred_folders_are_imported_in_one_go(tmp_path: Path) -> None:
    mounts = (CLAW_WORKSPACE, f"{CLAW_WORKSPACE}/inbox", "/root/work", "", "data")
    for n in range(200):
        a_claw_folder(tmp_path / "d", f"task_{n:03d}", mounts[n % 3], input_mount_dir=mounts[n % 5])
    report = import_pack(tmp_path / "d", tmp_path / "pack", "held-out")
    assert len(report.imported) == 200 and not report.refused
    assert len(load_pack(tmp_path / "pack").split("held-out")) == 200


def test_links_out_of_a_task_are_refused(tmp_path: Path) -> None:
    folder = a_claw_folder(tmp_path / "d", "t")
    (folder / "input_files" / "link").symlink_to("/etc/passwd")
    with pytest.raises(PackError, match="link is a link or device"):
        import_pack(tmp_path / "d", tmp_path / "pack")


def test_a_new_task_works_and_a_pack_can_be_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for n in range(5):
        assert main(["tasks", "new", str(tmp_path / "own" / f"t{n}"), "--family", f"f{n % 2}"]) == 0
    task = load_pack(tmp_path / "own").task("t0")
    assert grade(task, tmp_path / "null_") == 0.0
    assert grade(task, tmp_path / "right", "wc -l < notes.txt > answer.txt") == 1.0
    capsys.readouterr()
    assert main(["tasks", "split", str(tmp_path / "own"), "--held-out", "0.4", "--json"]) == 0
    counts = json.loads(capsys.readouterr().out)["counts"]
    assert counts == {"held-out": 2, "train": 3}
    assert sum(t.split == "held-out" for t in load_pack(tmp_path / "own").tasks) == 2
    assert main(["tasks", "split", str(tmp_path / "own"), "--held-out", "0.5", "--by", "family"]) == 0
    by_family = {(t.family, t.split) for t in load_pack(tmp_path / "own").tasks}
    assert len(by_family) == 2
    assert main(["tasks", "split", str(tmp_path / "own"), "--held-out", "0"]) == 1
    assert "leaves one side empty" in capsys.readouterr().err
    assert main(["tasks", "show", str(tmp_path / "own"), "t1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == {"notes.txt": 8}
