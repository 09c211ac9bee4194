"""How far a command is: what is estimated from counts, what from the last time, and what is said of it where."""

from __future__ import annotations

import io
import json
import threading
from argparse import Namespace
from pathlib import Path

import pytest

from appliance.commands.progress import Progress, progress

PATIENCE_S = 60


class Lines(io.StringIO):
    """A stream that can be waited for."""

    def __init__(self, on_screen: bool = False) -> None:
        super().__init__()
        self.on_screen, self.written = on_screen, threading.Event()

    def isatty(self) -> bool:
        return self.on_screen

    def write(self, text: str) -> int:
        written = super().write(text)
        self.written.set()
        return written


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CORRAL_HOME", str(tmp_path))
    return tmp_path


def asked(json: bool = False, plain: bool = False) -> Namespace:
    return Namespace(json=json, plain=plain)


def test_what_is_counted_is_estimated_from_when_counting_began() -> None:
    clock = Clock()
    one = Progress("db check", "rollouts", None, clock)
    assert "not known yet" in one.text() and one.found()["left_s"] is None
    clock.now += 30  # something else came first
    one(10, 60)
    clock.now += 4
    one(30, 60)  # 20 in 4 s: 30 more take 6 s
    assert one.text() == "db check: 30 of 60 rollouts, 34 s so far, about 6 s left"
    assert one.found() == {"part": "db check", "seconds": 34.0, "done": 30, "of": 60, "left_s": 6.0}


def test_what_is_not_counted_is_estimated_from_the_last_time() -> None:
    clock = Clock()
    one = Progress("db vacuum", "", 20.0, clock)
    clock.now += 5
    assert one.text() == "db vacuum: 5 s so far, about 15 s left"


def test_what_is_quick_says_nothing_and_is_not_remembered(own_home: Path) -> None:
    err = Lines()
    with progress(asked(), "status", err=err, first_s=PATIENCE_S):
        pass
    assert err.getvalue() == "" and not (own_home / "durations.json").exists()


@pytest.mark.parametrize("how", ["json", "plain", "screen", "file"])
def test_what_is_long_says_how_far_it_is_where_it_was_asked_to(how: str, own_home: Path) -> None:
    (own_home / "durations.json").write_text('{"db vacuum": 1000}')
    err = Lines(on_screen=how != "file")
    with progress(asked(json=how == "json", plain=how == "plain"), "db vacuum", err=err, first_s=0.001):
        assert err.written.wait(PATIENCE_S)
    said = err.getvalue()
    if how == "json":
        assert json.loads(said.splitlines()[0])["left_s"] > 0
    elif how == "screen":
        assert said.startswith("\r\x1b[Kdb vacuum: ") and said.endswith("\r\x1b[K") and "\n" not in said
    else:
        assert said.startswith("db vacuum: ") and said.endswith(" s left\n") and "\x1b" not in said
    assert json.loads((own_home / "durations.json").read_text())["db vacuum"] < 1000


def test_a_memory_that_is_damaged_or_nowhere_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "durations.json").write_text("[1, 2")
    for home in (tmp_path, tmp_path / "nowhere"):
        monkeypatch.setenv("CORRAL_HOME", str(home))
        err = Lines()
        with progress(asked(), "forks", err=err, first_s=0.001):
            assert err.written.wait(PATIENCE_S)
        assert "not known yet" in err.getvalue()
    assert not (tmp_path / "nowhere").exists()


def test_what_fails_is_not_remembered(own_home: Path) -> None:
    with pytest.raises(ValueError), progress(asked(), "forks", err=(err := Lines()), first_s=0.001):
        assert err.written.wait(PATIENCE_S)
        raise ValueError
    assert not (own_home / "durations.json").exists()
