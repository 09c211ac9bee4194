"""The systemd user unit that keeps a run going: after a kill, a hang, a log-out and a reboot, `corral resume` goes on.

`unit` is pure text. The supervisor tells systemd that it lives (`appliance.runs.watchdog`); when its event loop stands
still for `WATCHDOG_S`, systemd ends it, and the next start goes on from the record.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from appliance.errors import HostError

NAME = "corral.service"
WATCHDOG_S = 120
DRAIN_S = 1800
"""How long `systemctl stop` waits for the rollouts under way; then SIGKILL, from which a run is resumed too."""
SEE = "log in anew, and see `systemctl --user status`"
KEPT_VARIABLES = ("CORRAL_HOME", "CORRAL_PODMAN_HOME", "CORRAL_HARNESSES", "PATH")


def unit(program: Path, environment: Mapping[str, str]) -> str:
    """The unit's text: it goes on with the newest unfinished run, by the `corral` program at this path."""
    kept = [f'Environment="{name}={_quoted(environment[name])}"' for name in KEPT_VARIABLES if environment.get(name)]
    lines = [
        "# Written by `corral service install`; it changes nothing of the run, and goes by `corral service remove`.",
        "[Unit]",
        "Description=Corral: goes on with the newest unfinished run",
        "StartLimitIntervalSec=3600",
        "StartLimitBurst=10",
        "",
        "[Service]",
        "Type=notify",
        "NotifyAccess=main",
        f'ExecStart="{_quoted(str(program))}" resume --plain',
        *kept,
        f"WatchdogSec={WATCHDOG_S}",
        "# A hang gets SIGABRT; one that does not end of it is not given the time that a drain may take.",
        "TimeoutAbortSec=30",
        "# What ended with a message of its own (1) or was drained (3) needs a person; kills and hangs do not.",
        "Restart=on-abnormal",
        "RestartSec=10",
        "SuccessExitStatus=3",
        "# SIGTERM drains. Engine and trainer are ended by the supervisor, and by their guards should it die.",
        "KillMode=mixed",
        f"TimeoutStopSec={DRAIN_S}",
        "# Sandboxes get limits of their own inside this unit's cgroup.",
        "Delegate=yes",
        "OOMPolicy=continue",
        "UMask=0077",
        "",
        "[Install]",
        "WantedBy=default.target",
    ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """As systemd reads a quoted word: its own specifiers and quotes escaped."""
    if "\n" in text:
        raise HostError(f"{text!r}: a line break cannot stand in a unit file", "rename that folder or variable")
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")


def unit_file(environment: Mapping[str, str]) -> Path:
    """Where user units lie."""
    config = environment.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(config) / "systemd" / "user" / NAME


def install(program: Path, booted: Path = Path("/run/systemd/system")) -> tuple[Path, list[str]]:
    """Writes the unit and has systemd read it; (its file, what is left to do). HostError without systemd."""
    _need_systemd(booted)
    path = unit_file(os.environ)
    text = unit(program, os.environ)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.part")
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise HostError(f"{path}: {error.strerror}", "make that folder writable") from error
    _systemctl("daemon-reload")
    return path, [
        f"systemctl --user enable --now {NAME}",
        "loginctl enable-linger    (so that it also runs while you are logged out)",
    ]


def remove(booted: Path = Path("/run/systemd/system")) -> Path:
    """Stops and removes the unit; the run drains first. HostError when there is none."""
    _need_systemd(booted)
    path = unit_file(os.environ)
    if not path.exists():
        raise HostError(f"{path}: there is no such unit", "nothing to remove")
    _systemctl("disable", "--now", NAME)
    path.unlink()
    _systemctl("daemon-reload")
    return path


def _need_systemd(booted: Path) -> None:
    if not booted.is_dir():
        raise HostError(
            "this machine does not run systemd",
            "let your own init run `corral resume --plain` at boot; `corral service show` prints the unit to read from",
        )


def _systemctl(*words: str) -> None:
    try:
        done = subprocess.run(["systemctl", "--user", *words], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(f"systemctl --user {words[0]}: {error}", SEE) from error
    if done.returncode:
        raise HostError(f"systemctl --user {words[0]}: {done.stderr.strip()[-300:]}", SEE)
