"""A task's own `environment/Dockerfile`, built with a harness on top; from package registries alone, ahead of the run.

    corral-task-NAME             what the Dockerfile says; its FROM is an image that is already here: `corral-base`,
                                 or one that the user brought. The grader runs in it.
    corral-task-NAME--HARNESS    the same, with the program copied from the harness's own image

Nothing is ever pulled: a Dockerfile that needs an image registry is refused here, and not in the middle of a run.
What the Dockerfile leaves in /workspace is copied out, and every rollout's workspace starts with it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from appliance.errors import HarnessFileError, HostError, PackError
from appliance.harness.harness import Harness
from appliance.sandbox.images.build import Builder, OnLine, base_ref, image_exists, image_ref, node_ref, remove_image
from appliance.sandbox.settings import podman_environment
from appliance.tasks.pack import Pack, Task

OWN_BASE = "corral-base"
FROM = re.compile(r"^\s*FROM\s+(?:--platform=\S+\s+)?(\S+)(?:\s+AS\s+(\S+))?\s*$", re.I | re.M)
NODE_LINES = """\
COPY --from={node} /opt/node /opt/node
COPY --from={node} /usr/local/bin/npm /usr/local/bin/npm
RUN ln -sf /opt/node/bin/node /usr/local/bin/node
"""
# What a sandbox expects of an image; `corral-base` has it all.
PLACES = """\
USER 0
ENTRYPOINT []
RUN mkdir -p /workspace /tests /logs/verifier /run/corral /run/corral-launch /home/agent \\
 && (grep -q :1000: /etc/passwd || echo agent:x:1000:1000::/home/agent:/bin/sh >> /etc/passwd)
"""
NEEDED = ("bash", "socat", "grep")


@dataclass(frozen=True, slots=True)
class TaskImages:
    """The images of one task: `base` for its grader, one a harness, and the folder its workspace starts with."""

    base: str
    by_harness: dict[str, str]
    files: Path


def task_images(home: Path, task: Task, harnesses: Sequence[Harness]) -> TaskImages:
    """The references that the images of this task have, built or not."""
    base = _task_ref(task)
    refs = {harness.name: over_ref(base, harness) for harness in harnesses}
    return TaskImages(base, refs, home / "taskfiles" / base.rpartition(":")[2])


def built_images(home: Path, pack: Pack, harnesses: Sequence[Harness]) -> dict[str, TaskImages]:
    """The images of the pack's tasks that bring a Dockerfile, by task; HostError for one that is not built."""
    found = {}
    for task in pack.tasks:
        if task.dockerfile is None:
            continue
        environment = podman_environment(home)
        wanted = task_images(home, task, harnesses)
        missing = [ref for ref in (wanted.base, *wanted.by_harness.values()) if not image_exists(environment, ref)]
        if missing or not wanted.files.is_dir():
            raise HostError(
                f"task {task.name} brings a Dockerfile, and {(*missing, wanted.files)[0]} is not built",
                f"corral images build {' '.join(harness.name for harness in harnesses)} --pack {pack.path}",
            )
        found[task.name] = wanted
    return found


def names_of(own: Mapping[str, TaskImages]) -> dict[str, str]:
    """Name → reference of all of them, as other hosts are asked for them."""
    found = {}
    for task, images in own.items():
        found[f"task {task}"] = images.base
        found |= {f"task {task} with {harness}": ref for harness, ref in images.by_harness.items()}
    return found


def build_task_images(home: Path, task: Task, harnesses: Sequence[Harness], on_line: OnLine) -> TaskImages:
    """Build what is missing; the images of the harnesses must be there.

    Raises PackError for a Dockerfile that cannot be built here, HostError for a host that cannot build.
    """
    wanted = task_images(home, task, harnesses)
    environment = podman_environment(home)
    builder = Builder(environment, on_line)
    if not image_exists(environment, wanted.base):
        on_line(f"task {task.name}: building {wanted.base}")
        text = _dockerfile(task, environment)
        _built(builder, task, text, wanted.base, task.path / "environment")
        _check_programs(environment, task, wanted.base)
    if not wanted.files.is_dir():
        _copy_out(environment, task, wanted)
    for harness in harnesses:
        ref = wanted.by_harness[harness.name]
        if not image_exists(environment, ref):
            on_line(f"task {task.name}: {harness.name} on top of it ({ref})")
            _built(builder, task, over(harness, wanted.base), ref, None)
            _check_harness(environment, task, harness, ref)
    return wanted


def over(harness: Harness, base: str) -> str:
    """Containerfile text that puts a harness on another image: the last stage of its own, copied from its own image."""
    text = harness.layer
    starts = [match.start() for match in FROM.finditer(text)]
    stages = {match[2] for match in FROM.finditer(text) if match[2]}
    if len(starts) < 2:
        below = f"FROM {base}\n" + (NODE_LINES.format(node=node_ref()) if "{node}" in text else "")
        return FROM.sub(lambda _: below.rstrip(), text, count=1) + PLACES
    last = text[starts[-1] :]
    below = f"FROM {base}\n" + (NODE_LINES.format(node=node_ref()) if "{node}" in last else "")
    last = FROM.sub(lambda _: below.rstrip(), last, count=1)
    for stage in stages:
        last = last.replace(f"--from={stage} ", f"--from={image_ref(harness)} ")
    return last.rstrip() + "\n" + PLACES


