"""The pack of a run: it goes on with the tasks that it was made with, or it says which of them are others now.

`stopped_run` was made by Corral at commit 220c852, before packs were generated and had digests: two steps of three
groups in pi are done, the third was stopped half-way.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.cli import main
from appliance.config.runconfig import CHECKOUT, RunConfig, from_record, resolve
from appliance.errors import PackError, StoreError
from appliance.record.store import Store
from appliance.report.replay import replay
from appliance.runs import lifecycle, schedule
from appliance.runs.run_pack import PackState, check_pack, pack_of_run
from appliance.tasks.generated import tasks_folder
from appliance.types import Purpose, Run

RECORD = Path(__file__).parents[1] / "records" / "stopped_run" / "record.sql"
POCKET = CHECKOUT / "data" / "pocket"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = (tmp_path / "home").resolve()
    folder.mkdir()
    (folder / "packs").symlink_to(tasks_folder(POCKET).parents[1])  # generated once, not for each test
    monkeypatch.setenv("CORRAL_HOME", str(folder))
    return folder


@pytest.fixture
def stopped(home: Path) -> Iterator[tuple[Store, Run, RunConfig]]:
    """The run of 220c852 in a checkout that was updated since, in today's schema."""
    with sqlite3.connect(home / "record.db") as db:
        db.executescript(RECORD.read_text().replace("CHECKOUT", str(CHECKOUT)).replace("HOME", str(home)))
    db.close()
    store = Store.open(home / "record.db")
    (run,) = store.runs()
    yield store, run, from_record(run.config)
    store.close()


def training(store: Store, run: Run, config: RunConfig, step: int) -> set[tuple[str, int]]:
    """(task, index) of the rollouts that a supervisor plans for a step."""
    tasks = {t.name: t.family for t in pack_of_run(store, run, config).split("train")}
    shares = schedule.Shares(config.harnesses, (), False, config.train.least_weight)
    pairs = schedule.step_pairs(config.seed, step, config.train.groups, shares, tasks, [])
    plans = schedule.training_step(run.id, step, pairs, config.train.group_size, config.seed)
    return {(plan.task, plan.index) for plan in plans}


def test_an_older_run_goes_on_with_the_same_tasks(stopped: tuple[Store, Run, RunConfig]) -> None:
    store, run, config = stopped
    assert config.pack_path == POCKET
    for step in (1, 2, 3):
        recorded = {(r.plan.task, r.plan.index) for r in store.rollouts(run.id, Purpose.TRAIN, step)}
        assert training(store, run, config, step) == recorded and len(recorded) == 12
    fourth = {task for task, _ in training(store, run, config, 4)}
    assert fourth == {"move-train-11", "find-value-train-09", "edit-key-train-07"}  # as commit 220c852 plans it


