"""The terminal UI by keys and screen text, at 80×24, on real records."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.pilot import Pilot

from appliance.types import Message, Purpose, RolloutState, RunState, ToolCall
from tests.support.tui_drive import ahead, drive, looking, press, session, shown, until, words
from tests.support.tui_record import SYSTEM, TASK, Builder, a_busy_record
from tui.app import CorralApp

EVIL = "\x1b[2J\x1b]0;owned\x07\x9b31m\x08\u202egnp.exe\u2028[bold red]markup[/]"
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One record for all tests that only look."""
    home = tmp_path_factory.mktemp("busy")
    builder = a_busy_record(home)
    yield home
    builder.close()


@pytest.fixture
def builder(tmp_path: Path) -> Iterator[Builder]:
    made = Builder(tmp_path)
    yield made
    made.close()


# ---------------------------------------------------------------------- the five views


def test_runs_show_state_as_glyph_and_word_with_steps_reward_and_message(busy: Path) -> None:
    screen, below = drive(looking(busy), "", "j")
    assert re.search(r"demo-1a2b +demo +● running +train +4/8 +0\.\d\d", screen)
    assert re.search(r"old-0412 +first try +■ stopped +– +0/8 +–", screen)
    assert "harnesses pi, codex   pack pocket" in screen
    assert "stopped by request" not in screen and "stopped by request" in below


def test_a_run_without_its_supervisor_is_said_to_be_lost(builder: Builder) -> None:
    builder.run("r1")
    (screen,) = drive(CorralApp(builder.home))
    assert "! lost" in screen and "its supervisor is gone" in screen
    builder.attend("r1")
    assert "● running" in drive(CorralApp(builder.home))[0]


def test_a_run_that_is_paused_says_so(builder: Builder) -> None:
    builder.attend(builder.run("r1"))
    builder.store.command("r1", "pause")
    (screen,) = drive(CorralApp(builder.home))
    assert "‖ paused" in screen and "corral unpause" in screen and "1 live" in screen


def test_rollouts_put_live_ones_first_and_explain_the_one_under_the_cursor(busy: Path) -> None:
    screen, failed = drive(looking(busy), "2", "j j j j j")
    rows = [line for line in screen.split("\n") if re.search(r"merge|find|count|rename", line)]
    assert re.search(r"● running +\d+s +\d+s +merge-train-07 +codex +step 5 +2 +25", rows[0])
    assert "5 live" in screen and "120 graded" in screen and "1 failed" in screen and "2 waiting" in screen
    assert "attempt 1   policy version 1" in screen
    assert "sandbox:out_of_memory" in failed and "the sandbox used more than 1024 MiB" in failed


@pytest.mark.slow
def test_slow_and_hung_look_different(busy: Path) -> None:
    now = [(busy / "supervisor.lock").stat().st_mtime + 2]
    app, screens = CorralApp(busy, clock=lambda: now[0]), []

    async def look(pilot: Pilot[None]) -> None:
        for seconds in (0, 17, 23):
            now[0] += seconds
            await press(pilot, "2")
            screens.append(shown(app))

    session(app, look)
    fine, slow, hung = screens
    assert "slow" not in fine and "hung" not in fine
    assert re.search(r"▲ running +\d+s +slow \d+s", slow) and re.search(r"! grading +\d+s +hung \d+s", slow)
    assert re.search(r"! running +\d+s +hung \d+s", hung) and "! 5 hung" in hung


def test_the_curve_shows_rewards_evaluation_and_zero_variance_groups(busy: Path) -> None:
    (screen,) = drive(looking(busy), "3")
    assert "● codex   ◆ pi" in screen
    assert screen.count("◆") >= 5
    assert "before 24/24" in screen and re.search(r"pi +33 % +\[\d+, \d+\]", screen)
    assert "Zero-variance groups" in screen and re.search(r"✓ 4 +0\.62 +24/24 +0 +3 of 6", screen)


def test_the_curve_shows_the_gain_when_both_evaluations_are_there(builder: Builder) -> None:
    run = builder.run("r1")
    for purpose, value in ((Purpose.EVAL_BEFORE, 0.0), (Purpose.EVAL_AFTER, 1.0)):
        for number in range(4):
            (rollout,) = builder.rollouts(run, purpose, 0, f"t{number}", 1)
            builder.grade(rollout, value)
    (screen,) = drive(CorralApp(builder.home), "3")
    assert re.search(r"pi +0 % +\[0, 49\] +100 % +\[51, 100\] +\+100 +\[\+\d+, \+100\]", screen)


