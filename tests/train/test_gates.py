"""The parity gate: which harness differs, when it warns, when it stops."""

from __future__ import annotations

import numpy as np
import pytest

from appliance.errors import TrainingError
from appliance.train.gates import ParityGate

ROLLOUTS = np.array([1, 1, 2, 2, 3])
GAPS = np.array([0.01, 0.03, 0.2, 0.4, 9.0], np.float32)  # rollout 3 is of an older version and is not judged


def a_gate(alarm: float, stop: float) -> tuple[ParityGate, list[str]]:
    said: list[str] = []
    return ParityGate({1: "pi", 2: "codex"}, alarm, stop, said.append), said


def test_the_gap_is_measured_by_harness_and_the_alarm_names_the_one_that_differs() -> None:
    gate, said = a_gate(0.1, 0.5)
    gate(ROLLOUTS, GAPS)
    assert gate.metrics == pytest.approx({"logprob_gap/pi": 0.02, "logprob_gap/codex": 0.3})
    assert len(said) == 1 and said[0].startswith("codex: trainer and sampler differ by 0.3000 nats")


def test_above_the_second_threshold_it_stops_and_says_which_harness() -> None:
    gate, _ = a_gate(0.1, 0.25)
    with pytest.raises(TrainingError, match=r"codex: .* no step is taken and the last version stays"):
        gate(ROLLOUTS, GAPS)


def test_a_gap_that_is_no_number_stops_too() -> None:
    gate, _ = a_gate(0.1, 0.25)
    with pytest.raises(TrainingError, match="codex: "):
        gate(ROLLOUTS, np.full(5, np.nan, np.float32))


def test_thresholds_of_zero_neither_warn_nor_stop() -> None:
    gate, said = a_gate(0.0, 0.0)
    gate(ROLLOUTS, GAPS)
    assert not said and set(gate.metrics) == {"logprob_gap/pi", "logprob_gap/codex"}
