"""What the trainer makes of recorded rollouts: advantages by group, rows, utilisation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from appliance.config.runconfig import resolve
from appliance.errors import TrainingError
from appliance.record.store import CallDraft, Store
from appliance.train.learner import rate_at
from appliance.train.step_rows import credits_of, step_rows
from appliance.train.trainer import memory_explained
from appliance.types import Purpose, Reward, Rollout, RolloutPlan, Sample, StopReason


@pytest.fixture
def store(tmp_path: Path) -> Store:
    opened = Store.open(tmp_path / "record.db")
    opened.create_run("r", "demo", {}, 0, "test")
    return opened


def rolled(store: Store, task: str, rewards: list[float | None]) -> None:
    """A group of rollouts of two calls each (2 + 3 sampled tokens); None: failed."""
    plans = [RolloutPlan("r", Purpose.TRAIN, 1, "pi", task, n) for n in range(len(rewards))]
    for rollout, reward in zip(store.plan(plans), rewards, strict=True):
        store.begin(rollout.id, 0)
        add_call(store, rollout, 0, [1, 2], [3, 4])
        add_call(store, rollout, 1, [1, 2, 3, 4, 5], [6, 7, 8])
        if reward is None:
            store.fail(rollout.id, "sandbox:lost", "gone")
        else:
            store.grade(rollout.id, Reward(reward), "", {})


def add_call(store: Store, rollout: Rollout, sequence: int, prompt: list[int], sampled: list[int]) -> None:
    sample = Sample(
        np.array(prompt, np.int32), np.array(sampled, np.int32), np.full(len(sampled), -0.5, np.float32),
        StopReason.STOP, 0,
    )  # fmt: skip
    store.add_call(rollout.id, CallDraft(sequence, "chat", b"", b"", b"{}", sample, "stop", 1.0, 2.0))


def test_advantages_are_by_group_and_a_failed_rollout_has_none(store: Store) -> None:
    rolled(store, "a", [1.0, 0.0, None])
    rolled(store, "b", [0.5, 0.5])
    rollouts = store.rollouts("r")
    advantages = credits_of(rollouts, resolve(None).train)
    metrics = step_rows(store, rollouts, resolve(None)).metrics
    by_task = [[advantages[r.id] for r in rollouts if r.plan.task == t] for t in "ab"]
    assert by_task[0] == [pytest.approx(0.707106, abs=2e-6), pytest.approx(-0.707106, abs=2e-6), None]
    assert by_task[1] == [0.0, 0.0]
    assert metrics["reward"] == metrics["reward/pi"] == 0.5 and metrics["groups/pi"] == 2
    assert metrics["frac_reward_zero_std"] == 0.5 and metrics["failed_rollouts"] == 1


def test_rows_hold_every_sampled_token_of_graded_rollouts_once(store: Store) -> None:
    rolled(store, "a", [1.0, 0.0, None])
    made = step_rows(store, store.rollouts("r"), resolve(None))
    found, metrics = made.rows, made.metrics
    assert [list(row.ids) for row in found] == [[1, 2, 3, 4, 5, 6, 7, 8]] * 2
    assert [int(row.mask.sum()) for row in found] == [5, 5]
    assert metrics["sampled_tokens"] == 15 and metrics["trained_tokens"] == 10 and metrics["rows_per_rollout"] == 1


def test_groups_of_equal_rewards_are_left_out_of_the_update_but_count_as_trained(store: Store) -> None:
    rolled(store, "a", [1.0, 1.0])
    made = step_rows(store, store.rollouts("r"), resolve(None))
    found, metrics = made.rows, made.metrics
    assert found == [] and metrics["trained_tokens"] == metrics["sampled_tokens"] == 10


def test_the_learning_rate_rises_then_falls_linearly() -> None:
    settings = {
        "train.steps": "5",
        "train.learning_rate": "1",
        "train.warmup_steps": "1",
        "train.final_rate_share": "0.2",
    }
    config = resolve(None, settings)
    assert [rate_at(config, step) for step in range(1, 6)] == pytest.approx([0.5, 0.8, 0.6, 0.4, 0.2])
    assert rate_at(resolve(None), 1) == rate_at(resolve(None), 8) == 3e-4


def test_negative_advantages_can_weigh_less(store: Store) -> None:
    rolled(store, "a", [1.0, 0.0])
    found = step_rows(store, store.rollouts("r"), resolve(None, {"train.negative_weight": "0.2"})).rows
    assert [row.advantage for row in found] == pytest.approx([0.707106, -0.141421], abs=2e-6)


def test_memory_that_an_update_does_not_get_is_named_with_what_to_change() -> None:
    """The CPU's refusal is real; the GPU's is torch's own exception with its usual words, since no GPU is at hand."""
    with (
        pytest.raises(TrainingError, match=r"no memory for the update: .*tried to allocate") as caught,
        memory_explained(),
    ):
        torch.empty(1 << 50, dtype=torch.int8)
    assert "train.row_tokens" in caught.value.remedy and "corral resume" in caught.value.remedy
    with pytest.raises(TrainingError, match="no memory for the update: CUDA out of memory"), memory_explained():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has 1 GiB free")
    with pytest.raises(RuntimeError, match="shapes"), memory_explained():
        raise RuntimeError("shapes do not match")
