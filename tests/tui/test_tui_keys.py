"""Every key that does something beyond moving, pressed on real records; slow, since each test opens the whole UI."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import anyio
import pytest
from textual.pilot import Pilot

from appliance.config.runconfig import CHECKOUT, RunConfig
from appliance.runs.evaluate import held_out
from appliance.runs.schedule import evaluation
from appliance.tasks.pack import load_pack
from appliance.train.checkpoints import seal
from appliance.types import Purpose, Reward, RunState
from tests.support.tui_drive import drive, looking, press, session, shown, until
from tests.support.tui_record import Builder, a_busy_record
from tui.app import CorralApp
from tui.navigation import PLACES

pytestmark = pytest.mark.slow
PATIENCE_S = 120


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("busy")
    builder = a_busy_record(home)
    builder.store.note_engine("demo-1a2b", 0, {"running": 3, "waiting": 2, "cache_share": 0.25})
    yield home
    builder.close()


@pytest.fixture
def builder(tmp_path: Path) -> Iterator[Builder]:
    made = Builder(tmp_path)
    yield made
    made.close()


def typed(text: str) -> str:
    """The keys that type a text."""
    names = {" ": "space", ".": "full_stop", "/": "slash", "-": "minus", ":": "colon", "_": "underscore"}
    return " ".join(names.get(char, char) for char in text)


def do(name: str) -> str:
    return f"colon {typed(name)} enter"


async def done(pilot: Pilot[None]) -> None:
    """Waits until every act has come to its end."""
    await pilot.app.workers.wait_for_complete([w for w in pilot.app.workers if w.group == "acts"])


# ---------------------------------------------------------------------- looking


def test_the_curve_goes_through_metrics_smooths_takes_logarithms_and_moves_by_points(busy: Path) -> None:
    metric, smooth, log, point, back = drive(looking(busy), "3 m", "e", "v m", "left left enter", "3 M M")
    assert "logprob_gap" in metric and "1 of 3 metrics" in metric and "●" in metric
    assert "logprob_gap   smoothed 0.5" in smooth and "log scale" not in smooth
    assert "loss   smoothed 0.5   log scale" in log and "0.02 ┤" in log
    assert "24 rollouts   only step 3" in point
    assert "Mean reward by step" in back


def test_a_rollouts_group_and_output_are_a_key_away(busy: Path) -> None:
    failed, group, everything, output, closed = drive(
        looking(busy), "2 slash f a i l e d enter", "escape u", "escape", "slash o u t _ o enter o", "escape"
    )
    assert "✗ failed" in failed
    assert "4 rollouts   only the group find-train-05 × pi, step 5" in group and "5 live" in everything
    assert "Output of rollout" in output and "used more than 1024 MiB" in output
    assert "Output of rollout" not in closed


def test_a_flat_group_is_said_to_move_nothing(builder: Builder) -> None:
    builder.run("r1")
    for rollout in builder.rollouts("r1", Purpose.TRAIN, 1, "count-1", 3):
        builder.grade(rollout, 1.0)
    (screen,) = drive(CorralApp(builder.home), "2 u", size=(120, 30))
    assert "mean 1.00 ± 0.00   ▲ all equal: moves nothing" in screen


def test_a_node_of_the_tree_leads_to_its_call(busy: Path) -> None:
    tree, call = drive(looking(busy), "2 enter 6 G", "enter")
    assert "● call 1" in tree
    assert "5 Calls" in call and "call 1   chat" in call and "There are 7 such lines" in call


def test_the_tree_tells_a_token_in_numbers_finds_words_in_tokens_and_hands_out_its_text(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = builder.run("r1")
    first, second = builder.rollouts(run, Purpose.TRAIN, 1, "count-1", 2)
    for rollout, value in ((first, 1.0), (second, 0.0)):
        builder.begin(rollout)
        builder.conversation(rollout)
        builder.store.grade(rollout, Reward(value, {}), "", {})
    monkeypatch.setenv("VISUAL", "my-editor")
    opened: list[str] = []

    def in_terminal(argv: Sequence[str], environment: dict[str, str]) -> int:
        opened.append(Path(argv[-1]).read_text())
        return 0

    app = CorralApp(builder.home, in_terminal=in_terminal)
    steps = ("2 G u", "enter 6", "j", "right right left", "slash 1 0 0 5", "escape", "g slash 1 0 1 2 enter", "Y", "o")
    group, prompt, said, moved, found, _, other, copied, _ = drive(app, *steps, size=(120, 40))
    assert "adv +0.71" in group and "adv -0.71" in group and re.search(r"advantage [+-]0\.707", group)
    assert re.search(r"token 1/40 '0'   mask 0   advantage –", prompt)
    numbers = r"   logprob -0\.300   mask 1   advantage [+-]0\.707"
    assert re.search(r"token 1/12 '1000'" + numbers, said) and re.search(r"token 2/12 '1001'" + numbers, moved)
    assert re.search(r"token 6/12 '1005'" + numbers, found)
    assert re.search(r"token 13/13 '1012'" + numbers, other)  # only the second call said so much
    assert "copied the text of the node" in copied and "1011 1012" in app.clipboard
    assert opened == [app.clipboard] or opened[0].strip() == app.clipboard.strip()


def test_calls_are_expanded_collapsed_searched_copied_and_opened_in_the_editor(
    busy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDITOR", "my-editor")
    monkeypatch.delenv("VISUAL", raising=False)
    opened: list[tuple[Sequence[str], str, int]] = []

    def in_terminal(argv: Sequence[str], environment: dict[str, str]) -> int:
        opened.append((argv, Path(argv[-1]).read_text(), os.stat(argv[-1]).st_mode & 0o077))
        return 0

    app = CorralApp(busy, readonly=True, in_terminal=in_terminal)  # looking is always allowed
    whole, short, found, copied, raw = drive(app, "2 enter n e", "x", "slash s u c h enter", "Y", "r o")
    assert "Count the lines" in whole and "3 earlier messages" in short and "Count the lines" not in short
    assert "such lines" in found and "copied the text of the call" in copied
    assert "There are 7 such lines; I wrote 7." in app.clipboard
    assert "── response" in raw and '{"model": "corral", "messages"' in opened[0][1]
    assert opened[0][0][0] == "my-editor" and not Path(opened[0][0][-1]).exists()


def test_the_log_goes_to_a_time_and_follows_again(busy: Path) -> None:
    asked, there, follows, wrong = drive(looking(busy), "4 t", "1 h enter", "f", "t s o o n enter")
    assert "Go to a time" in asked and re.search(r"6 events   ■ from \d\d \w{3} \d\d:\d\d:\d\d", there)
    assert "● following" in follows and "soon: not a time" in wrong


def test_the_hardware_shows_cache_and_queue_of_the_engine(busy: Path) -> None:
    with_engine, without = drive(looking(busy), "8", "1 j 8", size=(120, 40))
    assert re.search(r"engine +█+.* 25 % +of cache   3 under way, 2 waiting   prefixes found –", with_engine)
    assert "engine  has told nothing yet" in without


@pytest.mark.parametrize("size", [(80, 24), (200, 60)])
def test_every_view_shows_its_title_and_its_own_keys_in_both_sizes(busy: Path, size: tuple[int, int]) -> None:
    names = [place.name for place in PLACES if place.name not in ("doctor", "sandboxes")]
    for name, screen in zip(names, drive(looking(busy), *map(do, names), size=size), strict=True):
        lines = screen.split("\n")
        assert [len(line) for line in lines] == [size[0]] * size[1]
        assert name.title() in lines[0] and ": Go" in lines[-1]


# ---------------------------------------------------------------------- acts


def test_a_run_starts_from_the_form_as_from_its_toml(builder: Builder) -> None:
    builder.run("r1", state=RunState.STOPPED)
    app, screens = CorralApp(builder.home), []
    groups = "down " * 8

    async def look(pilot: Pilot[None]) -> None:
        await press(pilot, "n")
        screens.append(shown(app))
        await press(pilot, f"down ctrl+u {typed('from-a-form')} {groups[5:]} ctrl+u n o n e")
        screens.append(shown(app))
        await press(pilot, "ctrl+s")
        screens.append(shown(app))
        await press(pilot, "ctrl+u 9 9 9 ctrl+s")  # more groups than there are: its supervisor says so and ends
        screens.append(await until(pilot, "its TOML is"))

    session(app, look)
    assert "A new run" in screens[0] and "# every key has its default" in screens[0] and "this will do" in screens[0]
    assert "valid integer" in screens[1] and "A new run" in screens[2]
    (toml,) = (builder.home / "forms").glob("from-a-form-*.toml")
    assert tomllib.loads(toml.read_text()) == {"name": "from-a-form", "train": {"groups": 999}}
    (run,) = [run for run in builder.store.runs() if run.name == "from-a-form"]
    assert "train.groups is 999" in builder.ended(run.id)


def test_a_run_starts_from_a_toml_with_settings(builder: Builder) -> None:
    builder.run("r1", state=RunState.STOPPED)
    toml = builder.home / "my run.toml"
    toml.write_text('name = "from-a-toml"\n')
    app = CorralApp(builder.home)

    async def look(pilot: Pilot[None]) -> None:
        await press(pilot, do("start"))
        await press(
            pilot, f"ctrl+u apostrophe {typed(str(toml))} apostrophe space {typed('train.groups')} equals_sign 9 9 9"
        )
        await press(pilot, "enter")
        await done(pilot)

    session(app, look)
    (run,) = [run for run in builder.store.runs() if run.name == "from-a-toml"]
    assert "train.groups is 999" in builder.ended(run.id)


def test_r_goes_on_with_a_stopped_run(builder: Builder) -> None:
    builder.hopeless_run("r1", RunState.STOPPED)
    app = CorralApp(builder.home)

    async def look(pilot: Pilot[None]) -> None:
        await press(pilot, "r")
        await until(pilot, "going on with r1")

    session(app, look)
    assert "no-such-pack" in builder.ended("r1")


def test_evaluating_says_where_to_look_and_its_command_says_what_is_missing(builder: Builder) -> None:
    builder.hopeless_run("r1", RunState.STOPPED)
    app, log = CorralApp(builder.home), builder.home / "runs" / "r1" / "evaluate.log"

    async def look(pilot: Pilot[None]) -> None:
        await press(pilot, do("evaluate"))
        await until(pilot, "evaluating the newest version")

    session(app, look)
    deadline = time.monotonic() + PATIENCE_S
    while not log.read_text() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert "no-such-pack" in log.read_text()


def test_an_evaluation_that_is_on_the_record_is_told_at_once(builder: Builder) -> None:
    config = RunConfig.model_validate({"harnesses": ["pi"], "evaluation": {"max_tasks": 2}})
    builder.store.create_run("r1", "measured", config.model_dump(mode="json"), 0, "test")
    builder.store.move_run("r1", RunState.RUNNING)
    builder.store.move_run("r1", RunState.STOPPED)
    folder = builder.home / "adapters" / "1"
    folder.mkdir(parents=True)
    builder.store.add_version("r1", 1, folder, seal(folder))
    tasks = sorted(held_out(load_pack(config.pack_path), config))
    for rollout in builder.store.plan(evaluation("r1", Purpose.EVAL, 1, ["pi"], tasks, 1)):
        builder.store.begin(rollout.id, 1)
        builder.store.grade(rollout.id, Reward(1.0), "", {})
    app, log = CorralApp(builder.home), builder.home / "runs" / "r1" / "evaluate.log"

    async def look(pilot: Pilot[None]) -> None:
        await press(pilot, do("evaluate"))
        await until(pilot, "evaluating the newest version")

    session(app, look)
    deadline = time.monotonic() + PATIENCE_S
    while "100.0" not in log.read_text() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert "| pocket | pi | r1@1 | 100.0 [34, 100] |" in log.read_text()


def test_checkpoint_and_export_write_beside_the_run(builder: Builder) -> None:
    builder.run("r1", state=RunState.STOPPED)
    (rollout,) = builder.rollouts("r1", Purpose.TRAIN, 1, "count-1", 1)
    builder.begin(rollout)
    builder.conversation(rollout)
    builder.store.grade(rollout, Reward(1.0, {}), "", {})
    app = CorralApp(builder.home)

    async def look(pilot: Pilot[None]) -> None:
        await press(pilot, do("checkpoint"))
        await until(pilot, "checkpoint failed")
        await press(pilot, do("export"))
        await done(pilot)

    session(app, look)
    (written,) = (builder.home / "runs" / "r1" / "exports").glob("*messages.jsonl")
    assert "Count the lines" in written.read_text()


def test_a_checkpoint_is_a_whole_copy_of_the_newest_version(builder: Builder) -> None:
    builder.run("r1", state=RunState.STOPPED)
    for version in (0, 1):
        folder = builder.home / "adapters" / str(version)
        folder.mkdir(parents=True)
        (folder / "adapter_model.safetensors").write_bytes(b"weights of %d" % version)
        (folder / "adapter_config.json").write_text("{}")
        builder.store.add_version("r1", version, folder, seal(folder))
    app = CorralApp(builder.home)

    async def look(pilot: Pilot[None]) -> None:
        await press(pilot, do("checkpoint"))
        await done(pilot)
        assert "checkpoint failed" not in shown(app)

    session(app, look)
    (copy,) = (builder.home / "runs" / "r1" / "exports").glob("*adapter")
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == {
        "adapter_model.safetensors": b"weights of 1", "adapter_config.json": b"{}",
    }  # fmt: skip


def test_pruning_asks_first_and_then_takes_out_bodies_and_the_run(builder: Builder) -> None:
    builder.run("r1", state=RunState.STOPPED)
    builder.run("r2", state=RunState.STOPPED)
    (rollout,) = builder.rollouts("r2", Purpose.TRAIN, 1, "count-1", 1)
    builder.begin(rollout)
    builder.conversation(rollout)
    app, screens = CorralApp(builder.home), []

    async def look(pilot: Pilot[None]) -> None:
        await press(pilot, do("prune bodies"))
        screens.append(shown(app))
        await press(pilot, "y")
        await done(pilot)
        assert builder.store.rows("SELECT count(*) n FROM bodies")[0]["n"] == 0
        await press(pilot, do("prune run"))
        screens.append(shown(app))
        await press(pilot, "n")
        assert len(builder.store.runs()) == 2
        await press(pilot, do("prune run"))
        await press(pilot, "y")
        await done(pilot)

    session(app, look)
    assert "Take out raw bodies?" in screens[0] and "Take out the whole run?" in screens[1]
    assert [run.id for run in builder.store.runs()] == ["r1"]


def test_x_and_r_in_rollouts_and_s_anywhere_leave_commands_after_their_questions(builder: Builder) -> None:
    builder.run("r1")
    builder.attend("r1")
    (rollout,) = builder.rollouts("r1", Purpose.TRAIN, 1, "count-1", 1)
    builder.begin(rollout)
    drive(CorralApp(builder.home), "2 x y", "r", do("pause"), do("unpause"), "s y", f"{do('stop now')} y")
    number = str(rollout)
    assert builder.store.take_commands("r1") == [
        ("kill", number), ("retry", number), ("pause", ""), ("unpause", ""), ("stop", ""), ("stop", "now"),
    ]  # fmt: skip


@pytest.mark.real
def test_a_sandbox_is_listed_read_entered_and_ended_by_keys(busy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from appliance.config.runconfig import home, podman_home
    from appliance.sandbox.images.build import base_ref, build_images
    from appliance.sandbox.podman import Podman, SandboxSpec

    monkeypatch.setenv("CORRAL_PODMAN_HOME", str(podman_home(home())))
    build_images(podman_home(home()), [], print)
    name, entered, screens = f"corral-keys-{os.getpid()}", [], []

    def in_terminal(argv: Sequence[str], environment: dict[str, str]) -> int:
        entered.append(list(argv))
        return 0

    app = CorralApp(busy, in_terminal=in_terminal)

    async def look(pilot: Pilot[None]) -> None:
        await press(pilot, f"9 slash {typed(name)} enter")
        screens.append(await until(pilot, "✓ owned"))
        await press(pilot, "enter l")
        screens.append(await until(pilot, "it has begun"))
        await press(pilot, f"escape {do('remove orphans')} n x")
        screens.append(shown(app))
        await press(pilot, "y")
        await done(pilot)

    async def whole() -> None:
        async with Podman(podman_home(home())) as podman:
            try:
                await podman.start(SandboxSpec(name, base_ref(), ("sh", "-c", "echo it has begun; exec sleep 600")))
                await anyio.to_thread.run_sync(session, app, look)
            finally:
                await podman.remove(name)

    anyio.run(whole)
    assert "✓ owned" in screens[0] and f"Log of {name}" in screens[1]
    assert entered == [["podman", "exec", "--interactive", "--tty", name, "/bin/sh"]]
    assert "End this sandbox?" in screens[2]


ORPHAN = """
import os, sys, anyio
from pathlib import Path
from appliance.sandbox.images.build import base_ref
from appliance.sandbox.podman import Podman, SandboxSpec

