"""What the docs say can be done can be: their commands parse, their links lead somewhere, the pictures load nothing."""

from __future__ import annotations

import asyncio
import re
import runpy
import shlex
from pathlib import Path

import pytest

from appliance.cli import build_parser
from appliance.config.runconfig import CHECKOUT
from tests.support.tui_record import a_busy_record

DOCS = CHECKOUT / "docs"
PAGES = sorted([*DOCS.glob("*.md"), CHECKOUT / "README.md"])
LISTS = ("reference.md", "README.md")  # written from the parser itself; a table of words beside commands
NOT_ONE_COMMAND = re.compile(r"[|·$…\[]|^corral +[a-z|]+\|")
"""Tables of several commands, and lines that a shell reads more of."""


def commands_of(page: Path) -> list[str]:
    """Lines of code blocks that are one command, without the words beside them."""
    blocks = re.findall(r"^```[a-z]*\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    lines = [re.split(r"\s{2,}|\s#\s", line.strip())[0] for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("corral ") and not NOT_ONE_COMMAND.search(line)]


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in LISTS], ids=lambda page: page.name)
def test_every_command_of_a_page_is_one_that_the_program_takes(page: Path) -> None:
    assert [command for command in commands_of(page) if not is_taken(command)] == []


def is_taken(command: str) -> bool:
    words = [re.sub(r"^N$", "1", word) for word in shlex.split(command)[1:]]
    try:
        build_parser().parse_args(words)
    except SystemExit:
        return False
    return True


def test_the_how_tos_have_commands_to_try() -> None:
    assert len(commands_of(DOCS / "howto.md")) > 20


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        name, _, heading = target.partition("#")
        if "://" in name:
            continue
        there = page.parent / name if name else page
        assert there.is_file(), f"{page.name}: {target}"
        if heading:
            headings = re.findall(r"^#+ (.+)$", there.read_text(), re.MULTILINE)
            known = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
            assert heading in known, f"{page.name}: {target}"


def test_the_tours_pictures_are_all_shown_small_and_load_nothing() -> None:
    pictures = {path.name: path for path in (DOCS / "tour").glob("*.svg")}
    shown = re.findall(r"\(tour/([a-z]+\.svg)\)", (DOCS / "tour.md").read_text())
    shots = runpy.run_path(str(DOCS / "make_tour.py"))["SHOTS"]
    assert sorted(shown) == sorted(pictures) == sorted(f"{shot.name}.svg" for shot in shots)
    assert sum(path.stat().st_size for path in pictures.values()) < 600_000
    for path in pictures.values():
        text = path.read_text()
        assert "url(http" not in text and "<script" not in text and "xlink" not in text, path


@pytest.mark.slow
def test_the_pictures_can_be_taken_again_from_any_record(tmp_path: Path) -> None:
    a_busy_record(tmp_path).close()
    tour = runpy.run_path(str(DOCS / "make_tour.py"))
    taken = asyncio.run(tour["take"](tmp_path, tmp_path / "tour"))
    assert [path.stem for path in taken] == [shot.name for shot in tour["SHOTS"]]
    text = {path.stem: path.read_text().replace("&#160;", " ") for path in taken}
    assert "demo-1a2b" in text["runs"] and "Mean reward by step" in text["curve"] and "Rollout" in text["tree"]
    assert "train.steps" in text["settings"] or "tasks.pack" in text["settings"]
    assert all("@font-face" not in svg for svg in text.values())
