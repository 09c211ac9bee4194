"""A program in a real tmux: keys go in, the screen is read as a person sees it."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from appliance.config.runconfig import CHECKOUT

PATIENCE_S = 60.0


class Terminal:
    """One session of a tmux server of its own, which nobody else's configuration or sessions touch."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    def tmux(self, *arguments: str) -> str:
        command = ["tmux", "-u", "-S", str(self._socket), "-f", "/dev/null", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout

    def keys(self, *keys: str) -> None:
        """Presses keys by tmux's names for them."""
        self.tmux("send-keys", *keys)

    def text(self, text: str) -> None:
        """Types a text as it is."""
        self.tmux("send-keys", "-l", text)

    def shown(self) -> str:
        """The whole screen."""
        return self.tmux("capture-pane", "-p")

    def until(self, is_there: str | Callable[[str], bool], patience_s: float = PATIENCE_S) -> str:
        """The screen, once it shows a text or makes a claim true."""
        until = time.monotonic() + patience_s
        while True:
            screen = self.shown()
            if is_there in screen if isinstance(is_there, str) else is_there(screen):
                return screen
            if time.monotonic() > until:
                raise AssertionError(f"never on the screen: {is_there}; last:\n{screen}")
            time.sleep(0.2)

    @property
    def has_ended(self) -> bool:
        return self.tmux("display-message", "-p", "#{pane_dead}").strip() == "1"


@contextmanager
def terminal(folder: Path, program: list[str], size: tuple[int, int], variables: dict[str, str]) -> Iterator[Terminal]:
    """Runs a program in a terminal of this size until the body has ended; what it started beside itself lives on."""
    assert shutil.which("tmux"), "tmux is not installed: `./install.sh test` installs it with what else tests need"
    one = Terminal(folder / "tmux.socket")
    environment = [f"{key}={value}" for key, value in (variables | {"TERM": "screen-256color"}).items()]
    wide, high = map(str, size)
    inner = ["env", "-u", "COLUMNS", "-u", "LINES", *environment, *program]  # they would stand in for the size
    one.tmux("new-session", "-d", "-x", wide, "-y", high, "-c", str(CHECKOUT), "sleep 1000000")
    try:
        one.tmux("set-option", "-g", "remain-on-exit", "on")  # the last screen can still be read
        one.tmux("respawn-pane", "-k", "-c", str(CHECKOUT), *inner)
        yield one
    finally:
        one.tmux("kill-server")


def plain_environment(folder: Path, podman: Path) -> dict[str, str]:
    """What a user's shell would set, and nothing that would change how the UI draws."""
    found = {"CORRAL_HOME": str(folder), "CORRAL_PODMAN_HOME": str(podman), "LANG": "C.UTF-8"}
    return found | {"PYTHONPATH": str(CHECKOUT), "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE")}
