"""A run as one page: self-contained, escaped, and whole or not there."""

from __future__ import annotations

import html.parser
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.errors import ExportError
from appliance.report.run_html import write_report
from appliance.types import Message, Purpose, Reward, RunState
from tests.support.tui_record import CONFIG, Builder, a_busy_record

EVIL = "<script>alert(1)</script>\x1b[2J"


@pytest.fixture
def builder(tmp_path: Path) -> Iterator[Builder]:
    made = a_busy_record(tmp_path)
    yield made
    made.close()


class Links(html.parser.HTMLParser):
    """Every tag, and every attribute that could load something."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [name for name, _ in attrs if name in ("src", "href", "srcset", "data", "action")]


def test_the_page_holds_numbers_curves_steps_and_trees_and_loads_nothing(builder: Builder, tmp_path: Path) -> None:
    (rollout,) = builder.rollouts("demo-1a2b", Purpose.TRAIN, 7, EVIL, 1)
    builder.begin(rollout)
    builder.conversation(rollout)
    builder.call(rollout, 2, (Message("user", EVIL),), Message("assistant", EVIL))
    builder.store.grade(rollout, Reward(1.0), "", {})
    target = tmp_path / "run.html"
    write_report(tmp_path, builder.store, "demo-1a2b", target)
    text, seen = target.read_text(), Links()
    seen.feed(text)
    assert seen.tags.count("svg") == 2 and "script" not in seen.tags and not seen.loads
    assert "default-src 'none'" in text.replace("&#x27;", "'")
    for word in ("pi before", "mean reward by step", "logprob_gap", f"rollout {rollout}", "trained", "seed 0"):
        assert word in text
    assert "&lt;script&gt;" in text and "\\x1b[2J" in text and "\x1b" not in text


def test_a_page_that_is_there_is_not_written_over(builder: Builder, tmp_path: Path) -> None:
    target = tmp_path / "run.html"
    target.write_text("mine")
    with pytest.raises(ExportError):
        write_report(tmp_path, builder.store, "old-0412", target)
    assert target.read_text() == "mine"


def test_a_run_that_has_done_nothing_yet_has_a_page(builder: Builder, tmp_path: Path) -> None:
    builder.store.create_run("empty", "empty", CONFIG, 0, "test")
    write_report(tmp_path, builder.store, "empty", tmp_path / "empty.html")
    assert str(RunState.CREATED) in (tmp_path / "empty.html").read_text()
