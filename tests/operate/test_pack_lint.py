"""The linter finds what was planted: free, impossible, flaky, forgeable and slow tasks, and nothing in a sound one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import anyio
import pytest

from appliance.cli import main
from appliance.config.runconfig import home, podman_home
from appliance.errors import SandboxError
from appliance.operate.lintfindings import Findings, Graded, note_difference, report
from appliance.operate.pack_lint import findings_of
from appliance.sandbox.images.build import remove_image
from appliance.sandbox.images.task import task_images
from appliance.sandbox.settings import podman_environment
from appliance.sandbox.workdiff import answer_of, lay_over
from appliance.tasks.pack import Task, load_pack

SOUND = '[ "$(cat out.txt 2>/dev/null)" = "$(wc -l < in.txt)" ] && r=1 || r=0; echo $r > /logs/verifier/reward.txt\n'
SOLVE = "cd /workspace && wc -l < in.txt > out.txt\n"


def plant(pack: Path, name: str, test: str = SOUND, solve: str = SOLVE, lines: int = 3, limit_s: float = 60.0) -> None:
    """A task: count the lines of in.txt. Each has its family of one unless the name says otherwise."""
    folder, family = pack / name, name.partition("-")[0]
    for path, text in {
        "task.toml": f'[metadata]\nfamily = "{family}"\nsplit = "train"\n[verifier]\ntimeout_sec = {limit_s}\n',
        "instruction.md": "Write the number of lines of in.txt to out.txt.\n",
        "environment/files/in.txt": "x\n" * lines,
        "tests/test.sh": f"#!/bin/bash\ncd /workspace\n{test}",
        "solution/solve.sh": f"#!/bin/bash\n{solve}",
    }.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def test_a_host_that_fails_is_no_fault_of_the_task(tmp_path: Path) -> None:
    plant(tmp_path, "sound")
    (task,) = load_pack(tmp_path).tasks

    class Failing:
        def __init__(self, times: int) -> None:
            self.left = times

        async def lint(self, task: Task) -> Findings:
            self.left -= 1
            if self.left >= 0:
                raise SandboxError("no_start", "no such device")
            return Findings(task.name, 0.0, 1.0)

    assert anyio.run(findings_of, Failing(2), task) == Findings("sound", 0.0, 1.0)
    lost = anyio.run(findings_of, Failing(3), task)
    assert lost.problems == {"unchecked": "sandbox:no_start, 3 times: no such device"}
    found = report([lost])
    assert (found["unchecked"], found["impossible"], found["null_mean"]) == (["sound"], [], None)


def test_an_answer_is_what_was_made_changed_or_removed(tmp_path: Path) -> None:
    before, after, other = (tmp_path / name for name in ("before", "after", "other"))
    for folder in (before, after, other):
        (folder / "in").mkdir(parents=True)
        for name in ("kept", "edited", "gone"):
            (folder / "in" / name).write_text(name)
    assert answer_of(after, before) == {}
    (after / "in" / "edited").write_text("new")
    (after / "in" / "gone").unlink()
    (after / "out").mkdir()
    (after / "out" / "made").write_text("made")
    (after / "link").symlink_to("/etc/passwd")
    found = answer_of(after, before)
    assert found.pop("in/gone") == "" and set(found) == {"in/edited", "out/made"}
    lay_over(after, before, other)
    assert (other / "in" / "edited").read_text() == "new" and (other / "out" / "made").read_text() == "made"
    assert (other / "in" / "gone").exists() and not (other / "link").is_symlink()


def test_a_grader_that_is_sometimes_too_late_is_slow_and_one_that_changes_its_mind_is_flaky() -> None:
    late = Graded(None, "its grader ran into the time limit", 20.0, timed_out=True)
    for graded, problems in (
        ([Graded(1.0, "", 1.0), late], {"slow": "the workspace: 1 of 2 gradings ran into the time limit"}),
        ([Graded(1.0, "", 1.0), late, Graded(0.5, "", 1.0)], {"flaky": "the workspace was graded 1, none, 0.5"}),
        ([Graded(1.0, "", 1.0), Graded(None, "nothing written", 1.0)], {"flaky": "the workspace was graded 1, none"}),
        ([late, late], {}),
        ([Graded(1.0, "", 1.0)] * 3, {}),
    ):
        found = Findings("t")
        note_difference(found, "the workspace", graded)
        assert found.problems == problems


@pytest.mark.real
def test_every_planted_fault_is_found_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CORRAL_PODMAN_HOME", str(podman_home(home())))
    monkeypatch.setenv("CORRAL_HOME", str(tmp_path / "home"))
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(parent.stat().st_mode | 0o055)
    pack = tmp_path / "pack"
    plant(pack, "sound-a")
    plant(pack, "sound-b", lines=5)
    plant(pack, "free", "echo 0.25 > /logs/verifier/reward.txt\n")
    plant(pack, "fixed-a", "[ -s out.txt ] && r=1 || r=0; echo $r > /logs/verifier/reward.txt\n")
    plant(pack, "fixed-b", "[ -s out.txt ] && r=1 || r=0; echo $r > /logs/verifier/reward.txt\n", lines=9)
    plant(pack, "impossible", SOUND.replace("wc -l < in.txt", "echo 77"))
    plant(pack, "silent", "true\n")
    plant(pack, "flaky", "echo 0.$((RANDOM % 90 + 10)) > /logs/verifier/reward.txt\n")
    plant(pack, "forgeable", SOUND + "cat /workspace/reward.txt > /logs/verifier/reward.txt 2>/dev/null\n"
          "[ -s /logs/verifier/reward.txt ] || echo 0 > /logs/verifier/reward.txt\n")  # fmt: skip
    plant(pack, "shadowed", "export PATH=/workspace:$PATH; python3 -c 'print(0)' > /logs/verifier/reward.txt\n")
    plant(pack, "slow", "sleep 4; " + SOUND, limit_s=6.0)
    plant(pack, "broken")
    (pack / "broken" / "instruction.md").write_text("")
    assert main(["tasks", "lint", str(pack), "--run", "--parallel", "2", "--json"]) == 1
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["tasks"] == 11 and list(found["malformed"]) == ["broken"]
    assert {"free", "fixed-a", "fixed-b"} <= set(found["free"])
    assert {"impossible", "silent"} <= set(found["impossible"])
    assert "flaky" in found["flaky"]
    assert {"forgeable", "shadowed"} <= set(found["forgeable"])
    assert "slow" in found["slow"]
    sound = {name for kind in ("free", "impossible", "flaky", "forgeable") for name in found[kind] if "sound" in name}
    assert not sound, found["reasons"]
    assert "fixed answer" in found["reasons"]["fixed-a"]["free"]
    assert not list((tmp_path / "home" / "lint").glob("*"))


def test_reading_alone_names_every_malformed_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("good", "empty", "no-tests"):
        plant(tmp_path, name)
    (tmp_path / "empty" / "instruction.md").write_text(" ")
    (tmp_path / "no-tests" / "tests" / "test.sh").unlink()
    assert main(["tasks", "lint", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert "empty" in shown and "no-tests" in shown and "1 tasks read, 2 with problems" in shown


@pytest.mark.real
def test_a_task_with_a_dockerfile_is_probed_in_its_own_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its solution and its grader need what only the image has; a Dockerfile that cannot be built says so."""
    store = podman_home(home())
    monkeypatch.setenv("CORRAL_PODMAN_HOME", str(store))
    monkeypatch.setenv("CORRAL_HOME", str(tmp_path / "home"))
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(parent.stat().st_mode | 0o055)
    pack = tmp_path / "pack"
    test = '[ "$(cat out.txt)" = "$(cat /etc/marker)" ] && r=1 || r=0; echo $r > /logs/verifier/reward.txt\n'
    for name in ("own", "unbuilt"):
        plant(pack, name, test, "cd /workspace && cat /etc/marker start.txt > /tmp/both && cat /etc/marker > out.txt\n")
        shutil.rmtree(pack / name / "environment" / "files")
    docker = "FROM corral-base\nRUN echo marked > /etc/marker && echo here > /workspace/start.txt\n"
    (pack / "own" / "environment" / "Dockerfile").write_text(docker)
    (pack / "unbuilt" / "environment" / "Dockerfile").write_text("FROM nobody/has-this:1\n")
    try:
        assert main(["tasks", "lint", str(pack), "--run", "--parallel", "2", "--json"]) == 1
    finally:
        images = task_images(store, load_pack(pack).task("own"), ())
        remove_image(podman_environment(store), images.base)
        shutil.rmtree(images.files, ignore_errors=True)
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["impossible"] == ["unbuilt"] and "needs an image registry" in found["reasons"]["unbuilt"]["impossible"]
    assert (found["oracle_mean"], found["null_mean"]) == (1.0, 0.0) and "own" not in found["reasons"]
