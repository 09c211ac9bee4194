"""The wider views of the terminal UI, by keys and screen text, on a real record and on this machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.types import Message, Purpose
from tests.support.tui_drive import drive, looking
from tests.support.tui_record import SYSTEM, TASK, Builder, a_busy_record
from tui.actions import ACTS
from tui.app import CorralApp
from tui.navigation import PLACES
from tui.pages import hardware
from tui.pages.tree import TokenText, token_with
from tui.text import bar, size
from tui.widgets.palette import Entry, best_first
from tui.widgets.tokens import kind_by_advantage, kind_by_logprob, lines_of


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("busy")
    builder = a_busy_record(home)
    yield home
    builder.close()


def go(name: str) -> str:
    """The keys that lead to a view through the palette."""
    return f"colon {' '.join(name)} enter"


def test_the_tree_shows_where_calls_part_and_two_branches_side_by_side(busy: Path) -> None:
    whole, fork, beside, advantage = drive(looking(busy), "2 enter 6", "n", "b", "c")
    assert "2 rows, 1 forks" in whole and "○ prompt" in whole and "● call 0" in whole
    assert re.search(r"≠ call 1 left call 0 at token \d+", fork) and "expected" in fork and "found" in fork
    assert "call 0 · 12 · logprob" in beside and "60 prompt tokens" in beside
    assert "colours: advantage" in advantage


def test_the_histogram_counts_rewards_and_enter_lists_a_bar(busy: Path) -> None:
    bars, listed, everything = drive(looking(busy), "7", "enter", "escape")
    assert "96 graded" in bars
    full = re.search(r"1\.00 full +(\d+)", bars)
    assert full and f"{full[1]} rollouts   only reward 1 to inf" in listed and "failed" not in listed
    assert "correct" in bars and "5 live" in everything


@pytest.mark.slow
def test_enter_on_a_step_of_the_curve_lists_its_rollouts(busy: Path) -> None:
    (listed,) = drive(looking(busy), "3 j j enter")
    assert "24 rollouts   only step 3" in listed


@pytest.mark.slow
def test_hardware_says_what_is_used_and_that_there_is_no_gpu(busy: Path) -> None:
    (screen,) = drive(looking(busy), "8")
    assert re.search(r"memory .* GiB of ", screen) and re.search(r"record +\d", screen)
    assert "supervisor" in screen  # this process says in the lock file that it is one
    assert "no GPU" in screen or "gpu 0" in screen


def test_gpu_memory_is_told_by_owner() -> None:
    devices = "GPU-1, NVIDIA X, 3000, 80000, 40\nGPU-2, NVIDIA X, [N/A], 80000, [N/A]\n"
    apps = "GPU-1, 10, 2000\nGPU-1, 11, 600\nGPU-1, 99, 400\n"
    one, two = hardware.gpu_lines(devices, apps, {10: "engine", 11: "trainer"})
    assert one.by_owner == (("engine", 2000 << 20), ("trainer", 600 << 20), ("others", 400 << 20))
    assert one.busy_share == 0.4 and two.used_bytes == 0 and two.by_owner == ()


def test_traffic_lists_the_newest_calls_and_opens_their_rollout(busy: Path) -> None:
    screen, calls = drive(looking(busy), go("traffic"), "enter")
    assert "6 newest" in screen and "merge-tr" in screen and "answered by version 1" in screen
    assert "Rollout 123" in calls and "There are 7 such lines" in calls


def test_tasks_show_solve_rates_by_harness(busy: Path) -> None:
    (screen,) = drive(looking(busy), go("tasks"))
    assert "17 tasks   15 tried" in screen and "mean reward" in screen and "never solved" in screen


@pytest.mark.slow
def test_tasks_of_the_pack_show_their_instruction(builder: Builder) -> None:
    builder.run("r1")
    builder.store.note_tasks("pocket", [("count-1", "count", "train", "Count the files.")])
    (screen,) = drive(CorralApp(builder.home), go("tasks"))
    assert "count-1" in screen and "Count the files." in screen and "This run has not tried it" in screen


@pytest.mark.slow
def test_checkpoints_show_versions_with_metrics_and_evaluations(busy: Path) -> None:
    screen, tested = drive(looking(busy), go("checkpoints"), "G")
    assert "4 versions   newest 4" in screen and "pruned" in screen and "Not evaluated" in screen
    assert re.search(r"before +pi +Pass@1 +33 % +\[\d+, \d+\]", tested)


@pytest.mark.slow
def test_settings_say_what_decided_each_value(builder: Builder) -> None:
    from appliance.config.runconfig import resolve

    config = resolve(None, {"train.steps": "5"}).model_dump(mode="json")
    builder.store.create_run("r2", "five", config, 0, "test")
    keys = f"{go('settings')} slash t r a i n . s t e p s enter"
    (screen,) = drive(CorralApp(builder.home), keys)
    assert re.search(r"train\.steps +5 +● this run", screen) and "default 8" in screen
    (builder.home / "runs" / "r2").mkdir(parents=True)
    (builder.home / "runs" / "r2" / "sources.json").write_text('{"train.steps": "command line"}')
    assert re.search(r"train\.steps +5 +● command line", drive(CorralApp(builder.home), keys)[0])


@pytest.mark.slow
def test_harnesses_show_broken_files_first_and_the_text(
    busy: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "broken.toml").write_text("name = 3")
    monkeypatch.setenv("CORRAL_HARNESSES", str(tmp_path))
    screen, used = drive(looking(busy), go("harnesses"), "slash u s e d enter")
    assert "✗ 1 broken" in screen and re.search(r"broken +✗ broken", screen) and "name = 3" in screen
    assert re.search(r"codex +✓ whole .*● used", used) and "aider" not in used


@pytest.mark.slow
def test_doctor_checks_this_machine_and_checks_again(busy: Path) -> None:
    first, again = drive(looking(busy), go("doctor"), "r")
    for screen in (first, again):
        assert re.search(r"python +✓ ok +3\.\d+", screen) and re.search(r"disk +[✓✗]", screen)


@pytest.mark.slow
def test_sandboxes_list_what_lives_or_say_why_not(busy: Path) -> None:
    (screen,) = drive(looking(busy), "9")
    assert re.search(r"\d+ sandboxes|✗ ", screen)


def test_the_palette_finds_every_view_and_act_by_its_name() -> None:
    entries = [Entry("view", place.name, place.text) for place in PLACES]
    entries += [Entry("act", act.name, act.text) for act in ACTS]
    assert [best_first(entries, entry.name)[0] for entry in entries] == entries


@pytest.mark.slow
def test_the_palette_finds_by_name_before_text_and_esc_leaves_it(busy: Path) -> None:
    entries = [Entry("act", "stop", "drain"), Entry("view", "tasks", "x"), Entry("view", "log", "of tasks")]
    assert [e.name for e in best_first(entries, "ta")] == ["tasks", "log"]
    assert [e.name for e in best_first(entries, "")] == ["stop", "tasks", "log"]
    assert best_first(entries, "zz") == []
    opened, left = drive(looking(busy), "colon", "escape")
    assert "Go to, or do" in opened and "→ rewards" in opened and "2 runs" in left


def test_tokens_are_coloured_by_likelihood_and_by_advantage() -> None:
    kinds = [kind_by_logprob(TokenText("x", p)) for p in (None, -0.1, -0.6, -2.0, -4.0, 0.3)]
    assert kinds == ["prompt", "likely", "fair", "unlikely", "rare", "likely"]
    told = [kind_by_advantage(TokenText("x", -1.0), a) for a in (0.5, -0.5, 0.0, None)]
    assert told == ["raised", "lowered", "unmoved", "unmoved"]


def test_words_are_found_across_tokens() -> None:
    tokens = tuple(TokenText(text) for text in ("Hel", "lo ", "wor", "ld, hello"))
    assert token_with(tokens, "hello") == 0 and token_with(tokens, "hello", 1) == 3
    assert token_with(tokens, "O W") == 1 and token_with(tokens, "none") is None and token_with(tokens, "h", 4) is None
    assert token_with((), "x") is None


def test_tokens_are_laid_out_in_cells_whatever_their_width() -> None:
    lines = lines_of([("ab", "a"), ("数え上げ", "b"), ("c\nd", "c")], 5)
    assert ["".join(text for text, _ in line) for line in lines] == ["ab数", "え上", "げc↵", "d"]
    assert bar(0.5, 10) == "█████" and bar(1.2, 3) == "███" and bar(0, 4) == "" and bar(1 / 16, 2) == "▏"
    assert (size(812), size(1536), size(5 << 30)) == ("812 B", "1.5 KiB", "5.0 GiB")


@pytest.mark.slow
def test_a_run_that_is_deleted_while_shown_gives_way_to_another(builder: Builder) -> None:
    for run in ("r1", "r2"):
        builder.run(run)
        builder.rollouts(run, Purpose.TRAIN, 1, f"task-of-{run}", 1)
    app = CorralApp(builder.home)

    from tests.support.tui_drive import press, session, shown

    screens: list[str] = []

    async def look(pilot) -> None:  # type: ignore[no-untyped-def]
        await press(pilot, "2")
        screens.append(shown(app))
        with builder.store.write() as db:
            db.execute("DELETE FROM rollouts WHERE run_id='r2'")
            db.execute("DELETE FROM runs WHERE id='r2'")
        await press(pilot, "")
        screens.append(shown(app))

    session(app, look)
    assert "task-of-r2" in screens[0] and "task-of-r1" in screens[1]


@pytest.fixture
def builder(tmp_path: Path) -> Iterator[Builder]:
    made = Builder(tmp_path)
    yield made
    made.close()


@pytest.mark.slow
def test_wide_and_right_to_left_text_stays_in_its_cell_in_every_view(builder: Builder) -> None:
    from rich.cells import cell_len

    word = "数え\u202eמשימה\x1b[31m مهمة"
    run = builder.run("r1", word)
    (rollout,) = builder.rollouts(run, Purpose.TRAIN, 1, word, 1, word)
    builder.begin(rollout)
    builder.call(rollout, 0, (SYSTEM, TASK), Message("assistant", word * 20))
    builder.store.note_tasks("pocket", [(word, word, word, word * 50)])
    steps = ["2", "enter", "6", go("traffic"), go("tasks"), go("settings"), go("checkpoints")]
    for screen in drive(CorralApp(builder.home), *steps):
        assert {cell_len(line) for line in screen.split("\n")} == {80}
        assert "\x1b" not in screen and "\u202e" not in screen
