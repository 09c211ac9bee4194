"""Checks of this machine as the doctor view draws them. No Textual."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from tui.text import plain, plain_line


@dataclass(frozen=True, slots=True)
class CheckLine:
    """One check of this machine."""

    name: str
    is_ok: bool
    found: str
    remedy: str


@dataclass(frozen=True, slots=True)
class DoctorPage:
    """Every check, in the order in which a failure matters, and when they were made."""

    checks: tuple[CheckLine, ...] = ()
    at: float = 0.0


def read_doctor(home: Path) -> DoctorPage:
    """Makes every check; takes seconds on a large record."""
    from appliance.operate.doctor import checks

    found = checks(home)
    lines = tuple(
        CheckLine(plain_line(str(c["name"])), bool(c["ok"]), plain(str(c["found"])), plain(str(c["remedy"])))
        for c in found
    )
    return DoctorPage(lines, time.time())
