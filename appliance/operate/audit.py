"""Are the installed packages those that are locked, and are their files those that were installed?

Versions are compared with the lock, each file with the sha256 that its package's own RECORD has of it, and each pin is
looked up in the list of hashes beside the lock. What is known to be vulnerable is not known offline: `VULNERABLE` says
how to ask.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import Distribution, distributions
from pathlib import Path

from appliance.config.runconfig import CHECKOUT
from appliance.operate.doctor import locked_versions
from appliance.operate.wheelhouse import normalised, pins, recorded_hashes

VULNERABLE = "with a network: pip install pip-audit && pip-audit --no-deps --disable-pip -r locks/cpu.txt"
OURS = {"corral", "pip", "setuptools"}
"""The program itself, and what every virtual environment brings."""


@dataclass(slots=True)
class Audit:
    """What was looked at, and what is not as it should be; each list has one text a finding."""

    packages: int = 0
    files: int = 0
    other_version: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    altered: list[str] = field(default_factory=list)
    not_locked: list[str] = field(default_factory=list)
    without_hash: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether all that is locked is there as it was installed; further packages are told, but are no fault."""
        return not (self.other_version or self.missing or self.altered)


def audit(locked: dict[str, str] | None = None, installed: Iterable[Distribution] | None = None) -> Audit:
    """Looks at every installed package; by default this environment against this checkout's lock."""
    wanted = {normalised(name): version for name, version in (locked or locked_versions()).items()}
    found, seen = Audit(), set()
    hashed = {file.split("-")[0].lower().replace(".", "_") for file in recorded_hashes(CHECKOUT / "locks" / "cpu.txt")}
    found.without_hash = sorted(name for name in wanted if name not in hashed)
    tested = {normalised(pin.partition("==")[0]) for pin in pins(CHECKOUT / "locks" / "test.txt")}
    for package in installed if installed is not None else distributions():
        name = normalised(package.name)
        if name in seen:
            continue
        seen.add(name)
        if name in OURS:
            continue
        found.packages += 1
        if name not in wanted and name not in tested:
            found.not_locked.append(f"{package.name} {package.version}")
        elif wanted.get(name, package.version).partition("+")[0] != package.version.partition("+")[0]:
            found.other_version.append(f"{package.name} {package.version}, locked is {wanted[name]}")
        _compare(package, found)
    found.missing = sorted(name for name in wanted if name not in seen)
    return found


def _compare(package: Distribution, found: Audit) -> None:
    """Every file of a package with its RECORD."""
    for file in package.files or ():
        if file.hash is None or file.hash.mode != "sha256" or file.suffix == ".pyc":  # Python writes those anew
            continue
        found.files += 1
        path = Path(str(file.locate()))
        try:
            with path.open("rb") as opened:
                digest = hashlib.file_digest(opened, "sha256").digest()
        except OSError as error:
            found.altered.append(f"{package.name}: {path}: {error.strerror}")
            continue
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
            found.altered.append(f"{package.name}: {path} is not as it was installed")
