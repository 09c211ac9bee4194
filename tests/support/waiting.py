"""Waits for what other processes do."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(is_true: Callable[[], bool], deadline_s: float = 120.0) -> None:
    """Looks twenty times a second until `is_true`; fails at the deadline."""
    deadline = time.monotonic() + deadline_s
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.05)
