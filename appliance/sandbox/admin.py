"""Sandboxes as somebody looks at them from outside a supervisor: what lives, whose it is, and what nobody owns.

A sandbox says in its labels which process made it (`corral.pid`, with that process's start time, since numbers are
used again). One whose maker is gone, of any record over this storage, is what `prune` removes, with the folders,
file systems, sockets and cgroups that went with it.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import anyio

from appliance.errors import HostError
from appliance.sandbox.handover import remove_left
from appliance.sandbox.podman import Podman
from appliance.sandbox.settings import podman_environment, remedy_of
from appliance.sandbox.spec import FOLDER_LABEL, MAKER_LABEL, OWNER_LABEL, is_alive


def sandboxes(home: Path) -> list[dict[str, Any]]:
    """[{name, state, image, run, rollout, owner, created_at, pid}], the oldest first; owner: `alive` or `gone`."""
    command = ["podman", "ps", "--all", "--filter", f"label={OWNER_LABEL}=1", "--format", "json"]
    shown = _podman(home, command)
    try:
        entries = json.loads(shown or "[]")
    except ValueError as error:
        raise HostError(
            f"podman ps answered in other words than JSON: {shown[:80]!r}", "run `corral doctor`"
        ) from error
    found = []
    for entry in entries:
        labels = entry["Labels"] or {}
        found.append(
            {
                "name": entry["Names"][0],
                "state": entry["State"],
                "image": entry["Image"],
                "run": labels.get("corral.run", ""),
                "rollout": labels.get("corral.rollout") or _rollout_of(labels),
                "owner": "alive" if is_alive(labels.get(MAKER_LABEL, "")) else "gone",
                "created_at": entry["Created"],
                "pid": entry.get("Pid", 0),
            }
        )
    return sorted(found, key=lambda row: row["created_at"])


def find(home: Path, start: str) -> str:
    """The one sandbox whose name begins so; HostError for none or several."""
    names = [str(row["name"]) for row in sandboxes(home) if start and row["name"].startswith(start)]
    if start in names:
        return start
    if len(names) != 1:
        what = f"sandbox {start!r}: {'none of that name lives' if not names else 'several begin so'}"
        raise HostError(what, "corral sandboxes list shows their names")
    return names[0]


def shell_command(home: Path, name: str) -> tuple[list[str], dict[str, str]]:
    """The command, and its environment, that opens a shell in a sandbox, as the agent's user and under its limits."""
    return ["podman", "exec", "--interactive", "--tty", name, "/bin/sh"], podman_environment(home)


def logs(home: Path, name: str, lines: int) -> str:
    """The last lines that a sandbox's processes have written, stdout and stderr together."""
    command = ["podman", "logs", "--tail", str(lines), name]
    done = subprocess.run(
        command, env=podman_environment(home), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    told = done.stdout.decode(errors="replace")
    if done.returncode:
        raise HostError(f"podman logs: {told.strip()[-300:]}", remedy_of(told))
    return told


def stop(home: Path, name: str, grace_s: int) -> None:
    """SIGTERM, a grace, SIGKILL. Its rollout then ends as its harness does."""
    _podman(home, ["podman", "stop", "--time", str(grace_s), name])


def prune(home: Path) -> list[str]:
    """Remove every sandbox whose maker is gone and what Podman itself forgot; the names."""
    return anyio.run(_prune, home)


async def _prune(home: Path) -> list[str]:
    async with Podman(home) as podman:
        removed = []
        for name, labels in await podman.labels_of_all():
            if is_alive(labels.get(MAKER_LABEL, "")):
                continue
            await podman.remove(name)
            removed.append(name)
            if labels.get(FOLDER_LABEL):
                await anyio.to_thread.run_sync(remove_left, Path(labels[FOLDER_LABEL]))
        return removed + await podman.sweep()


def _rollout_of(labels: dict[str, str]) -> str:
    """What the pool wrote down when the sandbox was taken; '' for one that waits."""
    try:
        return (Path(labels[FOLDER_LABEL]) / "rollout").read_text()
    except (KeyError, OSError):
        return ""


def _podman(home: Path, command: list[str]) -> str:
    done = subprocess.run(command, env=podman_environment(home), capture_output=True, text=True, check=False)
    if done.returncode:
        raise HostError(f"{' '.join(command[:2])}: {done.stderr.strip()[-300:]}", remedy_of(done.stderr))
    return done.stdout