async def main() -> None:
    async with Podman(Path(sys.argv[1])) as podman:
        await podman.start(SandboxSpec(sys.argv[2], base_ref(), ("sleep", "600")))
        os._exit(0)  # as one that is killed: it puts nothing away

anyio.run(main)
"""


@pytest.mark.real
def test_orphans_are_removed_by_their_act_after_a_yes(busy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from appliance.config.runconfig import home, podman_home
    from appliance.sandbox.admin import sandboxes
    from appliance.sandbox.images.build import build_images

    place, name = podman_home(home()), f"corral-orphan-{os.getpid()}"
    monkeypatch.setenv("CORRAL_PODMAN_HOME", str(place))
    build_images(place, [], print)
    subprocess.run([sys.executable, "-c", ORPHAN, str(place), name], cwd=CHECKOUT, check=True, timeout=PATIENCE_S)
    app, screens = CorralApp(busy), []

    async def look(pilot: Pilot[None]) -> None:
        await press(pilot, f"9 slash {typed(name)} enter")
        screens.append(await until(pilot, name[:12]))
        await press(pilot, do("remove orphans"))
        screens.append(shown(app))
        await press(pilot, "y")
        await done(pilot)

    assert [row["owner"] for row in sandboxes(place) if row["name"] == name] == ["gone"]
    session(app, look)
    assert "Remove orphans?" in screens[1]
    assert name not in [row["name"] for row in sandboxes(place)]