def test_an_older_run_replays_bit_for_bit_and_its_digest_is_recorded_when_it_goes_on(
    stopped: tuple[Store, Run, RunConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    store, run, config = stopped
    found = replay(store, run.id)
    assert (found.steps, found.rollouts, found.differences) == (2, 8, ())
    assert main(["replay", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pack"] == {"state": "same", "digest": "", "message": ""}
    before = store.noted_pack(run.id)
    assert before and before[:2] == ("pocket", "")
    pack = pack_of_run(store, run, config)
    noted = store.noted_pack(run.id)
    assert noted and noted[0] == "pocket" and noted[2] == pack.digests() and len(noted[2]) == 169
    assert len(pack.tasks) == 168 and len(noted[1]) == 64


def test_an_older_run_refuses_a_pack_of_other_words(stopped: tuple[Store, Run, RunConfig], tmp_path: Path) -> None:
    store, run, config = stopped
    copy = Path(shutil.copytree(tasks_folder(POCKET), tmp_path / "pocket"))
    (copy / "join-train-06" / "instruction.md").write_text("Join nothing.\n")
    shutil.rmtree(copy / "count-train-04")
    other = config.model_copy(update={"tasks": config.tasks.model_copy(update={"pack": str(copy)})})
    with pytest.raises(PackError, match=rf"run {run.id}: the pack pocket at .* is not the one") as error:
        pack_of_run(store, run, other)
    assert "count-train-04 is missing, join-train-06 is changed" in str(error.value)


def test_an_older_run_never_goes_on_with_the_samples_alone(
    stopped: tuple[Store, Run, RunConfig], tmp_path: Path
) -> None:
    store, run, config = stopped
    samples = Path(shutil.copytree(POCKET / "samples", tmp_path / "pocket"))
    families = tuple({t.name.rsplit("-", 2)[0] for t in samples.iterdir()} & set(config.tasks.families))
    tasks = config.tasks.model_copy(update={"pack": str(samples), "families": families})
    with pytest.raises(PackError, match="count-train-04 is missing"):
        pack_of_run(store, run, config.model_copy(update={"tasks": tasks}))


def test_what_other_runs_note_later_under_the_packs_name_changes_nothing_for_an_older_run(
    stopped: tuple[Store, Run, RunConfig], tmp_path: Path
) -> None:
    store, run, config = stopped
    copy = Path(shutil.copytree(tasks_folder(POCKET), tmp_path / "away"))
    (tmp_path / "pocket").symlink_to(copy)  # a link of another name than its folder
    (copy / "join-train-06" / "instruction.md").write_text("Join nothing.\n")
    store.note_tasks("pocket", [("join-train-06", "join", "train", "Join nothing.")])
    tasks = config.tasks.model_copy(update={"pack": str(tmp_path / "pocket")})
    with pytest.raises(PackError, match="join-train-06 is changed"):
        pack_of_run(store, run, config.model_copy(update={"tasks": tasks}))
    assert pack_of_run(store, run, config)


# ------------------------------------------------------------------ runs that are made today


@pytest.fixture
def own_pack(tmp_path: Path) -> Path:
    """A pack of six tasks that lies in a folder of its user."""
    pack = tmp_path / "own"
    for name in ("count-train-00", "count-train-01", "count-held-00", "join-train-00", "join-held-00", "sort-train-00"):
        shutil.copytree(tasks_folder(POCKET) / name, pack / name)
    return pack


@pytest.fixture
def made(home: Path, own_pack: Path) -> Iterator[tuple[Store, Run, RunConfig]]:
    """A run on the families count and join of that pack, as `corral train` makes it."""
    settings = {"tasks.pack": str(own_pack), "tasks.families": "count,join", "train.groups": "1", "harnesses": "pi"}
    run_id = lifecycle.create(home, resolve(None, settings))
    store = Store.open(home / "record.db")
    run = store.run(run_id)
    yield store, run, from_record(run.config)
    store.close()


def test_a_run_on_a_shipped_pack_is_recorded_by_its_name_and_its_digests(home: Path) -> None:
    run_id = lifecycle.create(home, resolve(None, {"tasks.families": "count", "train.groups": "1"}))
    store = Store.open(home / "record.db", readonly=True)
    assert store.run(run_id).config["tasks"]["pack"] == "pocket"  # type: ignore[index]
    noted = store.noted_pack(run_id)
    assert noted and noted[2].keys() >= {"words.txt", "count-train-00"} and len(noted[2]) == 27
    store.close()


def test_a_run_through_a_link_to_a_shipped_pack_records_the_packs_own_name(home: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").symlink_to(POCKET)
    for path in (tmp_path / "mine", POCKET / "samples" / ".."):
        run_id = lifecycle.create(home, resolve(None, {"tasks.pack": str(path), "train.groups": "1"}))
        store = Store.open(home / "record.db", readonly=True)
        assert store.run(run_id).config["tasks"]["pack"] == "pocket"  # type: ignore[index]
        store.close()


def test_a_pack_that_cannot_be_read_whole_leaves_no_run(
    home: Path, own_pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(folder: Path) -> str:
        raise PackError(f"{folder}: cannot be read: Permission denied", "check its permissions")

    monkeypatch.setattr("appliance.tasks.pack.task_digest", refused)  # root reads everything
    with pytest.raises(PackError, match="cannot be read"):
        lifecycle.create(home, resolve(None, {"tasks.pack": str(own_pack), "train.groups": "1"}))
    assert not (home / "record.db").exists()


def test_other_words_make_another_pack(made: tuple[Store, Run, RunConfig], own_pack: Path) -> None:
    store, run, config = made
    (own_pack / "words.txt").write_text("one two\n")
    with pytest.raises(PackError, match=r"words\.txt is new"):
        pack_of_run(store, run, config)


def test_a_pack_that_cannot_be_compared_is_no_other_pack(
    stopped: tuple[Store, Run, RunConfig], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "packs").unlink()
    (home / "packs").write_text("in the way")
    assert main(["replay", "--json"]) == 0
    pack = json.loads(capsys.readouterr().out)["pack"]
    assert pack["state"] == "unknown" and "cannot be compared" in pack["message"]


def test_damaged_digests_are_one_message(made: tuple[Store, Run, RunConfig]) -> None:
    store, run, config = made
    with store.write() as db:
        db.execute("UPDATE run_packs SET tasks='['")
    with pytest.raises(StoreError, match=f"the digests of run {run.id} are damaged"):
        pack_of_run(store, run, config)


def test_a_changed_grader_is_named_and_the_run_goes_on_once_it_is_back(
    made: tuple[Store, Run, RunConfig], own_pack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, run, config = made
    grader = own_pack / "count-train-01" / "tests" / "check.py"
    before = grader.read_text()
    grader.write_text("print('1')\n")
    with pytest.raises(PackError, match="count-train-01 is changed") as error:
        pack_of_run(store, run, config)
    assert f"corral resume {run.id}" in error.value.remedy
    assert main(["resume", run.id, "--plain"]) == 1
    said = capsys.readouterr()
    assert (
        f"run {run.id}: the pack own at {own_pack}" in said.out + said.err and "count-train-01 is changed" in said.out
    )
    grader.write_text(before)
    assert {t.name for t in pack_of_run(store, run, config).tasks} == {
        "count-train-00", "count-train-01", "count-held-00", "join-train-00", "join-held-00",
    }  # fmt: skip


def test_a_task_of_a_family_that_the_run_does_not_use_may_change(
    made: tuple[Store, Run, RunConfig], own_pack: Path
) -> None:
    store, run, config = made
    shutil.rmtree(own_pack / "sort-train-00")
    assert len(pack_of_run(store, run, config).tasks) == 5
    shutil.copytree(own_pack / "join-train-00", own_pack / "join-train-01")
    task = own_pack / "join-train-01" / "task.toml"
    task.write_text(task.read_text().replace("join-train-00", "join-train-01"))
    with pytest.raises(PackError, match="join-train-01 is new"):
        pack_of_run(store, run, config)


def test_a_pack_that_is_gone_is_named_and_nothing_of_the_run_is_lost(
    made: tuple[Store, Run, RunConfig], own_pack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, run, config = made
    away = own_pack.rename(own_pack.with_name("away"))
    with pytest.raises(PackError, match=f"run {run.id}: its pack {own_pack} is gone"):
        pack_of_run(store, run, config)
    assert check_pack(store, run, config).state is PackState.GONE
    assert main(["resume", run.id, "--plain"]) == 1
    assert f"its pack {own_pack} is gone" in capsys.readouterr().out
    away.rename(own_pack)
    assert check_pack(store, run, config).state is PackState.SAME and pack_of_run(store, run, config)


def test_replay_says_that_the_pack_is_another_one_now_and_fails(
    stopped: tuple[Store, Run, RunConfig], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, run, config = stopped
    copy = Path(shutil.copytree(tasks_folder(POCKET), tmp_path / "pocket"))
    stored = json.dumps(config.model_dump(mode="json") | {"tasks": {**config.tasks.model_dump(), "pack": str(copy)}})
    with store.write() as db:
        db.execute("UPDATE runs SET config=?", (stored,))
    pack_of_run(store, store.run(run.id), from_record(json.loads(stored)))
    (copy / "rename-train-01" / "tests" / "expected.json").write_text("{}\n")
    assert main(["replay"]) == 1
    said = capsys.readouterr().out
    assert "2 steps, 8 rollouts trained on: identical, bit for bit" in said and "rename-train-01 is changed" in said
    shutil.rmtree(copy)
    assert main(["replay"]) == 0
    assert f"its pack {copy} is gone" in capsys.readouterr().out


def test_forgetting_a_run_forgets_its_digests(stopped: tuple[Store, Run, RunConfig]) -> None:
    store, run, config = stopped
    pack_of_run(store, run, config)
    assert main(["db", "prune", run.id, "--all"]) == 0
    assert store.rows("SELECT * FROM run_packs") == []
