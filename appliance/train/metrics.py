"""Names of a step's numbers in the record: TRL's where it has one, so that its dashboards and habits carry over.

TensorBoard files, on request, hold the same names and numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

TRL_NAMES = {
    "clip_share": "clip_ratio/region_mean",
    "clip_low_share": "clip_ratio/low_mean",
    "clip_high_share": "clip_ratio/high_mean",
    "mean_importance": "sampling/importance_sampling_ratio/mean",
    "logprob_gap_max": "sampling/sampling_logp_difference/max",
}
"""Our field → TRL's name. `loss`, `grad_norm`, `entropy`, `kl` and `reward` are called alike."""


def recorded(measured: Any) -> dict[str, float]:
    """The fields of a Metrics or ValueMetrics as the record names them."""
    found = {TRL_NAMES.get(name, name): float(value) for name, value in asdict(measured).items()}
    if "logprob_gap" in found:  # the closing table and the terminal UI know it by our word
        found["sampling/sampling_logp_difference/mean"] = found["logprob_gap"]
    return found


def write_tensorboard(folder: Path, step: int, metrics: Mapping[str, float]) -> None:
    """Adds one step to the event files in `folder`; `tensorboard --logdir` reads them."""
    from tensorboardX import SummaryWriter  # only runs that ask for the files pay for it

    with SummaryWriter(str(folder), flush_secs=1) as writer:
        for name, value in sorted(metrics.items()):
            writer.add_scalar(name, value, step)
