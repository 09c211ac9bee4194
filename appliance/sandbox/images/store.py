"""What Corral's image store holds: list it, drop what nothing uses any more, hand it to another machine and take it in.

Images that Corral built carry the label `corral`. What a harness's terms bind to its user is never saved.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from appliance.errors import HostError
from appliance.harness.harness import Harness
from appliance.sandbox.images.build import SUITES, base_ref, image_ref, node_ref
from appliance.sandbox.settings import podman_environment, remedy_of
from appliance.system.files import new_file

PREFIX = "localhost/corral-"


@dataclass(frozen=True, slots=True)
class Stored:
    """One image that is there. `wanted`: some harness file, or the way images are made, still asks for it."""

    ref: str
    id: str
    size_bytes: int
    created_at: int
    wanted: bool


def wanted_refs(harnesses: Iterable[Harness]) -> dict[str, str]:
    """name → reference of the images that these harnesses, and the images below them, are."""
    below = {name: base_ref(name) for name in SUITES} | {"node": node_ref()}
    return below | {harness.name: image_ref(harness) for harness in harnesses}


def stored(home: Path, harnesses: Collection[Harness]) -> list[Stored]:
    """The images of Corral that are there, newest first. Images of tasks count as wanted."""
    wanted = set(wanted_refs(harnesses).values())
    shown = _podman(home, "images", "--filter", "label=corral", "--format", "json")
    found = []
    for entry in json.loads(shown or "[]"):
        for ref in entry.get("Names") or [""]:
            is_task = "corral.task" in (entry.get("Labels") or {})
            is_wanted = ref in wanted or (is_task and bool(ref))
            found.append(Stored(ref, entry["Id"], int(entry["Size"]), int(entry["Created"]), is_wanted))
    return sorted(found, key=lambda image: -image.created_at)


def prune(home: Path, harnesses: Collection[Harness], tasks: bool = False) -> list[Stored]:
    """Remove the images that nothing asks for any more, with `tasks` also those of tasks; those that went.

    One that a sandbox still uses stays, and goes the next time.
    """
    wanted = set(wanted_refs(harnesses).values())
    gone = []
    for image in stored(home, harnesses):
        if image.ref in wanted or (image.wanted and not tasks):
            continue
        command = ["podman", "rmi", image.ref or image.id]
        if subprocess.run(command, env=podman_environment(home), capture_output=True, check=False).returncode == 0:
            gone.append(image)
    return gone


def save(home: Path, chosen: Mapping[str, Harness], file: Path) -> list[str]:
    """Write the images of these harnesses, and the base they are graded in, into one archive; their references.

    Raises HostError for an image that is missing, one whose terms bind its user, or a file that exists.
    """
    if file.exists():
        raise HostError(f"{file}: exists", "name another file")
    for name, harness in chosen.items():
        if harness.terms:
            raise HostError(
                f"the image of {name} is not saved: {harness.terms}", f"leave {name} out; build it on the other machine"
            )
    refs = sorted({base_ref(), *(image_ref(harness) for harness in chosen.values())})
    there = {image.ref for image in stored(home, chosen.values())}
    if missing := [ref for ref in refs if ref not in there]:
        raise HostError(f"not built: {', '.join(missing)}", f"corral images build {' '.join(chosen)}")
    with new_file(file) as draft:
        _podman(home, "save", "--quiet", "--multi-image-archive", f"--output={draft}", *refs)
    return refs


def load(home: Path, file: Path) -> list[str]:
    """Take in an archive that `save` wrote; the references it held. Anything else in it is an error."""
    if not file.is_file():
        raise HostError(f"{file}: no such file", "name an archive that `corral images save` wrote")
    shown = _podman(home, "load", "--input", str(file))
    refs = [ref for line in shown.splitlines() for ref in line.partition(":")[2].replace(",", " ").split()]
    foreign = [ref for ref in refs if not ref.startswith(PREFIX)]
    if foreign or not refs:
        what = f"holds {', '.join(foreign)}" if foreign else "holds no image"
        for ref in foreign:
            subprocess.run(["podman", "rmi", ref], env=podman_environment(home), capture_output=True, check=False)
        raise HostError(f"{file}: {what}, which Corral did not save", "load other images with podman itself")
    return refs


def _podman(home: Path, *arguments: str) -> str:
    """What `podman` printed; HostError with its last words when it fails."""
    shown = subprocess.run(
        ["podman", *arguments], env=podman_environment(home), capture_output=True, text=True, check=False
    )
    if shown.returncode != 0:
        last = shown.stderr.strip()[-400:]
        raise HostError(f"podman {arguments[0]}: {last}", remedy_of(shown.stderr))
    return shown.stdout
