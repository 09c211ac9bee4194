"""What a store is given to write, as small as it may be: the plan of a rollout, a sample, the draft of a call."""

from __future__ import annotations

import numpy as np

from appliance.record.calls import CallDraft
from appliance.types import Purpose, RolloutPlan, Sample, StopReason


def a_plan(index: int = 0, run: str = "r1") -> RolloutPlan:
    """The plan of rollout `index` of one group of a training step."""
    return RolloutPlan(run, Purpose.TRAIN, 1, "pi", "count-001", index)


def a_sample(prompt: list[int], sampled: list[int]) -> Sample:
    """A sample of policy version 3; its logprobs rise from -1 to 0."""
    logprobs = np.linspace(-1, 0, len(sampled), dtype=np.float32)
    return Sample(np.array(prompt, np.int32), np.array(sampled, np.int32), logprobs, StopReason.STOP, 3)


def a_draft(sequence: int, sample: Sample | None) -> CallDraft:
    """The draft of an answered call on the chat wire, from second 1 to second 2."""
    return CallDraft(sequence, "chat", b"{}", b"{}", b'{"messages":[]}', sample, "stop", 1.0, 2.0)
