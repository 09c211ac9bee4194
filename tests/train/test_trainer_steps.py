"""Whole steps of the trainer on a tiny policy and a written record: what a step leaves behind, also when it fails."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event

from appliance.config.runconfig import RunConfig, resolve
from appliance.errors import TrainingError
from appliance.record.conversation import neutral_json
from appliance.record.store import CallDraft, Store
from appliance.report.replay import replay
from appliance.train.policy import save_adapter
from appliance.train.trainer import Trainer
from appliance.types import Message, Purpose, Request, Reward, RolloutPlan, Sample, StopReason
from tests.support.tiny_policy import make_base, make_policy


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("model") / "base")


def config(**keys: object) -> RunConfig:
    values = {"model.lora_rank": 8, "model.quantization": "none", "engine.device": "cpu", "harnesses": "pi,codex"}
    return resolve(None, {k.replace("__", "."): str(v) for k, v in (values | keys).items()})


class ARun:
    """A run whose version 0 is a tiny policy, in a folder of its own."""

    def __init__(self, home: Path, base: Path, config: RunConfig) -> None:
        self.home, self.folder = home, home / "runs" / "r"
        self.store = Store.open(home / "record.db")
        self.store.create_run("r", "demo", config.model_dump(mode="json"), 0, "test")
        for name in ("base", "served"):
            (self.folder / "model").mkdir(parents=True, exist_ok=True)
            (self.folder / "model" / name).symlink_to(base)
        self.store.add_version(
            "r", 0, self.folder / "adapters" / "v0", save_adapter(make_policy(base), self.folder / "adapters" / "v0")
        )

    def play(self, step: int, rewards: list[float], off: float = 0.0, harness: str = "pi") -> None:
        """A group of two-call rollouts; `off` is added to every logprob."""
        plans = [RolloutPlan("r", Purpose.TRAIN, step, harness, "a", n) for n in range(len(rewards))]
        draw = np.random.default_rng(step)
        for rollout, reward in zip(self.store.plan(plans), rewards, strict=True):
            self.store.begin(rollout.id, step - 1)
            ids = draw.integers(2, 128, 12).tolist()
            for n, (prompt, sampled) in enumerate((([3, 4, 5], ids[:4]), ([3, 4, 5, *ids[:4], 9], ids[4:]))):
                logprobs = np.full(len(sampled), -4.8 + off, np.float32)
                sample = Sample(
                    np.array(prompt, np.int32), np.array(sampled, np.int32), logprobs, StopReason.STOP, step - 1
                )
                body = neutral_json(Request("chat", "m", (Message("user", "go"),)), Message("assistant", f"{n}"))
                self.store.add_call(rollout.id, CallDraft(n, "chat", b"", b"", body, sample, "stop", n + 1.0, n + 1.5))
            self.store.grade(rollout.id, Reward(reward, {"code": reward}), "", {})
        self.store.open_step("r", step)

    def metrics(self, step: int) -> dict[str, float]:
        return {number: m for number, _, m in self.store.steps("r")}[step]

    def said(self, level: str) -> list[str]:
        return [str(e["message"]) for e in self.store.events("r") if e["level"] == level]


def test_a_step_records_its_numbers_under_trls_names_and_as_tensorboard_files(base: Path, tmp_path: Path) -> None:
    run = ARun(tmp_path, base, config(train__tensorboard="true", train__parity_stop="0", train__parity_alarm="0"))
    run.play(1, [1.0, 0.0])
    run.play(1, [1.0, 0.5], harness="codex")
    Trainer(tmp_path, run.store, "r").take(1)
    found = run.metrics(1)
    for name in (
        "loss", "grad_norm", "learning_rate", "entropy", "kl", "reward", "reward_std", "frac_reward_zero_std",
        "clip_ratio/region_mean", "clip_ratio/low_mean", "clip_ratio/high_mean", "completions/mean_length",
        "completions/clipped_ratio", "sampling/sampling_logp_difference/mean", "rewards/code/mean", "step_time",
        "sampling/importance_sampling_ratio/mean", "reward/pi", "reward/codex", "logprob_gap/pi", "logprob_gap/codex",
    ):  # fmt: skip
        assert name in found, name
    again = replay(run.store, "r")
    assert again.differences == () and again.rollouts == 4  # what the trainer noted is what the record gives
    assert found["reward/codex"] == 0.75 and found["completions/mean_length"] == 12
    (events,) = (tmp_path / "runs" / "r" / "tensorboard").iterdir()
    written = {v.tag: v.simple_value for e in events_of(events) for v in e.summary.value}
    assert written["reward"] == found["reward"] and written["logprob_gap/pi"] == pytest.approx(found["logprob_gap/pi"])


class DyingStore(Store):
    """The process that writes to it ends when it closes a step, before the record is told."""

    def close_step(self, run_id: str, step: int, metrics: dict[str, float], version: tuple[int, Path, str]) -> None:
        raise SystemExit


def test_a_kill_before_the_record_is_told_leaves_the_version_before_it_whole(base: Path, tmp_path: Path) -> None:
    keys = {"train__parity_stop": 0, "train__parity_alarm": 0, "train__keep_last": 1, "train__keep_adapters": 1}
    run = ARun(tmp_path, base, config(**keys))
    before, after = (run.folder / "adapters" / name for name in ("v1", "v2"))
    run.play(1, [1.0, 0.0])
    Trainer(tmp_path, run.store, "r").take(1)
    run.play(2, [1.0, 0.0])
    dying = DyingStore.open(tmp_path / "record.db")
    with pytest.raises(SystemExit):
        Trainer(tmp_path, dying, "r").take(2)
    dying.close()
    assert (before / "optimizer.pt").exists()
    Trainer(tmp_path, run.store, "r").take(2)  # from version 1, the newest that the record names
    assert after.is_dir() and not before.exists()


def events_of(path: Path) -> list[Event]:
    """TensorBoard's records: 8 bytes of length, 4 of checksum, the event, 4 of checksum."""
    data, found = path.read_bytes(), []
    while data:
        length = int.from_bytes(data[:8], "little")
        found.append(Event.FromString(data[12 : 12 + length]))
        data = data[16 + length :]
    return found


