"""What an update costs, packed and flat: one case a process, so that its peak memory is its own.

`python -m appliance.train.measuring JSON` prints one JSON object. Seconds are CPU seconds of the process where the
model is on a CPU, since other work on the machine changes those least, and wall-clock seconds on a GPU.

Shapes: a batch is `trees` times `branches` rows of `shared` + `own` tokens under one prefix; the last `own` of each
are trained.
"""

from __future__ import annotations

import inspect
import json
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from appliance.train.adapters import CRITIC, using
from appliance.train.bases import BaseSettings
from appliance.train.batch import Packed, Sequence, pack
from appliance.train.critic import Critic, CriticSettings, Targets
from appliance.train.policy import Policy, PolicySettings, load_policy, set_threads
from appliance.train.ranks import Ranks, join, leave
from appliance.train.update import UpdateSettings, learn, make_optimizer

VALUES_SEED = 1


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement. kind: `share` (packed and flat in turn), `peak` (one update), `ranks` (under torchrun) ·

    `compare` (what two of those left), `trl` (the same rows through TRL)."""

    kind: str
    model: str
    shared: int
    branches: int
    own: int
    quantization: Any = "none"
    checkpointing: bool = False
    lora_rank: int = 16
    threads: int = 1
    repeats: int = 1
    device: str = "cpu"
    with_critic: bool = False
    trees: int = 1


def batch(case: Case, vocabulary: int) -> list[Sequence]:
    """The rows of the case: rollouts of alternating advantage that share all but their last tokens."""
    draw = np.random.default_rng(0)
    rows = []
    for tree in range(case.trees):
        prefix = draw.integers(2, vocabulary, case.shared)
        for number in range(tree * case.branches, (tree + 1) * case.branches):
            ids = np.concatenate([prefix, draw.integers(2, vocabulary, case.own)]).astype(np.int32)
            mask = np.arange(len(ids)) >= case.shared
            rows.append(Sequence(ids, mask, np.full(len(ids), -8, np.float32), (-1.0) ** number, number))
    return rows


def load(case: Case) -> Policy:
    """The case's policy with a fresh adapter."""
    set_threads(case.threads)
    base = BaseSettings(case.quantization, "auto", case.checkpointing)
    return load_policy(Path(case.model), PolicySettings(base, case.lora_rank, case.device))


def measure(case: Case) -> dict[str, Any]:
    """The object that a case promises."""
    if case.kind == "compare":
        return _compared(Path(case.model))
    highest = Highest()
    policy = load(case)
    causal: Any = policy.model.get_base_model()
    rows = batch(case, causal.config.vocab_size)
    if case.kind == "ranks":
        return _ranks(case, policy, rows)
    if case.kind == "trl":
        return _trl(case, policy, rows, highest)
    packed, flat = pack(rows, 1 << 30), [p for row in rows for p in pack([row], 1 << 30)]
    step = _step(case, policy)
    if case.kind == "peak":
        seconds = _timed(case, step, packed)
        return {"seconds": seconds, "unique_tokens": packed[0].num_tokens, "peak_bytes": peak_bytes(case, highest)}
    best: dict[str, float] = {}
    for _ in range(case.repeats):
        for name, packs in (("packed", packed), ("flat", flat)):
            seconds = _timed(case, step, packs)
            best[name] = min(best.get(name, seconds), seconds)
    return {"packed_s": best["packed"], "flat_s": best["flat"], **_tokens(packed)}


def _tokens(packed: list[Packed]) -> dict[str, int]:
    return {
        "unique_tokens": sum(p.num_tokens for p in packed),
        "flat_tokens": sum(p.num_flat_tokens for p in packed),
    }


def _step(case: Case, policy: Policy) -> Callable[[list[Packed]], None]:
    """Forward and backward of a GRPO update, or of a PPO update with its critic; no optimiser step."""
    settings = UpdateSettings()
    critic = Critic(policy, CriticSettings(), VALUES_SEED) if case.with_critic else None

    def step(packs: list[Packed]) -> None:
        total = sum(p.num_terms for p in packs)
        for packed in packs:
            if critic is not None:
                _value_step(critic, policy, packed)
            logprobs = policy.logprobs(packed, settings.temperature)
            advantages = torch.from_numpy(packed.advantages).to(policy.device)
            loss = -((logprobs - logprobs.detach()).exp() * advantages).sum() / total
            loss.backward()  # type: ignore[no-untyped-call]
        policy.model.zero_grad(set_to_none=True)

    return step


def _value_step(critic: Critic, policy: Policy, packed: Packed) -> None:
    """What a critic adds to a pack: its values, and its own gradient."""
    values = critic.values(packed)
    targets = Targets(values, values + 1, np.ones(len(values), dtype=np.bool_))
    with using(policy, CRITIC):
        critic.accumulate(packed, targets, len(values), clip=0.2)