def test_the_log_shows_levels_and_parts_and_can_be_cut_down(busy: Path) -> None:
    screen, errors, one_part = drive(looking(busy), "4", "l l l", "l p")
    assert "6 events   ● following" in screen and "▲ warning  sandbox" in screen
    assert "✗ error" in errors and "warning" not in errors and "level error" in errors
    assert "1 events" in one_part and "part grader" in one_part


@pytest.mark.slow
def test_the_log_follows_until_frozen(builder: Builder) -> None:
    run, screens = builder.run("r1"), []
    for number in range(40):
        builder.store.log("info", "supervisor", f"line {number}", run)
    app = CorralApp(builder.home)

    async def look(pilot: Pilot[None]) -> None:
        await press(pilot, "4")
        screens.append(shown(app))
        builder.store.log("info", "supervisor", "line 40", run)
        await press(pilot, "f")
        screens.append(shown(app))
        builder.store.log("info", "supervisor", "line 41", run)
        await press(pilot, "")
        screens.append(shown(app))
        await press(pilot, "f")
        screens.append(shown(app))
        await press(pilot, "k")
        screens.append(shown(app))

    session(app, look)
    assert "line 39" in screens[0] and "line 10 " not in screens[0]
    assert "■ frozen" in screens[2] and "line 41" not in screens[2]
    assert "● following" in screens[3] and "line 41" in screens[3]
    assert "■ frozen" in screens[4]


def test_enter_on_a_rollout_shows_its_calls_as_text_and_r_the_raw_bytes(busy: Path) -> None:
    first, second, whole, raw = drive(looking(busy), "2 enter", "n", "e", "r")
    assert "Count the lines in logs/*.txt" in first and '→ bash  {"command":"grep -c error logs/*.txt"}' in first
    assert "40 tokens in, 12 out" in first and "tools: bash, read" in first
    assert "3 earlier messages" in second and "There are 7 such lines" in second and "Count the lines" not in second
    assert "Count the lines" in whole
    assert '{"model": "corral", "messages"' in raw and "── response" in raw


# ---------------------------------------------------------------------- keys


@pytest.mark.slow
def test_j_k_g_and_upper_g_move_the_cursor(busy: Path) -> None:
    screens = drive(looking(busy), "j", "k", "G", "g", "2 G", "g")
    marked = [next(line for line in screen.split("\n") if line.startswith("▎")) for screen in screens]
    expected = ("old-0412", "demo-1a2b", "old-0412", "demo-1a2b", "· planned", "● running")
    for line, text in zip(marked, expected, strict=True):
        assert text in line


@pytest.mark.slow
def test_slash_filters_and_esc_clears_then_goes_back(busy: Path) -> None:
    keys = ("2 slash s a n enter", "escape", "escape", "2 enter", "escape", "slash z z enter")
    filtered, cleared, back, calls, back_again, nothing = drive(looking(busy), *keys)
    assert "filter: san" in filtered and "✗ failed" in filtered and "✓ graded" not in filtered
    assert "✓ graded" in cleared and "filter:" not in cleared
    assert "2 runs" in back
    assert "Rollout 1" in calls and "5 live" in back_again
    assert "Nothing matches the filter" in nothing


def test_keys_typed_into_the_filter_do_nothing_else(busy: Path) -> None:
    assert "filter: s1q?" in drive(looking(busy), "2 slash s 1 q question_mark")[0]


def test_the_footer_and_the_help_name_the_keys(busy: Path) -> None:
    footer, help_text, closed = drive(looking(busy), "2", "question_mark", "escape")
    assert re.search(r"/ Filter +y Copy +s Stop +\? Help +q Leave", footer)
    assert "leave; the run goes on" in help_text and "5 live" in closed


def test_y_copies_the_id_under_the_cursor(busy: Path) -> None:
    app = looking(busy)
    (screen,) = drive(app, "j y")
    assert app.clipboard == "old-0412" and "copied old-0412" in screen


@pytest.mark.slow
def test_the_run_under_the_cursor_is_the_one_that_the_other_views_show(busy: Path) -> None:
    older, newer = drive(looking(busy), "j enter", "1 k 2")
    assert "No rollouts yet" in older and "5 live" in newer