@pytest.mark.parametrize("order", ["time", pytest.param("path", marks=pytest.mark.slow)])
def test_ppo_warms_its_critic_up_then_trains_and_resumes_with_it(base: Path, tmp_path: Path, order: str) -> None:
    keys = {"train__parity_stop": 0, "train__parity_alarm": 0, "train__credit_order": order, "train__gae_lambda": 0.9}
    run = ARun(tmp_path, base, config(train__algorithm="ppo", train__value_warmup_steps=1, **keys))
    run.play(1, [1.0, 0.0, 1.0])
    Trainer(tmp_path, run.store, "r").take(1)
    versions = {number: sha256 for number, _, sha256 in run.store.versions("r")}
    assert versions[0] == versions[1] and "loss" not in run.metrics(1)
    assert run.metrics(1)["value_loss"] > 0 and run.metrics(1)["explained_variance"] == 0
    run.play(2, [1.0, 1.0, 1.0])  # a critic learns from equal rewards too
    Trainer(tmp_path, run.store, "r").take(2)  # a new process: critic and optimiser come from version 1
    found = run.metrics(2)
    assert {number: sha256 for number, _, sha256 in run.store.versions("r")}[2] != versions[1]
    assert found["loss"] != 0 and found["value_loss"] > 0 and found["value_grad_norm"] > 0
    assert replay(run.store, "r").differences == ()


@pytest.mark.slow
def test_two_ranks_take_a_ppo_step_from_the_record_and_the_second_needs_no_record(base: Path, tmp_path: Path) -> None:
    keys = {"train__parity_stop": 0, "train__parity_alarm": 0, "train__value_warmup_steps": 0}
    run = ARun(tmp_path, base, config(train__algorithm="ppo", train__kl_weight=0.1, **keys))
    run.play(1, [1.0, 0.0, 1.0, 0.0])
    launcher = ["torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node=2", "-m"]
    trainer = [sys.executable, "-m", *launcher, "appliance.train.trainer", "train", str(tmp_path), "r"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(trainer, stdout=log, stderr=log)
        try:
            for _ in range(2400):
                if process.poll() is not None or run.store.steps("r")[0][1] == "done":
                    break
                time.sleep(0.1)
        finally:
            process.kill()  # as the guard does; the ranks have sessions of their own and must end all the same
            process.wait()
    assert run.store.steps("r")[0][1] == "done", (tmp_path / "log").read_text()[-3000:]
    assert run.metrics(1)["num_terms"] == 48 and run.metrics(1)["value_loss"] > 0
    for _ in range(200):
        if not ranks_of(tmp_path):
            break
        time.sleep(0.1)
    assert not ranks_of(tmp_path)


def ranks_of(home: Path) -> list[int]:
    """Processes whose command line names this run's home."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(home).encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


@pytest.mark.slow
def test_a_kl_term_is_measured_against_version_zero(base: Path, tmp_path: Path) -> None:
    run = ARun(tmp_path, base, config(train__kl_weight=0.1, train__parity_stop=0, train__parity_alarm=0))
    trainer = Trainer(tmp_path, run.store, "r")
    for step in (1, 2):
        run.play(step, [1.0, 0.0])
        trainer.take(step)
    assert run.metrics(1)["kl"] == 0.0 and run.metrics(2)["kl"] > 0


def test_a_logprob_that_is_no_number_stops_the_step_and_leaves_the_batchs_ids(base: Path, tmp_path: Path) -> None:
    run = ARun(tmp_path, base, config())
    run.play(1, [1.0, 0.0], off=float("nan"))
    trainer = Trainer(tmp_path, run.store, "r")
    with pytest.raises(
        TrainingError, match=r"step 1: .*\(rollout 1, 2\).* the batch's ids are in .*failed_step_1\.json"
    ):
        trainer.take(1)
    left = json.loads((run.folder / "failed_step_1.json").read_text())
    assert [r["rollout"] for r in left["rollouts"]] == [1, 2] and left["rollouts"][0]["rows"][0]["trained_tokens"] == 12
    assert [number for number, _, _ in run.store.versions("r")] == [0]
    assert [state for _, state, _ in run.store.steps("r")] == ["ready"]


def test_another_policys_logprobs_stop_the_run_and_the_harness_is_named(base: Path, tmp_path: Path) -> None:
    run = ARun(tmp_path, base, config(train__parity_alarm=2, train__parity_stop=3))
    run.play(1, [1.0, 0.0], harness="pi")
    run.play(1, [1.0, 0.0], off=-4.0, harness="codex")
    with pytest.raises(TrainingError, match=r"step 1: codex: .* above train\.parity_stop = 3"):
        Trainer(tmp_path, run.store, "r").take(1)
    assert [number for number, _, _ in run.store.versions("r")] == [0]


def test_many_steps_of_equal_rewards_are_called_out_loudly_with_likely_causes(base: Path, tmp_path: Path) -> None:
    run = ARun(tmp_path, base, config(train__flat_steps=2))
    trainer = Trainer(tmp_path, run.store, "r")
    for step in (1, 2):
        run.play(step, [0.0, 0.0])
        trainer.take(step)
    assert any("step 1: no group has rewards that differ; nothing is learnt" in told for told in run.said("warning"))
    (loud,) = run.said("error")
    assert loud.startswith("2 steps in a row had no group whose rewards differ. Likely: no rollout earns anything")