def _timed(case: Case, step: Callable[[list[Packed]], None], packs: list[Packed]) -> float:
    clock = time.process_time if case.device == "cpu" else _gpu_clock
    started = clock()
    step(packs)
    return clock() - started


def _gpu_clock() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()


class Highest(threading.Thread):
    """Looks every few milliseconds at how much memory of its own this process holds, from now on to its end.

    Mapped files are not counted: the kernel takes their pages back and reads them again as it likes, so that what a
    process has of them differs from run to run.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.bytes = 0
        self.start()

    def run(self) -> None:
        """Reads resident and shared pages of /proc/self/statm."""
        page = resource.getpagesize()
        while True:
            _, resident, shared, *_ = Path("/proc/self/statm").read_bytes().split()
            self.bytes = max(self.bytes, page * (int(resident) - int(shared)))
            time.sleep(0.003)


def peak_bytes(case: Case, highest: Highest) -> int:
    """The most memory this process ever held, on the device of the case."""
    return int(torch.cuda.max_memory_allocated()) if case.device != "cpu" else highest.bytes


def _ranks(case: Case, policy: Policy, rows: list[Sequence]) -> dict[str, Any]:
    """Two groups of rows learnt by all ranks together; each rank is given what it is dealt."""
    ranks = join()
    optimizer = make_optimizer(policy, 0.0, "adamw")
    ranks.copy(policy.parameters(), optimizer)
    kept: list[torch.Tensor] = []
    optimizer.register_step_pre_hook(lambda *_: kept.append(_gradient(policy)))
    settings = UpdateSettings(row_tokens=1 << 30, max_grad_norm=1e9, ranks=ranks)
    seconds = []
    for _ in range(case.repeats + 1):  # the first warms up
        ranks.gathered(None)
        started = time.perf_counter()
        learn(policy, list(_two_groups(rows)) if ranks.rank == 0 else [], optimizer, settings)
        seconds.append(time.perf_counter() - started)
    found = {"seconds": min(seconds[1:]), "gradient": _saved(ranks, kept[0])}
    leave()
    return found


def _compared(folder: Path) -> dict[str, Any]:
    """How far the gradients of one rank and of two differ, relative to their length."""
    one, two = (torch.load(folder / name, weights_only=True) for name in ("1", "2"))
    return {"difference": float((one - two).norm() / one.norm())}


def _trl(case: Case, policy: Policy, rows: list[Sequence], highest: Highest) -> dict[str, Any]:
    """TRL's own logprobs of the same rows as one padded batch, its defaults, on the same model and adapter."""
    from trl import GRPOTrainer  # type: ignore[attr-defined]
    from trl.trainer.utils import add_fused_lm_head

    causal: Any = policy.model.get_base_model()
    causal.set_attn_implementation("sdpa")
    add_fused_lm_head(causal, temperature=1.0)
    ids = torch.from_numpy(np.stack([row.ids for row in rows]).astype(np.int64))
    advantages = torch.tensor([row.advantage for row in rows])[:, None]
    trainer = SimpleNamespace(accelerator=SimpleNamespace(autocast=nullcontext))
    logprobs_of = inspect.unwrap(GRPOTrainer._get_per_token_logps_and_entropies)  # without its profiling

    def step(_: list[Packed]) -> None:
        everything = torch.ones_like(ids)
        logprobs, _, _ = logprobs_of(trainer, policy.model, ids, everything, case.own)
        loss = -((logprobs - logprobs.detach()).exp() * advantages).mean()
        loss.backward()

    seconds = _timed(case, step, [])
    return {"seconds": seconds, "peak_bytes": peak_bytes(case, highest)}


def _two_groups(rows: list[Sequence]) -> Iterator[Sequence]:
    """The rows, and the same again under another first token: two trees, so that each of two ranks gets one."""
    yield from rows
    for row in rows:
        yield replace(row, ids=np.concatenate([[1], row.ids[1:]]).astype(np.int32), rollout=row.rollout + len(rows))


def _gradient(policy: Policy) -> torch.Tensor:
    return torch.cat([p.grad.flatten().clone() for p in policy.parameters() if p.grad is not None])


def _saved(ranks: Ranks, gradient: torch.Tensor) -> str:
    """Writes the gradient where the caller looks for it."""
    path = os.environ["CORRAL_BENCH_OUT"]
    if ranks.rank == 0:
        torch.save(gradient, path)
    return path


def main(arguments: list[str]) -> None:
    """Measures the case given as JSON and prints what was found."""
    case = Case(**json.loads(arguments[0]))
    found = measure(case)
    if join_rank() == 0:
        sys.stdout.write(json.dumps(found) + "\n")


def join_rank() -> int:
    """This process's rank, 0 when it is alone."""
    return int(os.environ.get("RANK", "0"))


if __name__ == "__main__":
    main(sys.argv[1:])
