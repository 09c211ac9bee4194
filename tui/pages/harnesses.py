"""Harness files at hand, with their text and what is wrong in them. No Textual."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tui.text import plain, plain_line


@dataclass(frozen=True, slots=True)
class HarnessLine:
    """A harness file; `problem` says why it cannot be used. `is_own`: outside the checkout, so it may be edited."""

    name: str
    version: str
    wire: str
    file: str
    text: str
    problem: str
    is_own: bool


@dataclass(frozen=True, slots=True)
class HarnessesPage:
    """All harness files at hand; those with a problem first."""

    harnesses: tuple[HarnessLine, ...] = ()


def read_harnesses(home: Path) -> HarnessesPage:
    """The shelf of this home."""
    from appliance.config.runconfig import CHECKOUT
    from appliance.harness.catalog import Shelf

    shelf = Shelf.of(home)
    lines = [
        HarnessLine(plain_line(path.stem), "", "", str(path), _text(path), plain(str(error)),
                    CHECKOUT not in path.parents)
        for path, error in shelf.problems.items()
    ]  # fmt: skip
    for name, harness in shelf.harnesses.items():
        path = shelf.paths[name]
        lines.append(
            HarnessLine(plain_line(name), plain_line(harness.version), plain_line(harness.wire), str(path),
                        _text(path), "", CHECKOUT not in path.parents)
        )  # fmt: skip
    return HarnessesPage(tuple(lines))


def _text(path: Path) -> str:
    try:
        return plain(path.read_text(encoding="utf-8", errors="backslashreplace")[:20_000])
    except OSError as error:
        return plain(str(error))
