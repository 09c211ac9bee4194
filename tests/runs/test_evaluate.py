"""Evaluations read from a record, and a whole small one on real parts."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from appliance.config.runconfig import RunConfig, from_record, resolve
from appliance.errors import ApplianceError, PackError
from appliance.record.store import Store
from appliance.report.charts import heat_svg, interval_bars_svg
from appliance.runs.evaluate import (
    Asked,
    Policy,
    TransferPlan,
    _comparisons,
    _is_same,
    _laid_over,
    _row,
    evaluation_markdown,
    held_out,
    transfer,
    transfer_markdown,
)
from appliance.runs.schedule import evaluation, some
from appliance.runs.supervisor import Supervisor
from appliance.tasks.pack import load_pack
from appliance.types import Purpose, Reward, Rollout, RolloutPlan, RolloutState, RunState
from tests.support.told_record import told_record


def a_rollout(task: str, index: int, reward: float | None, failure: str = "") -> Rollout:
    state = RolloutState.FAILED if failure else RolloutState.GRADED
    plan = RolloutPlan("r", Purpose.EVAL, 3, "pi", task, index)
    return Rollout(1, plan, state, 1, 3, reward, {}, failure, "", 0.0, 10.0, 12.5)


def test_a_row_counts_attempts_tasks_failures_and_cost() -> None:
    rollouts = [
        a_rollout("a", 0, 1.0),
        a_rollout("a", 1, 0.5),
        a_rollout("b", 0, 1.0),
        a_rollout("b", 1, None, "sandbox:lost"),
    ]
    row = _row("pocket", "pi", "r@3", rollouts, 2)
    assert (row["n"], row["tasks"], row["pass_at_1"]) == (3, 2, 0.75)
    assert row["pass_at_k"] == {2: 1.0} and row["pass_hat_k"] == {2: 0.0}
    assert row["failures"] == {"sandbox:lost": 1} and row["seconds"] == 10.0
    assert row["mean_reward"] == pytest.approx(0.875)
    assert {"pack", "harness", "policy", "n", "pass_at_1", "interval", "mean_reward", "failures"} <= set(row)


def test_policies_are_compared_with_the_first_on_common_tasks() -> None:
    kept = {("p", "pi", 0): {"a": [0.0], "b": [0.0], "c": [1.0]}, ("p", "pi", 1): {"a": [1.0], "b": [0.0], "d": [1.0]}}
    (found,) = _comparisons(kept, ["r@0", "r@3"])
    assert (found["policy"], found["against"], found["tasks"], found["gain"]) == ("r@3", "r@0", 2, 0.5)
    text = evaluation_markdown({"rows": [_row("p", "pi", "r@3", [], 1)], "comparisons": [found]})
    assert "| p | pi | r@3 | – | – | – | – | 0 | 0 | 0 | 0 |" in text and "+50.0" in text
    several = _row("p", "pi", "r@3", [], 1) | {"pass_at_k": {2: 0.5, 3: 0.75}, "pass_hat_k": {2: 0.25}}
    assert "| @3: 75.0 | ^2: 25.0 |" in evaluation_markdown({"rows": [several], "comparisons": []})


def test_a_policy_is_a_run_and_a_version() -> None:
    assert Policy.parse("demo-1") == Policy("demo-1", None) and Policy.parse("demo-1@4") == Policy("demo-1", 4)
    with pytest.raises(ApplianceError, match="is no policy version"):
        Policy.parse("demo-1@last")


def test_the_transfer_table_has_a_row_a_training_and_a_column_a_harness() -> None:
    plan = TransferPlan(Path("x.toml"), {}, (("pi",), ("codex",), ("pi", "codex")), (0, 1))
    assert plan.harnesses == ("pi", "codex")
    cell = {"pass_at_1": 0.5, "interval": (0.4, 0.6), "n": 10, "runs": []}
    text = transfer_markdown({"untrained": {"pi": cell, "codex": cell}, "pi+codex": {"pi": cell, "codex": cell}})
    assert text.splitlines()[0] == "| trained in | tested in pi | tested in codex |"
    assert "| pi+codex | 50.0 [40, 60] | 50.0 [40, 60] |" in text


def test_pictures_show_every_value_and_escape_names() -> None:
    bars = interval_bars_svg([("<r>", 0.25, (0.1, 0.4)), ("none", None, None)], "a & b")
    assert "&lt;r&gt;" in bars and "25.0 %" in bars and "no grade" in bars and "a &amp; b" in bars
    heat = heat_svg(["pi"], ["pi", "<c>"], {("pi", "pi"): 0.75, ("pi", "<c>"): None}, "t")
    assert "75.0" in heat and "–" in heat and "&lt;c&gt;" in heat


def test_an_unknown_run_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from appliance.cli import main

    monkeypatch.setenv("CORRAL_HOME", str(tmp_path))
    assert main(["eval", "nothing", "--json"]) == 1
    assert set(json.loads(capsys.readouterr().out)) == {"error", "remedy"}


def test_max_tasks_draws_the_same_tasks_that_the_run_would_measure(tmp_path: Path) -> None:
    pack = load_pack(RunConfig().pack_path)
    config = RunConfig.model_validate({"seed": 3, "evaluation": {"max_tasks": 5}})
    drawn = held_out(pack, config)
    assert len(drawn) == 5 and drawn == set(some([t.name for t in pack.split("held-out")], 5, 3))
    assert held_out(pack, RunConfig()) == {t.name for t in pack.split("held-out")}


def test_the_families_of_a_run_hold_in_its_own_pack_alone() -> None:
    run = RunConfig.model_validate({"tasks": {"families": ["count", "extract"]}})
    pack, config = _laid_over(run, Asked(), "pocket")
    assert {t.family for t in pack.tasks} == {"count", "extract"} and len(held_out(pack, config)) == 12
    pack, _ = _laid_over(run, Asked(families=("sort",)), "pocket")
    assert {t.family for t in pack.tasks} == {"sort"}
    other, config = _laid_over(run, Asked(), "claw")
    assert config.tasks.families == () and len({t.family for t in other.tasks}) == 12
    with pytest.raises(PackError, match="no family 'srot'"):
        _laid_over(run, Asked(families=("srot",)), "pocket")


def test_a_training_on_other_families_is_another_training() -> None:
    cut = RunConfig.model_validate({"tasks": {"families": ["count"]}})
    assert _is_same(from_record(cut.model_dump(mode="json")), cut)
    assert not _is_same(from_record(RunConfig().model_dump(mode="json")), cut)
    older = RunConfig().model_dump(mode="json")
    del older["tasks"]["families"]
    assert _is_same(from_record(older), cut), "a record from before the key says nothing against it"


def test_solve_rates_are_printed_by_task_harness_and_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from appliance.cli import main

    monkeypatch.setenv("CORRAL_HOME", str(tmp_path))
    told_record(tmp_path).close()
    assert main(["tasks", "rates", "r1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    steps = [{"step": 1, "solved": 1, "graded": 2}]
    assert found["pairs"] == [{"task": "count-1", "harness": "pi", "rate": 0.5, "weight": 1.0, "steps": steps}]
    assert main(["tasks", "rates", "r1"]) == 0
    assert "1: 1/2" in capsys.readouterr().out
    assert main(["eval", "r1", "--max-tasks", "-1"]) == 1
    assert "--max-tasks is -1" in capsys.readouterr().err


def test_seeds_that_are_no_numbers_are_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    from appliance.cli import main

    for text in ("a", "", "1,,2", "-1"):
        assert main(["transfer", "data/demo.toml", f"--seeds={text}"]) == 1
        assert "write whole numbers with commas" in capsys.readouterr().err


def test_an_evaluation_that_is_on_the_record_starts_neither_engine_nor_podman(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORRAL_PODMAN_HOME", str(tmp_path / "podman"))
    config = RunConfig.model_validate({"harnesses": ["pi"], "evaluation": {"max_tasks": 2}})
    pack = load_pack(config.pack_path)
    with closing(told_record(tmp_path)) as store:
        for rollout in store.plan(evaluation("r1", Purpose.EVAL, 0, ["pi"], sorted(held_out(pack, config)), 1)):
            store.begin(rollout.id, 0)
            store.grade(rollout.id, Reward(1.0), "", {})
        supervisor = Supervisor(tmp_path, store, store.run("r1"))
        supervisor.config = config
        anyio.run(supervisor.evaluate_only, 0, pack)
        assert len(store.rollouts("r1", Purpose.EVAL)) == 2
    assert not (tmp_path / "podman").exists()


def test_the_transfer_matrix_pools_seeds_and_reads_what_is_on_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four trainings (two mixes, two seeds) that have ended and were tested: nothing is trained or made again."""
    monkeypatch.setenv("CORRAL_PODMAN_HOME", str(tmp_path / "podman"))
    toml = tmp_path / "own.toml"
    toml.write_text('harnesses = ["pi", "codex"]\nevaluation.max_tasks = 2\n')
    mixes, seeds = (("pi",), ("pi", "codex")), (0, 1)
    solved = {("pi", 0): 1, ("pi", 1): 2, ("pi+codex", 0): 2, ("pi+codex", 1): 2}  # of two tasks, in both harnesses
    with closing(Store.open(tmp_path / "record.db")) as store:
        for mix in mixes:
            for seed in seeds:
                name = "+".join(mix)
                changes = {"name": f"transfer-{name}-s{seed}", "seed": str(seed), "harnesses": ",".join(mix)}
                config = resolve(toml, changes | {"evaluation.enabled": "false"})
                run = f"{name}-{seed}"
                store.create_run(run, config.name, config.model_dump(mode="json"), seed, "test")
                store.move_run(run, RunState.RUNNING)
                store.move_run(run, RunState.DONE)
                for version, right in ((0, 0), (3, solved[name, seed])):
                    store.add_version(run, version, tmp_path, "0")
                    tasks = sorted(held_out(load_pack(config.pack_path), config))
                    plans = evaluation(run, Purpose.EVAL, version, ["pi", "codex"], tasks, 1)
                    for rollout in store.plan(plans):
                        store.begin(rollout.id, version)
                        reward = Reward(float(tasks.index(rollout.plan.task) < right))
                        store.grade(rollout.id, reward, "", {})
    said: list[object] = []
    found = transfer(tmp_path, TransferPlan(toml, {}, mixes, seeds), said.append)
    told = {
        row: {h: (cell["pass_at_1"], cell["n"], cell["runs"]) for h, cell in cells.items()}
        for row, cells in found.items()
    }
    one, mix = ["pi-0", "pi-1"], ["pi+codex-0", "pi+codex-1"]
    assert told == {
        "pi": {"pi": (0.75, 4, one), "codex": (0.75, 4, one)},
        "untrained": {"pi": (0.0, 4, []), "codex": (0.0, 4, [])},
        "pi+codex": {"pi": (1.0, 4, mix), "codex": (1.0, 4, mix)},
    }
    assert "4 of 4 trainings" in str(said[-1]) and not (tmp_path / "podman").exists()
