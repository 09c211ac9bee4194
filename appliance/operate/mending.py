"""What `corral doctor --fix` does: only what loses nothing and needs no network. Each act is told in one line.

Images are not built and records not migrated here: those take long or change what is kept, and have commands.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from appliance.config.runconfig import podman_home
from appliance.errors import CorralError, HostError
from appliance.operate.host_checks import open_to_others
from appliance.record.lock import supervisor_of
from appliance.sandbox import admin
from appliance.sandbox.service import remove_dead_sockets
from appliance.sandbox.settings import PodmanPlaces
from appliance.system import scratch


def mend(home: Path) -> list[str]:
    """Mends what is safe; what was done. HostError when the state folder itself cannot be made."""
    done = _folder(home)
    done += [f"removed {path}" for path in scratch.remove(scratch.stale_scratch())]
    run = PodmanPlaces.under(podman_home(home)).run
    if run.is_dir():
        before = set(run.iterdir())
        remove_dead_sockets(run)
        done += [f"removed {path}" for path in sorted(before - set(run.iterdir()))]
    if supervisor_of(home) is None and shutil.which("podman") and (podman_home(home) / "podman").is_dir():
        with suppress(CorralError):  # the checks that follow say what is wrong with Podman
            done += [f"removed the sandbox {name}, whose maker is gone" for name in admin.prune(podman_home(home))]
    return done


def _folder(home: Path) -> list[str]:
    """The state folder, and the modes of what only its owner may read."""
    done = []
    try:
        if not home.exists():
            home.mkdir(parents=True)
            done.append(f"made {home}")
        for path in open_to_others(home):
            path.chmod(0o700 if path.is_dir() else 0o600)
            done.append(f"closed {path} to other users")
    except OSError as error:
        raise HostError(f"{home}: {error.strerror}", "make it writable, or set CORRAL_HOME") from error
    return done
