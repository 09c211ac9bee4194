"""Versions on disk: what the rule keeps, what a damaged one says, and a run killed at its worst moments (E14)."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from appliance.config.runconfig import resolve
from appliance.config.sections import TrainSection
from appliance.errors import ModelError
from appliance.record.store import CallDraft, Store
from appliance.runs.schedule import sampled_by
from appliance.train.batch import pack
from appliance.train.checkpoints import Rule, check, prune, seal
from appliance.train.exporting import export_adapter, export_merged
from appliance.train.policy import load_policy, save_adapter
from appliance.types import Purpose, Reward, RolloutPlan, Sample, StopReason
from tests.support.tiny_policy import forest, make_base, make_policy, tiny_settings

STEPS = 3


def version(folder: Path, number: int) -> Path:
    path = folder / f"v{number}"
    path.mkdir(parents=True)
    for name in ("adapter_model.safetensors", "optimizer.pt", "critic.pt"):
        (path / name).write_bytes(bytes([number]) * 100)
    seal(path)
    return path


def kept(folder: Path) -> tuple[list[int], list[int]]:
    """(versions that can be served, versions that can be resumed from)."""
    adapters = sorted(int(p.name[1:]) for p in folder.glob("v*"))
    return adapters, [n for n in adapters if (folder / f"v{n}" / "optimizer.pt").exists()]


def test_the_newest_the_best_and_the_first_are_kept(tmp_path: Path) -> None:
    for number in range(9):
        version(tmp_path, number)
    prune(tmp_path, 8, Rule(keep_last=2, keep_adapters=0, best=None))
    assert kept(tmp_path) == ([*range(9)], [7, 8])
    prune(tmp_path, 8, Rule(keep_last=2, keep_adapters=3, best=4))
    assert kept(tmp_path) == ([0, 4, 6, 7, 8], [7, 8])
    for number in (0, 4, 6, 8):
        check(tmp_path / f"v{number}")  # what was pruned is not missed


def test_what_can_be_resumed_from_outlives_a_smaller_count_of_adapters(tmp_path: Path) -> None:
    for number in range(5):
        version(tmp_path, number)
    prune(tmp_path, 4, Rule(keep_last=3, keep_adapters=1, best=None))
    assert kept(tmp_path) == ([0, 2, 3, 4], [2, 3, 4])


def test_rollouts_that_are_ahead_keep_the_adapter_that_samples_them(tmp_path: Path) -> None:
    for number in range(5):
        version(tmp_path, number)
    # While step 4 is closed, those of step 5 are sampled by version 3, and a resume would load it again.
    train = TrainSection(ahead=1, keep_last=1, keep_adapters=1)
    prune(tmp_path, 4, Rule.of(train, None))
    assert kept(tmp_path) == ([0, sampled_by(5, train.ahead), 4], [4])


def test_a_checkpoint_cut_short_names_its_file(tmp_path: Path) -> None:
    path = version(tmp_path, 1)
    check(path)
    (path / "optimizer.pt").write_bytes(b"\x01" * 60)
    with pytest.raises(ModelError, match=r"optimizer\.pt: cut short or changed since it was written \(60 bytes\)"):
        check(path)
    (path / "optimizer.pt").unlink()
    check(path)
    (path / "adapter_model.safetensors").unlink()
    with pytest.raises(ModelError, match="missing from the checkpoint"):
        check(path)


@pytest.mark.filterwarnings("ignore:.*tied.*")
def test_exports_are_whole_and_the_merged_model_is_the_policy(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base")
    policy = make_policy(base)
    save_adapter(policy, tmp_path / "v1")
    seal(tmp_path / "v1")
    export_adapter(tmp_path / "v1", tmp_path / "adapter")
    again = load_policy(base, tiny_settings(), tmp_path / "adapter")
    export_merged(base, tmp_path / "v1", tmp_path / "merged")
    (packed,) = pack(forest(), 4096)
    with torch.no_grad():
        wanted = policy.logprobs(packed, 1.0)
        assert torch.equal(again.logprobs(packed, 1.0), wanted)
        merged = load_policy(tmp_path / "merged", tiny_settings())  # its fresh adapter is the identity
        assert torch.allclose(merged.logprobs(packed, 1.0), wanted, atol=1e-4)
    AutoModelForCausalLM.from_pretrained(tmp_path / "merged", local_files_only=True)
    assert (tmp_path / "merged" / "tokenizer_config.json").is_file()
    with pytest.raises(ModelError, match="already there"):
        export_merged(base, tmp_path / "v1", tmp_path / "merged")


# ------------------------------------------------------------------ killed and resumed


def run_with_steps(home: Path) -> Store:
    """A run of STEPS steps whose rollouts are all graded: nothing is missing but the training."""
    folder = home / "runs" / "r"
    base = make_base(folder / "model" / "base")
    (folder / "model" / "served").mkdir()
    store = Store.open(home / "record.db")
    overrides = {"model.quantization": "none", "model.lora_rank": "8", "train.steps": str(STEPS)}
    overrides |= {"engine.device": "cpu", "train.parity_alarm": "90", "train.parity_stop": "100"}  # invented logprobs
    store.create_run("r", "demo", resolve(None, overrides).model_dump(mode="json"), 0, "test")
    path = folder / "adapters" / "v0"
    store.add_version("r", 0, path, save_adapter(make_policy(base), path))
    draw = np.random.default_rng(0)
    for step in range(1, STEPS + 1):
        plans = [RolloutPlan("r", Purpose.TRAIN, step, "pi", "t", n) for n in range(4)]
        for n, rollout in enumerate(store.plan(plans)):
            store.begin(rollout.id, step - 1)
            ids = draw.integers(2, 128, 12).astype(np.int32)
            sample = Sample(
                np.arange(2, 12, dtype=np.int32), ids, np.full(12, -4, np.float32), StopReason.STOP, step - 1
            )
            store.add_call(rollout.id, CallDraft(0, "chat", b"", b"", b"{}", sample, "stop", 1.0, 2.0))
            store.grade(rollout.id, Reward(float(n % 2)), "", {})
        store.open_step("r", step)
    return store


def trained(home: Path, kill_at: tuple[str, ...]) -> list[str]:
    """The versions' hashes once all steps are done. The trainer is killed as soon as each path of `kill_at` appears."""
    store = run_with_steps(home)
    adapters = home / "runs" / "r" / "adapters"
    waiting = list(kill_at)
    child = trainer(home)
    deadline = time.monotonic() + 280
    while time.monotonic() < deadline and sum(state == "done" for _, state, _ in store.steps("r")) < STEPS:
        if waiting and any(adapters.glob(waiting[0])):
            waiting.pop(0)
            child.kill()
            child.wait()
            child = trainer(home)
        assert child.poll() is None, (home / "trainer.log").read_text()[-2000:]
        time.sleep(0.001)
    child.kill()
    child.wait()
    assert not waiting
    found = [sha256 for _, _, sha256 in store.versions("r")]
    store.close()
    return found


def trainer(home: Path) -> subprocess.Popen[bytes]:
    with (home / "trainer.log").open("ab") as log:
        command = [sys.executable, "-m", "appliance.train.trainer", "train", str(home), "r"]
        return subprocess.Popen(command, stdout=log, stderr=log)


@pytest.mark.slow
def test_a_run_killed_while_it_writes_ends_bit_for_bit_like_one_that_was_not(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", ())
    # Before the adapter is in place, and after it is but before its optimiser and the record are.
    killed = trained(tmp_path / "killed", (".v1.*", "v2"))
    assert len(whole) == STEPS + 1 and killed == whole
    optimizers = [
        tmp_path / name / "runs" / "r" / "adapters" / f"v{STEPS}" / "optimizer.pt" for name in ("whole", "killed")
    ]
    states = [torch.load(path, weights_only=True)["state"] for path in optimizers]
    assert all(torch.equal(states[0][k]["exp_avg_sq"], states[1][k]["exp_avg_sq"]) for k in states[0])
    assert json.loads((optimizers[0].parent / "checkpoint.json").read_text())["files"].keys() >= {"optimizer.pt"}
