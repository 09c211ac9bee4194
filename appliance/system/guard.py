"""Runs one command and lets nothing of it outlive this process or the one that started it.

Invariant: when the command ends, when the starter dies (its end of our stdin closes) or when we are
told to stop, every process of the command's group is killed and its scratch folder is removed.
vLLM needs this: after `kill -9` of its API server the EngineCore process lives on for ever.

Run by path with `python -I -S`, so it uses the standard library only and starts in milliseconds:
    guard.py FOLDER PROGRAM [ARGUMENT ...]
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

GRACE_S = 5.0
"""How long the command may take to end by itself after SIGTERM."""

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask the kernel to kill the calling process when the thread that forked it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def guard(folder: Path, argv: list[str]) -> int:
    """Run `argv` until it ends or stdin closes; its exit code, or 128 + the signal that ended it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # This process has one thread, so the hook between fork and exec is safe here.
    child = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509
    )
    try:
        (folder / "pid").write_text(str(child.pid))
        ended = os.pidfd_open(child.pid)
        either = select.poll()
        either.register(ended, select.POLLIN)
        either.register(sys.stdin.fileno(), select.POLLIN | select.POLLHUP)
        if ended not in {fd for fd, _ in either.poll()}:
            os.kill(child.pid, signal.SIGTERM)
            select.select([ended], [], [], GRACE_S)
    finally:
        # Before the leader is reaped: until then its number cannot name another group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        code = child.wait()
        shutil.rmtree(folder, ignore_errors=True)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(guard(Path(sys.argv[1]), sys.argv[2:]))
