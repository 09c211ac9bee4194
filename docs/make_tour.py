"""Takes the pictures of docs/tour.md: opens the terminal UI on a record, presses keys, keeps what it draws as SVG.

    python docs/make_tour.py            from the record in $CORRAL_HOME, for example after `./install.sh demo`
    python docs/make_tour.py FOLDER     the pictures go there instead of docs/tour

Each picture is what Textual itself exports, without the web font it would load: a picture loads nothing.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from textual.pilot import Pilot

from appliance.config.runconfig import home
from tui.app import CorralApp

FOLDER = Path(__file__).resolve().parent / "tour"
SIZE = (110, 30)
PATIENCE_S = 120
TEXT = re.compile(r'<text class="([^"]+)" x="([\d.]+)" y="([\d.]+)" textLength="([\d.]+)"[^>]*>([^<]*)</text>')
CELL = 12.2
"""Width of a character in Textual's pictures."""
SPACE = "&#160;"


@dataclass(frozen=True, slots=True)
class Shot:
    """A picture: what is pressed to come to it from the one before, and its name."""

    name: str
    keys: str


SHOTS = (
    Shot("runs", "1"),
    Shot("form", "n"),
    Shot("curve", "escape 3"),
    Shot("rollouts", "G enter"),
    Shot("calls", "enter"),
    Shot("tree", "6 j"),
    Shot("rewards", "7"),
    Shot("log", "4"),
    Shot("tasks", "colon t a s k s enter"),
    Shot("checkpoints", "colon c h e c k p o i n t s enter"),
    Shot("harnesses", "colon h a r n e s s e s enter"),
    Shot("settings", "colon s e t t i n g s enter"),
    Shot("palette", "1 colon"),
)


async def take(record: Path, folder: Path) -> list[Path]:
    """Every picture, in their order; each is written once the view in front has read what it shows."""
    folder.mkdir(parents=True, exist_ok=True)
    app = CorralApp(record, readonly=False)
    written = []
    try:
        async with app.run_test(size=SIZE) as pilot:
            for shot in SHOTS:
                await _settle(app, pilot)
                for key in shot.keys.split():
                    await pilot.press(key)
                    await _settle(app, pilot)
                path = folder / f"{shot.name}.svg"
                path.write_text(slim(app.export_screenshot(title=f"corral: {shot.name}"), shot.name), encoding="utf-8")
                written.append(path)
    finally:
        app.close()
    return written


async def _settle(app: CorralApp, pilot: Pilot[None]) -> None:
    """Until everything asked for is read and drawn."""
    until = time.monotonic() + PATIENCE_S
    await pilot.pause()
    await app.poll_once()
    await pilot.pause()
    while app.is_reading and time.monotonic() < until:
        await asyncio.sleep(0.05)
        await app.poll_once()
        await pilot.pause()


def slim(svg: str, name: str) -> str:
    """Without the font of another site, without what the program's own numbers change from time to time, and small."""
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = svg.replace("Fira Code, monospace", "monospace").replace("font-family: arial", "font-family: sans-serif")
    svg = re.sub(r"terminal-\d+-", f"{name}-", svg)
    svg = re.sub(rf'<clipPath id="{name}-line-\d+">.*?</clipPath>\s*', "", svg, flags=re.DOTALL)
    svg = re.sub(rf' clip-path="url\(#{name}-line-\d+\)"', "", svg)
    svg = TEXT.sub(_trimmed, svg)
    svg = re.sub(r'((?:x|y|width|height|textLength)="[\d.]+?\.\d)\d+"', r'\1"', svg)
    return "\n".join(line.strip() for line in svg.splitlines() if line.strip()) + "\n"


def _trimmed(found: re.Match[str]) -> str:
    """A text without the spaces around it, which some viewers do not draw, in the same place."""
    name, x, y, length, text = found.groups()
    before = 0
    while text.startswith(SPACE, before * len(SPACE)):
        before += 1
    body = text[before * len(SPACE) :]
    after = 0
    while body.endswith(SPACE):
        body, after = body[: -len(SPACE)], after + 1
    if not body:
        return ""
    at, wide = float(x) + CELL * before, float(length) - CELL * (before + after)
    return f'<text class="{name}" x="{at:.1f}" y="{y}" textLength="{wide:.1f}">{body}</text>'


def main(argv: list[str]) -> int:
    """Takes the pictures, and says where they are."""
    if not (home() / "record.db").is_file():
        sys.stderr.write(f"{home()} holds no record\n  remedy: make one, `./install.sh demo`, or set CORRAL_HOME\n")
        return 1
    for path in asyncio.run(take(home(), Path(argv[0]) if argv else FOLDER)):
        sys.stdout.write(f"{path}  {path.stat().st_size // 1024} KB\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
