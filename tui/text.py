"""Text that is safe and short enough for a terminal cell.

Models, tasks and harnesses write text that Corral does not trust. Nothing that `plain` returns can move the cursor,
change a colour, reorder a line or send a command to the terminal.
"""

from __future__ import annotations

import re

from rich.cells import cell_len, chop_cells, set_cell_size

from appliance.types import RolloutState, RunState

_SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]")
_STACKED_MARKS = re.compile("([\u0300-\u036f]{2})[\u0300-\u036f]+")
REPLACEMENT = "\ufffd"

RUN_LOOKS: dict[str, tuple[str, str]] = {
    RunState.CREATED: ("○", "muted"),
    RunState.RUNNING: ("●", "good"),
    RunState.DRAINING: ("◐", "warn"),
    RunState.STOPPED: ("■", "muted"),
    RunState.DONE: ("✓", "accent"),
    RunState.FAILED: ("✗", "bad"),
    "paused": ("‖", "warn"),
    "lost": ("!", "bad"),
}
"""Word of a run's state → (glyph, kind of text); `lost` and `paused` are running in the record: the first with no
supervisor alive."""

ROLLOUT_LOOKS: dict[str, tuple[str, str]] = {
    RolloutState.PLANNED: ("·", "muted"),
    RolloutState.STARTING: ("○", "good"),
    RolloutState.RUNNING: ("●", "good"),
    RolloutState.GRADING: ("◐", "good"),
    RolloutState.GRADED: ("✓", "muted"),
    RolloutState.FAILED: ("✗", "bad"),
}
PACE_LOOKS: dict[str, tuple[str, str]] = {"slow": ("▲", "warn"), "hung": ("!", "alarm")}
LEVEL_LOOKS: dict[str, tuple[str, str]] = {
    "debug": ("·", "muted"),
    "info": ("●", "muted"),
    "warning": ("▲", "warn"),
    "error": ("✗", "bad"),
}


def plain(text: str) -> str:
    """`text` without anything but printable characters and line ends; C0 controls become their pictures (␛)."""
    if not text.isascii():
        text = _STACKED_MARKS.sub(r"\1", _SELECTORS.sub("", text))
    if text.isprintable():
        return text
    text = text.replace("\r\n", "\n").expandtabs(4)
    return "".join(c if c.isprintable() or c == "\n" else _picture(c) for c in text)


def plain_line(text: str) -> str:
    """`plain` on a single line."""
    return " ".join(plain(text).split("\n")).strip()


def _picture(char: str) -> str:
    code = ord(char)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    return " " if char.isspace() and code > 0xA0 - 1 and code not in (0x2028, 0x2029) else REPLACEMENT


def cut(text: str, width: int, right: bool = False) -> str:
    """`text` in exactly `width` cells: padded, or ended with an ellipsis."""
    length = cell_len(text)
    if length > width:
        return set_cell_size(text, width - 1) + "…" if width > 0 else ""
    return " " * (width - length) + text if right else text + " " * (width - length)


def fold(text: str, width: int) -> list[str]:
    """`text` as lines of at most `width` cells; breaks at spaces where that loses little."""
    lines: list[str] = []
    for line in text.split("\n"):
        rest = line
        while cell_len(rest) > width:
            head = chop_cells(rest, width)[0]
            space = head.rfind(" ", width // 2)
            if space > 0 and rest[len(head) : len(head) + 1] != " ":
                head = head[: space + 1]
            lines.append(head.rstrip())
            rest = rest[len(head) :].removeprefix(" ")
        lines.append(rest)
    return lines


def duration(seconds: float | None) -> str:
    """At most five characters: `7s`, `3m05`, `2h07`, `4d03`; `–` when unknown."""
    if seconds is None:
        return "–"
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}"


def count(number: int) -> str:
    """A number in at most six characters: `981`, `12.4k`, `3.1M`."""
    if number < 10_000:
        return str(number)
    if number < 1_000_000:
        return f"{number / 1000:.1f}k"
    return f"{number / 1_000_000:.1f}M"


def share(value: float | None) -> str:
    """A share as whole percent."""
    return "–" if value is None else f"{round(100 * value)} %"


def reward(value: float | None) -> str:
    """A reward, or `–` without a grade."""
    return "–" if value is None else f"{value:.2f}"


def bar(value: float, width: int) -> str:
    """A share of 1 as a bar of at most `width` cells, to an eighth of a cell."""
    eighths = round(max(0.0, min(1.0, value)) * width * 8)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (" ▏▎▍▌▋▊▉"[rest] if rest else "")


def size(num_bytes: int) -> str:
    """Bytes in at most nine characters: `812 B`, `1.4 MiB`."""
    value, unit = float(num_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{num_bytes} B" if unit == "B" else f"{value:.1f} {unit}"
