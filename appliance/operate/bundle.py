"""`corral bundle DIR`: everything a machine without a network needs, in one folder that `install.sh --offline` takes.

    corral/       the checkout: program, task packs, harness files, docs, install.sh
    wheels/       every locked package as a wheel, and wheels.lock with their hashes
    images/       the images of sandboxes, one archive
    models/       model folders, and fetched weights
    PLATFORM      what it is for, one word a line · sbom.json   CycloneDX · SHA256SUMS   over all of it, written last

Invariant: SHA256SUMS is there exactly when the bundle is whole. Made again, it goes on from what is there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.config.runconfig import CHECKOUT, podman_home
from appliance.errors import HostError
from appliance.harness.harness import Harness
from appliance.operate import wheelhouse
from appliance.operate.sbom import Part, cyclonedx, python_part
from appliance.operate.wheelhouse import sha256_of
from appliance.record.access import code_version
from appliance.sandbox.images.build import base_ref, image_ref
from appliance.sandbox.images.store import Stored, save, stored

SUMS = "SHA256SUMS"
LEFT_OUT = {".git", ".venv", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", "build"}
OnLine = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Wish:
    """What goes in. `lock` decides the wheels; `models` are folders; harnesses whose terms bind their user are not."""

    home: Path
    lock: Path
    harnesses: Mapping[str, Harness]
    models: Sequence[Path] = ()
    checkout: Path = CHECKOUT


def platform(lock: Path) -> str:
    """What the wheels and images are for, one word a line, as install.sh compares it."""
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return f"{os.uname().sysname}\n{os.uname().machine}\n{python}\n{lock.stem}\n"


def plan(wish: Wish) -> dict[str, int]:
    """Part → bytes, told before anything is fetched; what wheels take is bounded by what they take installed."""
    there = {image.ref: image.size_bytes for image in _stored(wish)}
    _check_images(wish, there)
    return {
        "checkout": sum(path.stat().st_size for path in checkout_files(wish.checkout)),
        "wheels": wheelhouse.installed_bytes(wish.lock),
        "images": sum(there[ref] for ref in _refs(wish)),
        "models": sum(path.stat().st_size for _, path in _model_files(wish)),
    }


def make(wish: Wish, target: Path, on_line: OnLine) -> dict[str, Any]:
    """Writes the bundle, or goes on with it; what it holds. HostError when a part cannot be had."""
    sizes = plan(wish)
    target.mkdir(parents=True, exist_ok=True)
    _check_target(wish, target, sum(sizes.values()))
    for part, size in sizes.items():
        on_line(f"{part}: {'at most ' if part == 'wheels' else ''}{size / 1e6:.0f} MB")
    (target / SUMS).unlink(missing_ok=True)
    (target / "PLATFORM").write_text(platform(wish.lock), encoding="utf-8")
    wheelhouse.fill(wish.lock, target / "wheels", on_line)
    _copy_all(((f"corral/{p.relative_to(wish.checkout)}", p) for p in checkout_files(wish.checkout)), target)
    on_line("checkout: copied")
    _copy_all(_model_files(wish), target)
    _save_images(wish, target / "images", on_line)
    made_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    document = cyclonedx(_parts(wish, target), code_version(), made_at)
    (target / "sbom.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    count = _write_sums(target, on_line)
    total = sum(path.stat().st_size for path in _files(target))
    words = platform(wish.lock).split()
    # To be told by another way than the bundle's: whoever can change its files can change its sums too.
    sums = sha256_of(target / SUMS)
    return {"bundle": str(target), "files": count, "bytes": total, "platform": words, "sha256_of_sums": sums}


def check(target: Path, told: Callable[[int, int], None] | None = None) -> list[str]:
    """What is wrong with a bundle, each by the file's name; none when it is whole. `told` hears MB done, and of all."""
    sums = target / SUMS
    if not sums.is_file():
        return [f"{SUMS} is missing: the bundle was cut short"]
    lines = [line.partition("  ") for line in sums.read_text(encoding="utf-8").splitlines()]
    sums_of = {name: digest for digest, _, name in lines}
    wrong = [f"{name} is missing" for name in sums_of if not (target / name).is_file()]
    files = _files(target)
    done, total = 0, sum(path.stat().st_size for path in files)
    for path in files:
        name = str(path.relative_to(target))
        if name not in sums_of:
            wrong.append(f"{name} is not of this bundle")
        elif sha256_of(path) != sums_of[name]:
            wrong.append(f"{name} is damaged")
        done += path.stat().st_size
        if told is not None:
            told(done // 1_000_000, total // 1_000_000)
    return wrong


# ------------------------------------------------------------------ parts


def checkout_files(checkout: Path) -> list[Path]:
    """What belongs to the program: git's own list where there is one, else every file but what tools leave."""
    listed = ["git", "-C", str(checkout), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listed, capture_output=True, text=True, check=False) if (checkout / ".git").exists() else None
    if done is not None and done.returncode == 0:
        found = [checkout / name for name in done.stdout.split("\0") if name]
    else:
        found = [p for p in checkout.rglob("*") if not LEFT_OUT & set(p.relative_to(checkout).parts)]
    return sorted(path for path in found if path.is_file() and ".egg-info" not in str(path))


def _model_files(wish: Wish) -> Iterator[tuple[str, Path]]:
    """(name in the bundle, file) of the models asked for, and of weights that ./install.sh fetched."""
    for folder in wish.models:
        if not (folder / "config.json").is_file():
            raise HostError(f"{folder}: no model folder (config.json is missing)", "name a local Hugging Face model")
        yield from ((f"models/{folder.name}/{path.name}", path) for path in sorted(folder.iterdir()) if path.is_file())
    yield from ((f"models/{wheel.name}", wheel) for wheel in sorted((wish.home / "models").glob("*.whl")))


def _copy_all(files: Iterator[tuple[str, Path]], target: Path) -> None:
    """Copies what is not there yet, each file whole or not at all."""
    for name, source in files:
        copy = target / name
        if copy.is_file() and copy.stat().st_size == source.stat().st_size and sha256_of(copy) == sha256_of(source):
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        draft = copy.with_name(f".{copy.name}.part")
        shutil.copy2(source, draft)
        draft.replace(copy)


def _refs(wish: Wish) -> list[str]:
    return sorted({base_ref(), *map(image_ref, wish.harnesses.values())}) if wish.harnesses else []


def _stored(wish: Wish) -> list[Stored]:
    return stored(podman_home(wish.home), wish.harnesses.values()) if wish.harnesses else []


def _check_images(wish: Wish, there: Mapping[str, int]) -> None:
    if missing := [ref for ref in _refs(wish) if ref not in there]:
        raise HostError(f"not built: {', '.join(missing)}", f"corral images build {' '.join(wish.harnesses)}")


def _save_images(wish: Wish, folder: Path, on_line: OnLine) -> None:
    """One archive, named by what it holds, so that one of other images is written anew."""
    if not wish.harnesses:
        return
    folder.mkdir(exist_ok=True)
    tags = "-".join(ref.rpartition(":")[2][:6] for ref in _refs(wish))
    archive = folder / f"images-{tags[:150]}.tar"
    for other in set(folder.iterdir()) - {archive}:
        other.unlink()
    if not archive.exists():
        on_line(f"images: saving {len(_refs(wish))}")
        save(podman_home(wish.home), wish.harnesses, archive)
    on_line(f"images: {len(_refs(wish))} saved")


def _parts(wish: Wish, target: Path) -> list[Part]:
    parts = []
    for pin in wheelhouse.pins(wish.lock):
        name, _, version = pin.partition("==")
        wheel = wheelhouse.wheel_of(pin, target / "wheels")
        parts.append(python_part(name, version, sha256_of(wheel) if wheel else ""))
    ids = {image.ref: image.id for image in _stored(wish)}
    for name, harness in wish.harnesses.items():
        parts.append(Part("application", name, harness.version))
    for ref in _refs(wish):
        image, _, tag = ref.rpartition(":")
        parts.append(Part("container", image, tag, ids.get(ref, "").removeprefix("sha256:")))
    for folder in wish.models:
        weights = sorted((target / "models" / folder.name).glob("*.safetensors"))
        parts.append(Part("machine-learning-model", folder.name, "", sha256_of(weights[0]) if weights else ""))
    return parts


# ------------------------------------------------------------------ the folder


def _check_target(wish: Wish, target: Path, needed: int) -> None:
    """HostError for a folder of something else, one for another platform, or too small a disk."""
    other = target / "PLATFORM"
    if other.is_file() and other.read_text(encoding="utf-8") != platform(wish.lock):
        words = other.read_text(encoding="utf-8").split()
        raise HostError(f"{target}: holds a bundle for {' '.join(words)}", "name another folder")
    if not other.exists() and any(target.iterdir()):
        raise HostError(f"{target}: is not empty and no bundle", "name a new folder")
    there = sum(path.stat().st_size for path in _files(target))
    free = shutil.disk_usage(target).free
    if free + there < needed:
        raise HostError(f"{target}: {needed / 1e9:.1f} GB are needed at most, {free / 1e9:.1f} are free", "free space")


def _files(target: Path) -> list[Path]:
    return sorted(path for path in target.rglob("*") if path.is_file() and path != target / SUMS)


def _write_sums(target: Path, on_line: OnLine) -> int:
    """The last act; without it a bundle counts as cut short. In the form that `sha256sum --check` reads."""
    for left in target.rglob(".*.part"):
        left.unlink()
    files = _files(target)
    on_line(f"checksums: {len(files)} files")
    lines = [f"{sha256_of(path)}  {path.relative_to(target)}\n" for path in files]
    draft = target / f".{SUMS}"
    draft.write_text("".join(lines), encoding="utf-8")
    draft.replace(target / SUMS)
    return len(files)
