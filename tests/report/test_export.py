"""Rollouts leave the record in formats that others read; conversations come in as lessons."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from atif import Trajectory
from pyarrow import parquet

from appliance.cli import main
from appliance.config.runconfig import RunConfig
from appliance.errors import ExportError
from appliance.record.access import reading
from appliance.record.store import Store
from appliance.report.export.export_run import export
from appliance.report.export.import_run import bring_in, read
from appliance.runs.lifecycle import create
from appliance.types import Message, Purpose, RunState
from tests.support.told_record import ASKS, DONE, RESULT, SYSTEM, TASK, told_record


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return told_record(tmp_path)


def jsonl(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_atif_holds_each_answer_with_its_ids_and_each_result_with_its_call(store: Store, tmp_path: Path) -> None:
    assert export(store, "r1", "atif", tmp_path / "out")["documents"] == 3
    document = Trajectory.model_validate_json((tmp_path / "out" / "rollout-1.json").read_text())
    assert document.schema_version == "ATIF-v1.8" and document.extra["reward"] == 1.0
    system, user, asks, last = document.steps
    assert (system.source, user.message) == ("system", TASK.content)
    assert asks.reasoning_content == "Let me look." and asks.tool_calls[0].arguments == {"command": "grep -c error *"}
    assert asks.observation.results[0].content == RESULT.content
    assert asks.metrics.prompt_token_ids == [10, 11, 12] and asks.metrics.completion_token_ids == [20, 21]
    assert asks.metrics.logprobs == pytest.approx([-0.1, -4.0])
    told = {last.message} | {sub.steps[-1].message for sub in document.subagent_trajectories}
    assert told == {"There are 7.", "Seven."}
    taught = Trajectory.model_validate_json((tmp_path / "out" / "rollout-3.json").read_text())
    assert taught.steps[-1].message == "There are 7." and taught.steps[-1].metrics is None


def test_a_harbor_job_has_a_trial_a_rollout(store: Store, tmp_path: Path) -> None:
    assert export(store, "r1", "harbor", tmp_path / "job")["documents"] == 3
    result = json.loads((tmp_path / "job" / "result.json").read_text())
    assert result["n_total_trials"] == 3 and result["stats"]["n_errored_trials"] == 0
    trial = tmp_path / "job" / "count-1__pi__1"
    told = json.loads((trial / "result.json").read_text())
    assert told["verifier_result"]["rewards"] == {"reward": 1.0, "exists": 1.0}
    assert told["agent_result"]["n_output_tokens"] == 7 and told["task_id"] == {"path": "count-1"}
    assert json.loads((trial / "verifier" / "reward.json").read_text())["reward"] == 1.0
    Trajectory.model_validate_json((trial / "agent" / "trajectory.json").read_text())


def test_a_part_or_step_called_reward_is_not_taken_for_the_reward(store: Store, tmp_path: Path) -> None:
    (path,) = tmp_path.rglob("record.db")
    with sqlite3.connect(path) as db:
        db.execute("""UPDATE rollouts SET reward_parts='{"reward": 0.5, "other": 1.0}' WHERE id=1""")
    db.close()
    export(store, "r1", "harbor", tmp_path / "job")
    told = json.loads((tmp_path / "job" / "count-1__pi__1" / "result.json").read_text())
    assert told["verifier_result"]["rewards"] == {"reward": 1.0, "other": 1.0}


def test_tokens_train_each_sampled_token_in_one_row(store: Store, tmp_path: Path) -> None:
    export(store, "r1", "tokens", tmp_path / "tokens.jsonl")
    rows = jsonl(tmp_path / "tokens.jsonl")
    first = [row for row in rows if row["rollout"] == 1]
    trained = [row["ids"][n] for row in first for n, m in enumerate(row["mask"]) if m]
    assert sorted(trained)[:2] == [20, 21] and len(trained) == len({(t, n) for n, t in enumerate(trained)})
    assert all(len(r["ids"]) == len(r["mask"]) == len(r["logprobs"]) == len(r["calls"]) for r in rows)
    assert first[0]["advantage"] > 0 > next(row for row in rows if row["rollout"] == 2)["advantage"]
    export(store, "r1", "parquet", tmp_path / "tokens.parquet")
    table = parquet.read_table(tmp_path / "tokens.parquet").to_pylist()
    assert [row["ids"] for row in table] == [row["ids"] for row in rows]
    assert [row["logprobs"] for row in table] == [pytest.approx(row["logprobs"]) for row in rows]


def test_one_rollout_can_be_asked_for(store: Store, tmp_path: Path) -> None:
    assert export(store, "r1", "messages", tmp_path / "m.jsonl", rollout=2)["documents"] == 1
    with pytest.raises(ExportError, match="no rollout 99"):
        export(store, "r1", "messages", tmp_path / "n.jsonl", rollout=99)


@pytest.mark.parametrize("kind", ["atif", "messages"])
def test_what_went_out_comes_in_as_lessons_without_ids(store: Store, tmp_path: Path, kind: str) -> None:
    export(store, "r1", kind, tmp_path / "out", rollout=3)
    source = tmp_path / "out" / "rollout-3.json" if kind == "atif" else tmp_path / "out"
    ((harness, said, tools),) = read(source)
    assert harness == "pi" and [m.canonical() for m in said] == [
        m.canonical() for m in (SYSTEM, TASK, ASKS, RESULT, DONE)
    ]
    assert said[3].tool_call_id == "c1" and [tool.name for tool in tools] == ["bash"]
    store.create_run("r2", "later", RunConfig().model_dump(mode="json"), 0, "test")
    (number,) = bring_in(store, "r2", source, "codex")
    (lesson,) = store.rollouts("r2")
    assert (lesson.id, lesson.reward, lesson.plan.harness) == (number, 1.0, "pi")
    (call,) = store.calls(number)
    assert call.sample is None and call.wire == "imported"
    assert bring_in(store, "r2", source, "codex") == []  # the same file again adds nothing


@pytest.mark.slow
def test_the_cold_start_reads_imported_conversations(store: Store, tmp_path: Path) -> None:
    from appliance.train.coldstart import read_lessons

    export(store, "r1", "messages", tmp_path / "m.jsonl", rollout=3)
    store.create_run("r2", "later", RunConfig().model_dump(mode="json"), 0, "test")
    bring_in(store, "r2", tmp_path / "m.jsonl", "codex")
    (lesson,) = read_lessons(store, "r2")
    assert lesson.harness == "pi" and lesson.messages[-1] == Message("assistant", "There are 7.")


def test_a_new_run_takes_the_lessons_that_its_configuration_names(store: Store, tmp_path: Path) -> None:
    export(store, "r1", "messages", tmp_path / "m.jsonl", rollout=3)
    home = tmp_path / "home"
    run_id = create(home, RunConfig(coldstart={"imports": (str(tmp_path / "m.jsonl"),)}))
    with reading(home) as made:
        (lesson,) = made.rollouts(run_id, Purpose.TEACH)
        assert lesson.reward == 1.0 and lesson.plan.task.startswith("imported/m/")
    (tmp_path / "bad.jsonl").write_text("{}")
    with pytest.raises(ExportError, match="no list `messages`"):
        create(home, RunConfig(coldstart={"imports": (str(tmp_path / "bad.jsonl"),)}))
    with reading(home) as made:
        assert len(made.runs()) == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no conversation"),
        ("not json", ":1: not a JSON object"),
        ('{"schema_version": "ATIF-v9", "steps": []}', "is not ATIF 1"),
        ('{"schema_version": "ATIF-v1.8", "agent": {}, "steps": [{"source": "robot"}]}', "step 1 has no known source"),
        ('{"messages": [{"role": "robot"}]}', "message 0: role 'robot'"),
        ('{"messages": [{"role": "user", "content": "hi"}]}', "no answer of an assistant"),
        ('{"messages": [{"role": "assistant", "tool_calls": [{"id": "x"}]}]}', "a tool call without a function name"),
        ('{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', "content that is not text"),
        ('{"text": "hello"}', "no list `messages`"),
    ],
)
def test_what_cannot_be_read_is_named_and_changes_nothing(store: Store, tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "in.jsonl").write_text(text)
    store.create_run("r2", "later", RunConfig().model_dump(mode="json"), 0, "test")
    with pytest.raises(ExportError, match=says.replace("[", r"\[")):
        bring_in(store, "r2", tmp_path / "in.jsonl", "pi")
    assert store.rollouts("r2") == []


def test_a_conversation_comes_in_once_and_another_file_of_the_same_name_is_not_mistaken_for_it(
    store: Store, tmp_path: Path
) -> None:
    def lesson(folder: str, *answers: str) -> Path:
        said = [[{"role": "user", "content": "go"}, {"role": "assistant", "content": a}] for a in answers]
        path = tmp_path / folder / "lessons.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(json.dumps({"messages": messages}) for messages in said))
        return path

    store.create_run("r2", "later", RunConfig().model_dump(mode="json"), 0, "test")
    assert len(bring_in(store, "r2", lesson("a", "one", "one", "two"), "pi")) == 3
    assert bring_in(store, "r2", lesson("a", "two", "one", "one"), "pi") == []
    assert len(bring_in(store, "r2", lesson("b", "one", "three"), "pi")) == 1
    assert len(store.rollouts("r2")) == 4


def test_a_run_that_has_its_policy_takes_no_lessons(store: Store, tmp_path: Path) -> None:
    export(store, "r1", "messages", tmp_path / "m.jsonl", rollout=3)
    store.move_run("r1", RunState.DONE)
    with pytest.raises(ExportError, match="has its first policy already"):
        bring_in(store, "r1", tmp_path / "m.jsonl", "pi")


def test_the_commands_refuse_a_target_that_is_there_and_say_what_they_made(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CORRAL_HOME", str(store.path.parent))
    target = tmp_path / "m.jsonl"
    asked = ["export", "r1", "--format", "messages", "--to", str(target), "--json"]
    assert main(asked) == 0
    # rollout 1 ends in two answers, rollouts 2 and 3 in one
    assert json.loads(capsys.readouterr().out)["documents"] == 4 == len(jsonl(target))
    before = target.read_bytes()
    assert main(asked) == 1
    assert "is there already" in capsys.readouterr().out and target.read_bytes() == before
    assert main(["export", "r1", "--format", "harbor", "--to", str(tmp_path / "none" / "x")]) == 1
    assert "is no folder" in capsys.readouterr().err
    store.create_run("r2", "later", RunConfig().model_dump(mode="json"), 0, "test")
    assert main(["import", str(target), "--run", "r2"]) == 0
    assert "4 conversations came in as lessons" in capsys.readouterr().out
    assert main(["import", str(target), "--run", "r2"]) == 0
    assert "nothing new" in capsys.readouterr().out


def test_a_disk_that_fills_up_leaves_no_half_export(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Path("/dev/full")  # every write to it fails as on a full disk

    def full_open(self: Path, *a: object, **k: object) -> object:
        return open(target, "w") if self.name == "new" else original(self, *a, **k)

    original = Path.open
    monkeypatch.setattr(Path, "open", full_open)
    with pytest.raises(ExportError, match="No space left on device"):
        export(store, "r1", "messages", tmp_path / "m.jsonl")
    monkeypatch.undo()
    assert sorted(p.name for p in tmp_path.iterdir() if not p.name.startswith("record.db")) == []