def _task_ref(task: Task) -> str:
    """Tag: the hash of the Dockerfile, of every file beside it, and of the base image."""
    folder = task.path / "environment"
    digest = hashlib.sha256(base_ref().encode() + PLACES.encode())
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        digest.update(f"{path.relative_to(folder)}\0{stat.S_IFMT(mode)}\0{mode & 0o111}\0".encode())
        if stat.S_ISREG(mode):
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return f"localhost/corral-task-{_slug(task.name)}:{digest.hexdigest()[:12]}"


def over_ref(base: str, harness: Harness) -> str:
    """The reference of a harness's image on top of a task's."""
    name, _, tag = base.rpartition(":")
    digest = hashlib.sha256(f"{tag}\0{over(harness, base)}".encode()).hexdigest()[:12]
    return f"{name}--{_slug(harness.name)}:{digest}"


def _slug(name: str) -> str:
    """A task's or harness's name as an image's may be: lower case, single separators, starting and ending plainly."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "x"


def _dockerfile(task: Task, environment: dict[str, str]) -> str:
    """The Dockerfile's text with `corral-base` put in; PackError for a FROM that is not here."""
    file = task.path / "environment" / "Dockerfile"
    text = file.read_text(encoding="utf-8")
    stages: set[str] = set()
    for match in FROM.finditer(text):
        image, stage = match[1], match[2]
        is_here = image in (OWN_BASE, "scratch") or image.lower() in stages or image_exists(environment, image)
        if not is_here:
            raise PackError(
                f"{file}: FROM {image} needs an image registry, and Corral asks none",
                f"write FROM {OWN_BASE} (Debian with python3 and git), or bring it: podman save {image} on a machine "
                "that has it, then podman load with CONTAINERS_STORAGE_CONF set to Corral's podman/storage.conf",
            )
        if stage:
            stages.add(stage.lower())
    if not FROM.search(text):
        raise PackError(f"{file}: has no FROM line", f"start it with FROM {OWN_BASE}")
    return FROM.sub(lambda m: m[0].replace(OWN_BASE, base_ref()) if m[1] == OWN_BASE else m[0], text)


def _built(builder: Builder, task: Task, text: str, ref: str, context: Path | None) -> None:
    """Build one image; a Dockerfile that does not build is the pack's mistake."""
    try:
        builder.containerfile(text, ref, [f"--label=corral.task={_slug(task.name)}"], context)
    except HarnessFileError as error:
        raise PackError(f"{task.path / 'environment' / 'Dockerfile'}: {error.message}", "correct it") from error


def _check_programs(environment: dict[str, str], task: Task, ref: str) -> None:
    """An image without a shell, or without what the way to the proxy needs, cannot be a sandbox."""
    look = "; ".join(f"command -v {name} >/dev/null || echo {name}" for name in NEEDED)
    command = ["podman", "run", "--rm", "--network=none", "--entrypoint=/bin/sh", ref, "-c", look]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    missing = "shell (/bin/sh)" if shown.returncode else ", ".join(shown.stdout.split())
    if missing:
        remove_image(environment, ref)
        raise PackError(
            f"{task.path / 'environment' / 'Dockerfile'}: its image has no {missing}",
            f"install it there, or write FROM {OWN_BASE}",
        )


def _check_harness(environment: dict[str, str], task: Task, harness: Harness, ref: str) -> None:
    """The program must still start on top of the task's image."""
    command = ["podman", "run", "--rm", "--network=none", "--tmpfs=/tmp", "--user=1000", ref, *harness.check]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    printed = (shown.stdout + shown.stderr).strip()
    if shown.returncode or harness.version not in printed:
        remove_image(environment, ref)
        raise PackError(
            f"{task.path / 'environment' / 'Dockerfile'}: {harness.name} does not start on its image: {printed[-300:]}",
            "use an image of the same Debian release as the harness's, or another harness for this task",
        )


def _copy_out(environment: dict[str, str], task: Task, wanted: TaskImages) -> None:
    """What the image holds in /workspace, as plain files and folders."""
    draft = wanted.files.with_name(f".{wanted.files.name}.{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    made = subprocess.run(
        ["podman", "create", "--network=none", wanted.base, "true"], env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if made.returncode:
        raise HostError(f"podman create: {made.stderr.strip()[-300:]}", "see the message above")
    container = made.stdout.strip()
    try:
        # A missing /workspace is an empty one.
        command = ["podman", "cp", f"{container}:/workspace/.", str(draft)]
        subprocess.run(command, env=environment, capture_output=True, check=False)
    finally:
        subprocess.run(["podman", "rm", "--force", container], env=environment, capture_output=True, check=False)
    for folder, names, files in os.walk(draft):
        for name in (*names, *files):
            entry = Path(folder, name)
            if not (entry.is_dir() or entry.is_file()) or entry.is_symlink():
                inside = Path("/workspace") / entry.relative_to(draft)
                shutil.rmtree(draft)
                raise PackError(
                    f"{task.path / 'environment' / 'Dockerfile'}: leaves {inside}, neither a file nor a folder",
                    "replace it by a plain copy",
                )
    draft.replace(wanted.files)
