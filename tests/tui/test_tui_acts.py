"""What the terminal UI does: commands left for the supervisor, programs started, questions asked; preferences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from textual.pilot import Pilot

from appliance.errors import ApplianceError
from appliance.types import Purpose, RolloutState, RunState
from tests.support.tui_drive import drive, press, session, shown
from tests.support.tui_record import Builder
from tui.actions import ACTS, BY_NAME, Site
from tui.app import CorralApp
from tui.appearance import read_preferences
from tui.pages.reader import Reader
from tui.pages.snapshot import Wanted


@pytest.fixture
def builder(tmp_path: Path) -> Iterator[Builder]:
    made = Builder(tmp_path)
    yield made
    made.close()


def live(builder: Builder, rollouts: int = 1) -> list[int]:
    """A run that this process attends, with rollouts under way."""
    builder.run("r1")
    builder.attend("r1")
    found = builder.rollouts("r1", Purpose.TRAIN, 1, "count-1", rollouts)
    for rollout in found:
        builder.begin(rollout, RolloutState.RUNNING)
    return found


def do(name: str) -> str:
    return f"colon {' '.join('space' if c == ' ' else c for c in name)} enter"


def left(builder: Builder) -> list[tuple[str, str]]:
    return builder.store.take_commands("r1")


@pytest.mark.slow
def test_pause_and_unpause_are_left_for_the_supervisor_without_a_question(builder: Builder) -> None:
    live(builder)
    paused, going = drive(CorralApp(builder.home), do("pause"), do("unpause"))
    assert "asked the supervisor to pause" in paused and "to go on" in going
    assert left(builder) == [("pause", ""), ("unpause", "")]


@pytest.mark.slow
def test_marked_rollouts_are_killed_together_after_a_yes_only(builder: Builder) -> None:
    first, second, _ = live(builder, 3)
    marked, asked, refused, done = drive(CorralApp(builder.home), "2 space space", "x", "n", "x y")
    assert "◆ 2 marked" in marked and "Kill rollout" in asked and "Kill rollout" not in refused
    assert left(builder) == [("kill", str(first)), ("kill", str(second))] and "asked the supervisor" in done


@pytest.mark.slow
def test_esc_takes_marks_away_before_it_goes_back(builder: Builder) -> None:
    live(builder, 2)
    unmarked, back = drive(CorralApp(builder.home), "2 space escape", "escape")
    assert "marked" not in unmarked and "2 live" in unmarked and "1 runs" in back


def test_retry_concerns_the_rollout_under_the_cursor(builder: Builder) -> None:
    (only,) = live(builder)
    drive(CorralApp(builder.home), "2 r")
    assert left(builder) == [("retry", str(only))]


@pytest.mark.slow
def test_stop_now_says_now_and_asks_first(builder: Builder) -> None:
    live(builder)
    asked, _ = drive(CorralApp(builder.home), do("stop now"), "y")
    assert "End this run at once?" in asked and left(builder) == [("stop", "now")]


@pytest.mark.slow
def test_readonly_refuses_every_act_and_hides_them(builder: Builder) -> None:
    live(builder)
    palette, keys = drive(CorralApp(builder.home, readonly=True), "colon", "escape 2 x y r s")
    assert "▸" not in palette and "→ rewards" in palette
    assert "read-only" in keys and left(builder) == []


def site(builder: Builder, argument: str = "") -> Site:
    reader = Reader(builder.home)
    snapshot = reader.poll(Wanted())
    reader.close()
    return Site(builder.home, snapshot.run, any(r.is_live for r in snapshot.runs), argument)


def test_acts_say_what_they_need(builder: Builder) -> None:
    live(builder)
    running = site(builder)
    assert BY_NAME["pause"].missing(running) == "" and "stop it first" in BY_NAME["prune run"].missing(running)
    assert "a supervisor works" in BY_NAME["evaluate"].missing(running)
    assert "put the cursor on a rollout" in BY_NAME["kill"].missing(running)
    builder.store.move_run("r1", RunState.DONE)
    (builder.home / "supervisor.lock").unlink()
    done = site(builder)
    assert BY_NAME["prune run"].missing(done) == "" and BY_NAME["resume"].missing(done) == "the run is done"
    assert "the run is done" in BY_NAME["pause"].missing(done)
    nothing = Site(builder.home, None, False)
    assert all(act.missing(nothing) for act in ACTS if act.name not in ("start", "new run", "remove orphans"))


def test_destructive_acts_ask_first() -> None:
    assert {act.name for act in ACTS if act.question} == {
        "stop", "stop now", "kill", "prune bodies", "prune run", "remove orphans",
    }  # fmt: skip


@pytest.mark.slow
def test_export_and_prune_run_the_commands_that_do_the_same(builder: Builder) -> None:
    builder.run("r1", state=RunState.STOPPED)
    (rollout,) = builder.rollouts("r1", Purpose.TRAIN, 1, "count-1", 1)
    builder.begin(rollout)
    builder.conversation(rollout)
    said = BY_NAME["prune bodies"].do(site(builder))
    assert "raw bodies of 2 calls taken out" in said
    with pytest.raises(ApplianceError, match="no policy version"):
        BY_NAME["checkpoint"].do(site(builder))
    with pytest.raises(ApplianceError, match="no such file"):
        BY_NAME["start"].do(site(builder, "nowhere.toml"))


@pytest.mark.slow
def test_a_harness_opens_in_the_users_editor(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    builder.run("r1")
    monkeypatch.setenv("VISUAL", "my-editor --wait")
    opened: list[Sequence[str]] = []

    def in_terminal(argv: Sequence[str], environment: dict[str, str]) -> int:
        opened.append(argv)
        return 3

    app = CorralApp(builder.home, in_terminal=in_terminal)
    *_, told = drive(app, do("harnesses"), "e")
    assert opened[-1][:2] == ["my-editor", "--wait"] and str(opened[-1][2]).endswith(".toml")
    assert "my-editor ended with exit code 3" in told


@pytest.mark.slow
def test_starting_asks_for_the_toml_and_says_when_it_is_not_there(builder: Builder) -> None:
    builder.run("r1", state=RunState.STOPPED)
    asked, left_alone = drive(CorralApp(builder.home), do("start"), "escape")
    assert "data/demo.toml" in asked and "TOML of the run" in asked and "TOML of the run" not in left_alone


@pytest.mark.slow
def test_f_freezes_the_screen_until_it_is_pressed_again(builder: Builder) -> None:
    live(builder)
    app, screens = CorralApp(builder.home), []

    async def look(pilot: Pilot[None]) -> None:
        await press(pilot, "2")
        await press(pilot, "f")
        builder.rollouts("r1", Purpose.TRAIN, 1, "newcomer", 1)
        for keys in ("", "f"):
            await press(pilot, keys)
            screens.append(shown(app))

    session(app, look)
    assert "frozen" in screens[0] and "newcomer" not in screens[0]
    assert "frozen" not in screens[1] and "newcomer" in screens[1]


# ---------------------------------------------------------------------- preferences


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("theme = 'mono'\n[keys]\nstop = 'ctrl+t'", ""),
        ("theme = 'nope'", "theme 'nope' is unknown"),
        ("colour = 1", "unknown key 'colour'"),
        ("[keys]\ndance = 'x'", "keys.dance: there is no such act; known: stop"),
        ("theme = ", "cannot be read"),
    ],
)
def test_what_is_wrong_in_the_preferences_is_said_and_left_out(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "ui.toml").write_text(text)
    found = read_preferences(tmp_path, ("corral", "mono"), ("stop",))
    if problem:
        assert problem in found.problems[0] and (found.theme, found.keys) == ("corral", {})
    else:
        assert (found.theme, found.keys, found.problems) == ("mono", {"stop": "ctrl+t"}, ())


def test_keys_and_theme_come_from_the_preferences(builder: Builder) -> None:
    live(builder)
    (builder.home / "ui.toml").write_text("theme = 'mono'\ncolour = 3\n[keys]\nstop = 'ctrl+t'\n")
    app = CorralApp(builder.home)
    before, after = drive(app, "s", "ctrl+t")
    assert app.theme == "mono" and "'colour';" in before
    assert "Stop this run?" not in before and "Stop this run?" in after
