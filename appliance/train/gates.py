"""The parity gate: trainer and sampler must give the same tokens the same logprobs, in every harness.

|log π_old − log μ| is rounding when both compute with the same values: 1e-5 nats in fp32, some 0.05 in bf16. More
than that means that something else was sampled from than is trained: stale or foreign weights, another template or
tokenizer, processed logprobs. Such a step must not be taken, because its importance weights are wrong everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from appliance.errors import TrainingError


@dataclass(slots=True)
class ParityGate:
    """Watches a step's updates (`update.Watch`). `harness_of`: the rollouts sampled from the very version that is

    trained; others differ by the policy's own moves and are not judged · alarm, stop: mean gap in nats a harness at
    which `say` is called, and TrainingError raised; 0 for neither.
    """

    harness_of: Mapping[int, str]
    alarm: float
    stop: float
    say: Callable[[str], None]
    metrics: dict[str, float] = field(default_factory=dict)

    def __call__(self, rollouts: NDArray[np.int64], gaps: NDArray[np.float32]) -> None:
        """Takes (M,) rollouts and |gaps| of an update's terms, before its step."""
        named = np.array([self.harness_of.get(int(r), "") for r in rollouts])
        for harness in sorted(set(named) - {""}):
            own = gaps[named == harness]
            self._judge(str(harness), float(own.mean()), float(own.max()))

    def _judge(self, harness: str, mean: float, worst: float) -> None:
        self.metrics[f"logprob_gap/{harness}"] = max(mean, self.metrics.get(f"logprob_gap/{harness}", 0.0))
        told = f"{harness}: trainer and sampler differ by {mean:.4f} nats a token on average, {worst:.2f} at worst"
        causes = "stale or other weights in the engine, another chat template or tokenizer, logprobs not at temperature"
        if self.stop and not mean <= self.stop:
            raise TrainingError(
                f"{told}; above train.parity_stop = {self.stop}, so no step is taken and the last version stays",
                f"look for {causes}; `corral calls` shows the version and template of each call",
            )
        if self.alarm and not mean <= self.alarm:
            self.say(f"{told}; above train.parity_alarm = {self.alarm}: look for {causes}")