# ---------------------------------------------------------------------- what it writes, and what it never does


def waiting_commands(builder: Builder) -> list[tuple[str, str]]:
    return builder.store.take_commands("r1")


def test_quitting_leaves_the_run_as_it_was(builder: Builder) -> None:
    builder.run("r1")
    builder.attend("r1")
    before = list(sqlite3.connect(builder.store.path).iterdump())
    app = CorralApp(builder.home)

    async def leave(pilot: Pilot[None]) -> None:
        await press(pilot, "2 3 4 5 1 q")

    session(app, leave)
    assert app.return_code == 0 and not app.is_running
    assert list(sqlite3.connect(builder.store.path).iterdump()) == before


@pytest.mark.slow
def test_s_stops_the_run_after_a_yes_only(builder: Builder) -> None:
    builder.run("r1")
    builder.attend("r1")
    asked, _ = drive(CorralApp(builder.home), "s", "n")
    assert "Stop this run?" in asked
    assert waiting_commands(builder) == []
    assert "asked the supervisor to stop" in drive(CorralApp(builder.home), "s y")[0]
    assert waiting_commands(builder) == [("stop", "")]
    assert builder.store.run("r1").state is RunState.RUNNING


def test_readonly_and_ended_runs_cannot_be_stopped(builder: Builder) -> None:
    builder.run("r1")
    builder.attend("r1")
    (screen,) = drive(CorralApp(builder.home, readonly=True), "s y")
    assert "read-only" in screen and "s Stop" not in screen and "Stop this run?" not in screen
    builder.store.move_run("r1", RunState.DONE)
    assert "nothing to stop: the run is done" in drive(CorralApp(builder.home), "s")[0]
    assert waiting_commands(builder) == []


def test_several_look_at_one_record_at_once_and_each_moves_alone(builder: Builder) -> None:
    builder.attend(builder.run("r1"))
    apps, screens = (CorralApp(builder.home), CorralApp(builder.home)), {}
    both_look = asyncio.Barrier(2)

    async def sit(number: int, view: str, last: str) -> None:
        async with apps[number].run_test(size=(80, 24), notifications=True) as pilot:
            await press(pilot, view)
            await both_look.wait()
            await press(pilot, last)
            screens[number] = shown(apps[number])
            await both_look.wait()

    async def whole() -> None:
        await asyncio.gather(sit(0, "4", "s y"), sit(1, "2", "1"))

    try:
        asyncio.run(whole())
    finally:
        for app in apps:
            app.close()
    assert "4 Log" in screens[0] and "asked the supervisor to stop" in screens[0]
    assert "1 Runs" in screens[1] and "● running" in screens[1] and "asked" not in screens[1]
    assert waiting_commands(builder) == [("stop", "")]


# ---------------------------------------------------------------------- records that are not there, or not ours


def test_without_a_record_the_first_screen_offers_the_demo(tmp_path: Path) -> None:
    started: list[bool] = []
    app, screens = CorralApp(tmp_path, start_demo=lambda: started.append(True)), []

    async def look(pilot: Pilot[None]) -> None:
        screens.append(await until(pilot, "d Start the demo"))
        await press(pilot, "d d")
        screens.append(shown(app))

    session(app, look)
    before, after = screens
    assert "press d, or type corral demo" in before and "d Start the demo" in before
    assert "Rollouts" not in before and "Resume" not in before
    assert "starting the demo" in after and started == [True]
    assert not (tmp_path / "record.db").exists()
    (alone,) = drive(CorralApp(tmp_path), "d")
    assert "corral demo" in alone and "press d" not in alone and "s Stop" not in alone
    assert "press d" not in drive(CorralApp(tmp_path, readonly=True, start_demo=lambda: None), "d")[0]


def test_a_record_that_appears_while_looking_is_shown(tmp_path: Path) -> None:
    app, screens = CorralApp(tmp_path), []

    async def look(pilot: Pilot[None]) -> None:
        await press(pilot, "")
        screens.append(shown(app))
        builder = Builder(tmp_path)
        builder.run("r1", "newcomer")
        builder.close()
        await press(pilot, "")
        screens.append(shown(app))
        (tmp_path / "record.db").unlink()
        await press(pilot, "")
        screens.append(shown(app))

    session(app, look)
    assert "Nothing has been trained here yet" in screens[0]
    assert "newcomer" in screens[1] and "Nothing has been trained" not in screens[1]
    assert "Nothing has been trained here yet" in screens[2]


