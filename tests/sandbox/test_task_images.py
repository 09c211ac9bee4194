"""A task's own Dockerfile: built ahead of a run with a harness on top, or refused with what to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from appliance.config.runconfig import CHECKOUT, home, podman_home
from appliance.errors import HarnessFileError, HostError, PackError
from appliance.harness.harness import Harness, load_harnesses
from appliance.operate.harness_check import bench
from appliance.sandbox.images.build import build_images, image_exists, image_ref, node_ref, remove_image
from appliance.sandbox.images.task import build_task_images, built_images, over, task_images
from appliance.sandbox.settings import podman_environment
from appliance.tasks.pack import Pack, Task
from appliance.types import RolloutState

HARNESSES = load_harnesses(CHECKOUT / "harnesses")
PI = HARNESSES["pi"]
GOOD = """\
FROM corral-base
RUN echo from-the-image > /etc/marker && mkdir -p /workspace/src
COPY seed.txt /workspace/src/
"""
GRADER = """\
#!/bin/bash
reward=0
[ "$(cat /etc/marker)" = from-the-image ] && [ "$(cat /workspace/copy.txt)" = seed ] && reward=1
echo $reward > /logs/verifier/reward.txt
"""


def task_of(folder: Path, dockerfile: str, name: str = "Own.Image_1") -> Task:
    top = folder / name
    (top / "environment").mkdir(parents=True)
    (top / "environment" / "Dockerfile").write_text(dockerfile)
    (top / "environment" / "seed.txt").write_text("seed\n")
    (top / "tests").mkdir()
    (top / "tests" / "test.sh").write_text(GRADER)
    (top / "solution").mkdir()
    (top / "solution" / "teacher.json").write_text('["cat src/seed.txt > copy.txt && cat /etc/marker"]')
    (top / "instruction.md").write_text("Copy src/seed.txt to copy.txt.\n")
    (top / "task.toml").write_text('[metadata]\nfamily = "own"\nsplit = "train"\n')
    return Task.from_dir(top)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    """The installed image store with pi in it; images of this test's tasks are gone afterwards."""
    folder = podman_home(home())
    folder.mkdir(parents=True, exist_ok=True)
    build_images(folder, [PI], print)
    yield folder


def clean(store: Path, task: Task) -> None:
    wanted = task_images(store, task, [PI])
    for ref in (*wanted.by_harness.values(), wanted.base):
        remove_image(podman_environment(store), ref)
    for path in sorted(wanted.files.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    wanted.files.rmdir()


def test_a_harness_goes_on_another_image_by_copying_from_its_own() -> None:
    text = over(PI, "localhost/corral-task-x:1")
    assert text.startswith("FROM localhost/corral-task-x:1\n")
    assert f"COPY --from={image_ref(PI)} /opt/pi /opt/pi" in text
    assert f"COPY --from={node_ref()} /opt/node /opt/node" in text
    assert "npm install" not in text and "{" not in text
    mini = over(HARNESSES["mini-swe-agent"], "t:1")
    assert node_ref() not in mini and mini.count("FROM ") == 1


def test_names_and_tags_follow_from_the_content(tmp_path: Path) -> None:
    first = task_images(tmp_path, task_of(tmp_path / "a", GOOD), [PI])
    assert first.base.startswith("localhost/corral-task-own-image-1:")
    assert first.by_harness["pi"].startswith("localhost/corral-task-own-image-1--pi:")
    assert task_images(tmp_path, task_of(tmp_path / "b", GOOD), [PI]) == first
    assert task_images(tmp_path, task_of(tmp_path / "c", GOOD + "# more\n"), [PI]).base != first.base
    changed = replace(PI, layer=PI.layer + "RUN true\n")
    assert task_images(tmp_path, task_of(tmp_path / "d", GOOD), [changed]).by_harness != first.by_harness


@pytest.mark.real
def test_a_task_is_done_and_graded_in_its_own_image(store: Path, tmp_path: Path) -> None:
    task = task_of(tmp_path, GOOD)
    pack = Pack("own", tmp_path, (task,))
    with pytest.raises(HostError, match="is not built") as caught:
        built_images(store, pack, [PI])
    assert caught.value.remedy.startswith("corral images build pi --pack")
    try:
        images = build_task_images(store, task, [PI], print)
        assert built_images(store, pack, [PI]) == {task.name: images}
        assert (images.files / "src" / "seed.txt").read_text() == "seed\n"

        async def made() -> tuple[RolloutState, float | None, str]:
            async with bench(store) as place:
                trial = await place.make(PI, task, images)
                return trial.rollout.state, trial.rollout.reward, trial.rollout.failure_detail

        assert anyio.run(made) == (RolloutState.GRADED, 1.0, "")
    finally:
        clean(store, task)


@pytest.mark.real
@pytest.mark.parametrize(
    ("dockerfile", "said", "remedy"),
    [
        ("FROM ubuntu:24.04\nRUN true\n", "FROM ubuntu:24.04 needs an image registry", "write FROM corral-base"),
        ("FROM corral-base AS a\nFROM quay.io/x/y@sha256:0\n", "FROM quay.io/x/y@sha256:0 needs", "bring it"),
        ("RUN true\n", "has no FROM line", "FROM corral-base"),
        ("FROM scratch\nCOPY seed.txt /\n", "has no shell (/bin/sh)", "FROM corral-base"),
        ("FROM corral-base\nRUN rm $(command -v socat)\n", "has no socat", "install it"),
        ("FROM corral-base\nRUN false\n", "could not be built", "correct it"),
        ("FROM corral-base\nRUN ln -s /etc/shadow /workspace/x\n", "leaves /workspace/x, neither a file", "plain copy"),
    ],
)
def test_a_dockerfile_that_cannot_be_used_is_refused_when_it_is_built(
    store: Path, tmp_path: Path, dockerfile: str, said: str, remedy: str
) -> None:
    task = task_of(tmp_path, dockerfile)
    wanted = task_images(store, task, [PI])
    try:
        with pytest.raises(PackError) as caught:
            build_task_images(store, task, [PI], print)
    finally:
        remove_image(podman_environment(store), wanted.base)
    assert said in caught.value.message and "Dockerfile" in caught.value.message
    assert remedy in caught.value.remedy
    assert not wanted.files.exists()


@pytest.mark.real
def test_a_harness_image_without_a_shell_is_refused_when_it_is_built(store: Path) -> None:
    bare = Harness(
        name="no-shell", version="1", wire="chat", check=("true",), layer="FROM scratch\nENV A=1\nCOPY . /\n",
        argv=("x",), env={}, files={}, memory_bytes=1, pids=1, quirks={},
    )  # fmt: skip
    with pytest.raises(HarnessFileError, match="no shell") as caught:
        build_images(store, [bare], print)
    assert "end on FROM {base}" in caught.value.remedy
    assert not image_exists(podman_environment(store), image_ref(bare))
