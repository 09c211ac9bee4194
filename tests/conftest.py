"""Before anything imports torch: idle threads sleep, so that tests do not fight with the parts they start."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@pytest.fixture(autouse=True)
def nothing_stays_mounted(request: pytest.FixtureRequest) -> Iterator[None]:
    """Podman mounts the storage of a new home over itself; a test with real parts that made one unmounts it here."""
    is_real = request.node.get_closest_marker("real") and "tmp_path" in request.fixturenames
    folder = request.getfixturevalue("tmp_path").resolve() if is_real else None
    yield
    if folder is not None:
        mounted = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        for point in sorted((point for point in mounted if Path(point).is_relative_to(folder)), reverse=True):
            subprocess.run(["umount", "-l", point], check=False, capture_output=True)
