"""What a user who is not root does with Corral: python rootless_worker.py MODE FOLDER ARCHIVE, as that user.

rollouts   the image from the archive, two rollouts of the scripted harness, one probe; JSON on stdout
serve      a Podman service with that image on FOLDER/podman.sock, until it is ended
refused    how a Podman without ids of its own is told; JSON
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PR_CAP_AMBIENT, CLEAR_ALL = 47, 4
# The right to read everything was lent only so that this file and Python's could be read; nothing started has it.
ctypes.CDLL(None).prctl(PR_CAP_AMBIENT, CLEAR_ALL, 0, 0, 0)

import anyio  # noqa: E402

from appliance.bench.scripted_run import place_for, small_run  # noqa: E402
from appliance.errors import ApplianceError  # noqa: E402
from appliance.operate.doctor import checks  # noqa: E402
from appliance.sandbox.images import store  # noqa: E402
from appliance.sandbox.images.build import base_ref  # noqa: E402
from appliance.sandbox.podman import Limits, Podman, SandboxSpec  # noqa: E402
from appliance.sandbox.settings import podman_environment  # noqa: E402

PROBE = (
    "id -u; cat /proc/self/uid_map; unshare -Ur true 2>&1; ls /sys/class/net; touch /x 2>&1; getent hosts example.com"
)


def load(folder: Path, archive: str) -> dict[str, str]:
    environment = podman_environment(folder)
    done = subprocess.run(
        ["podman", "load", "-i", archive], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-1500:]
    return environment


async def rollouts(folder: Path) -> dict[str, Any]:
    async with place_for(folder, 2) as place:
        ended = await small_run(place, 2, 2, lambda done: None)
        podman = place.pool.hosts[0].podman
        probe = await podman.run(SandboxSpec("corral-probe", base_ref(), ("sh", "-c", PROBE)))
        endless = ("sh", "-c", "yes > big & sleep 60")
        full = await folders_that_overflow(podman, folder, endless)
    async with Podman(folder) as podman:
        left = await podman.list({})
    return {
        "rollouts": [[str(r.state), r.reward, r.failure] for r in ended],
        "probe": probe.output.split("\n"),
        "full": full,
        "left": left + [str(path) for path in (folder / "sandboxes").glob("*")],
        "doctor": checks(folder, ["sandbox", "podman"]),
    }


async def folders_that_overflow(podman: Podman, folder: Path, argv: tuple[str, ...]) -> str:
    from appliance.errors import SandboxError
    from appliance.sandbox.spec import Mount

    work = folder / "work"
    work.mkdir()
    limits = Limits(timeout_s=60, disk_bytes=4 << 20, file_bytes=64 << 20)
    spec = SandboxSpec("corral-full", base_ref(), argv, mounts=(Mount(work, "/workspace"),), limits=limits)
    try:
        await podman.run(spec)
    except SandboxError as error:
        return error.label
    return ""


def refused(folder: Path, archive: str) -> dict[str, Any]:
    try:
        store.load(folder, Path(archive))
    except ApplianceError as error:
        return {"error": error.message, "remedy": error.remedy, "doctor": checks(folder, ["podman"])}
    return {"error": "", "remedy": "", "doctor": []}


def main(mode: str, folder: Path, archive: str) -> None:
    if mode == "serve":
        environment = load(folder, archive)
        socket = f"unix://{folder}/podman.sock"
        os.execvpe("podman", ["podman", "system", "service", "--time=0", socket], environment)
    if mode == "refused":
        told = refused(folder, archive)
    else:
        load(folder, archive)
        told = anyio.run(rollouts, folder)
    print(json.dumps(told))


main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
