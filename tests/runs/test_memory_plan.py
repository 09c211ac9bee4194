"""The memory plan: counted activations against what autograd keeps, the plan against measured peaks, and its advice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from appliance.config.runconfig import RunConfig, resolve
from appliance.errors import ConfigError, ModelError
from appliance.runs.memory_plan import Shape, advice, enforce, layer_token_bytes, plans, trainer_parts
from appliance.runs.room import check_room
from appliance.train.bases import BaseSettings
from appliance.train.batch import pack
from appliance.train.child import LEAN_HEAP
from appliance.train.policy import load_policy
from tests.support.tiny_policy import make_base, row, tiny_settings

GIB = 2**30
EIGHT_B = Shape(4096, 32, 8, 128, 12288, 36, 151936, False, has_head_norms=True)


def config(**overrides: str) -> RunConfig:
    return resolve(None, {"engine.device": "cpu", **{k.replace("__", "."): v for k, v in overrides.items()}})


def kept_bytes(base: Path, settings: BaseSettings, tokens: int) -> int:
    """What autograd keeps for the gradient of one forward pass, every storage once, parameters not counted."""
    policy = load_policy(base, replace(tiny_settings(), base=settings))
    own = {p.untyped_storage().data_ptr() for p in policy.model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    chain = row([i % 120 + 2 for i in range(tokens)], range(1, tokens))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        hidden = policy.hidden(pack([chain], 10**6)[0])
    assert hidden.requires_grad
    return sum(kept.values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_layers_activations_are_what_autograd_keeps(dtype: Any, tmp_path: Path) -> None:
    tokens = 512
    found = []
    for layers in (2, 4):
        base = make_base(tmp_path / str(layers), layers=layers)
        found.append(kept_bytes(base, BaseSettings("none", dtype), tokens))
    a_layer = (found[1] - found[0]) / 2 / tokens
    shape = Shape.of(tmp_path / "2")
    assert layer_token_bytes(shape, 8, 4 if dtype == "float32" else 2) == pytest.approx(a_layer, rel=0.03)


def measured_peak(base: Path, tokens: int, checkpointing: bool) -> int:
    """The most memory a fresh process held in one packed update of `tokens` tokens, every freed block given back."""
    case = {
        "kind": "peak", "model": str(base), "shared": tokens // 2, "branches": 4, "own": tokens // 8,
        "lora_rank": 8, "checkpointing": checkpointing,
    }  # fmt: skip
    ended = subprocess.run(
        [sys.executable, "-m", "appliance.train.measuring", json.dumps(case)],
        env=os.environ | LEAN_HEAP, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-2000:]
    return int(json.loads(ended.stdout.splitlines()[-1])["peak_bytes"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("checkpointing", "width", "layers", "vocabulary", "tokens"),
    [(False, 256, 8, 8000, 4096), (True, 256, 8, 8000, 4096), (True, 128, 12, 2000, 6144)],
)
def test_the_plan_of_a_rank_is_within_a_tenth_of_its_measured_peak(
    checkpointing: bool, width: int, layers: int, vocabulary: int, tokens: int, tmp_path: Path
) -> None:
    base = make_base(tmp_path / "base", width, layers, vocabulary)
    asked = config(
        model__path=str(base), model__quantization="none", model__lora_rank="8", train__row_tokens=str(tokens),
        train__checkpointing=str(checkpointing).lower(), train__lean_heap="true",
    )  # fmt: skip
    planned = sum(p.bytes for p in trainer_parts(asked, Shape.of(base)))
    assert planned == pytest.approx(measured_peak(base, tokens, checkpointing), rel=0.1)


def test_an_8b_model_is_planned_part_by_part() -> None:
    asked = config(
        engine__device="cuda", train__row_tokens="16384", train__checkpointing="true", engine__kv_cache_gib="8"
    )
    trainer, engine = plans(asked, EIGHT_B, 80 * GIB)
    parts = {p.name: p.bytes / GIB for p in trainer.parts}
    # 6.95e9 weights in NF4 and 2 × 151,936 × 4,096 in bf16, with the allocator's twentieth
    assert parts["base"] == pytest.approx(1.05 * (6.95e9 * 0.516 + 1.245e9 * 2) / GIB, rel=0.01)
    assert parts["optimiser"] == pytest.approx(parts["adapters and gradients"] / 4, rel=0.01)
    assert trainer.fits and engine.fits
    assert {p.name: p.bytes for p in engine.parts}["engine's cache"] == 8 * GIB


def test_on_one_gpu_a_sleeping_engine_and_a_trainer_at_rest_do_not_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def parts_with(gpus: int, sleep: bool) -> list[dict[str, int]]:
        monkeypatch.setattr("appliance.config.runconfig.num_gpus", lambda: gpus)
        asked = config(
            engine__device="cuda", train__row_tokens="16384", train__checkpointing="true", engine__kv_cache_gib="8",
            engine__sleep=str(sleep).lower(),
        )  # fmt: skip
        return [{p.name: p.bytes for p in plan.parts} for plan in plans(asked, EIGHT_B, 80 * GIB)]

    trainer, engine = parts_with(2, False)
    (both,) = parts_with(1, False)
    assert both == trainer | engine
    (shared,) = parts_with(1, True)
    passing = trainer["activations"] + trainer["logits or one layer"] + trainer["heap"]
    awake = engine["engine's base"] + engine["engine's adapters"] + engine["engine's cache"]
    assert sum(shared.values()) == sum(both.values()) - min(passing, awake)
    assert parts_with(2, True) == [trainer, engine]


def test_an_engine_on_the_cpu_that_is_to_sleep_is_refused_before_there_is_a_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="vLLM sleeps on a GPU only"):
        check_room(config(engine__sleep="true"), tmp_path)


def test_what_does_not_fit_is_refused_with_the_setting_that_helps() -> None:
    asked = config(engine__device="cuda", train__row_tokens="16384", engine__max_model_len="16384")
    with pytest.raises(ConfigError, match=r"on each trainer's GPU, which has 80\.0 GiB free") as refused:
        enforce(asked, EIGHT_B, 80 * GIB)
    assert "train.checkpointing = true" in refused.value.remedy
    helped = asked.model_copy(update={"train": asked.train.model_copy(update={"checkpointing": True})})
    enforce(helped, EIGHT_B, 80 * GIB)
    (trainer, _) = plans(helped, EIGHT_B, 2 * GIB)
    assert "no single setting" in advice(trainer, helped, EIGHT_B, 2 * GIB)


def test_a_quarter_of_the_tokens_is_named_before_anything_slower() -> None:
    asked = config(train__row_tokens="8192", engine__max_model_len="2048", model__path="x")
    shape = Shape(576, 9, 3, 64, 1536, 30, 49152, True)
    total = plans(asked, shape, None)[0].total
    with pytest.raises(ConfigError) as refused:
        enforce(asked, shape, total - GIB)
    assert refused.value.remedy.startswith("set train.row_tokens = 4096")


def test_on_a_cpu_the_heap_is_given_back_before_anything_is_computed_twice() -> None:
    asked = config(train__row_tokens="2048", engine__max_model_len="2048", model__path="x")
    shape = Shape(576, 9, 3, 64, 1536, 30, 49152, True)
    (whole,) = plans(asked, shape, None)
    heap = next(p.bytes for p in whole.parts if p.name == "heap")
    with pytest.raises(ConfigError) as refused:
        enforce(asked, shape, whole.total - heap)
    assert refused.value.remedy.startswith("set train.lean_heap = true;")


def test_shapes_come_from_config_files(tmp_path: Path) -> None:
    assert Shape.of(make_base(tmp_path / "base")) == Shape(64, 4, 2, 16, 128, 2, 128, True, has_head_norms=True)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="no shape to plan with"):
        Shape.of(tmp_path)


def test_the_pocket_model_is_planned_as_it_is_grown() -> None:
    from appliance.runs.room import POCKET_VOCABULARY, shape_of
    from appliance.train.pocket import new_model

    grown = new_model(POCKET_VOCABULARY, [1], 0).config.to_dict()
    assert shape_of(config(), Path("/nonexistent")) == Shape.read(grown)