def test_a_newer_or_foreign_record_is_explained(tmp_path: Path, builder: Builder) -> None:
    with builder.store.write() as db:
        db.execute("INSERT INTO _sqlite_migrations VALUES(99, 'corral', 'from_the_future', '')")
    assert "written by a newer Corral" in words(drive(CorralApp(builder.home))[0])
    other = tmp_path / "other"
    other.mkdir()
    (other / "record.db").write_bytes(b"not a database" * 99)
    (screen,) = drive(CorralApp(other), "1 2 s y d")
    assert "The record cannot be read" in screen and "CORRAL_HOME" in screen


# ---------------------------------------------------------------------- text that nobody trusts


@pytest.mark.slow
def test_escape_sequences_from_models_and_tasks_never_reach_the_terminal(builder: Builder) -> None:
    run = builder.run("r1", EVIL)
    builder.attend(run)
    with builder.store.write() as db:
        db.execute("UPDATE runs SET message=?", (EVIL,))
    (rollout, other) = builder.rollouts(run, Purpose.TRAIN, 1, EVIL, 2, EVIL)
    builder.begin(rollout)
    answer = Message("assistant", EVIL * 9, EVIL, (ToolCall(EVIL, EVIL, EVIL),))
    builder.call(rollout, 0, (SYSTEM, TASK, Message("tool", EVIL, tool_call_id=EVIL)), answer, EVIL.encode())
    builder.begin(other)
    builder.store.fail(other, EVIL, EVIL)
    builder.store.log(EVIL, EVIL, EVIL + "\n\r" + EVIL, run, rollout)
    steps = ("1", "2", "j", "3", "4", "p", "p y", "2 g enter", "e", "r", "1 s")
    screens = dict(zip(steps, drive(CorralApp(builder.home), *steps), strict=True))
    for keys, screen in screens.items():
        for line in screen.split("\n"):
            assert not CONTROL.search(line), (keys, line)
    assert "[bold red]markup[/]" in screens["2 g enter"] and "␛[2J" in screens["2 g enter"]
    assert "Stop this run?" in screens["1 s"]


def test_wide_characters_stay_in_their_cells(builder: Builder) -> None:
    run = builder.run("r1")
    (rollout,) = builder.rollouts(run, Purpose.TRAIN, 1, "数え上げ課題の長い名前です", 1)
    builder.begin(rollout, RolloutState.RUNNING)
    from rich.cells import cell_len

    assert {cell_len(line) for line in drive(CorralApp(builder.home), "2")[0].split("\n")} == {80}


# ---------------------------------------------------------------------- size, colour, speed


@pytest.mark.slow
@pytest.mark.parametrize("size", [(30, 8), (200, 60)])
def test_every_view_draws_in_any_size(busy: Path, size: tuple[int, int]) -> None:
    steps = ("1", "3", "4", "2 enter", "question_mark")
    for screen in drive(looking(busy), *steps, size=size):
        assert [len(line) for line in screen.split("\n")] == [size[0]] * size[1]


def test_a_terminal_that_is_too_small_is_said_to_be(busy: Path) -> None:
    (small,), (enough,) = drive(looking(busy), size=(40, 12)), drive(looking(busy), size=(60, 16))
    assert "▲ 40×12 is too small: 60×16" in small and "demo-1a2b" in small
    assert "too small" not in enough and "1 Runs" in enough


def test_no_color_leaves_only_greys(busy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = CorralApp(busy, clock=ahead(40))
    colours: set[tuple[int, int, int]] = set()

    async def look(pilot: Pilot[None]) -> None:
        await press(pilot, "2")
        for strip in app.screen._compositor.render_strips():
            for segment in strip:
                for colour in (segment.style.color, segment.style.bgcolor) if segment.style else ():
                    if colour and colour.triplet:
                        colours.add(tuple(colour.triplet))

    session(app, look)
    assert colours and all(max(c) - min(c) <= 2 for c in colours)


def test_starting_imports_nothing_heavy() -> None:
    code = "import sys, appliance.cli, tui.app; print(*sys.modules)"
    root = Path(__file__).parents[2]
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert not {"torch", "transformers", "vllm", "podman", "uvicorn", "pydantic"} & set(found.stdout.split())
