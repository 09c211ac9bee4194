"""The captured calls of one rollout, each of a few token ids: built one by one, or drawn by hypothesis."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from appliance.types import Call, Message, Said, Sample, StopReason

tokens = st.integers(0, 2)
calls = st.lists(
    st.tuples(st.lists(tokens, min_size=1, max_size=7), st.lists(tokens, min_size=1, max_size=4)),
    min_size=1,
    max_size=9,
)
"""The calls of a rollout as hypothesis draws them: the prompt ids and the sampled ids of each."""


def a_sample(prompt: list[int], sampled: list[int], first_logprob: float = -1.0) -> Sample:
    """A sample of policy version 0; its logprobs fall by 1 from token to token."""
    logprobs = np.array([first_logprob - n for n in range(len(sampled))], np.float32)
    return Sample(np.array(prompt, np.int32), np.array(sampled, np.int32), logprobs, StopReason.STOP, 0)


def a_call(
    sequence: int, sample: Sample | None, delivered: bool = True, lineage: str = "", at: float | None = None
) -> Call:
    """A call of 0.9 s on the chat wire without raw bytes; without `at` it starts at second `sequence`."""
    start = float(sequence) if at is None else at
    return Call(sequence, 1, sequence, "chat", sample, b"", b"", start, start + 0.9, delivered, lineage)


def wordless(*calls: Call) -> list[Said]:
    """These calls with no message in and an empty answer, for what looks at token ids alone."""
    return [Said(call, (), (), Message("assistant")) for call in calls]
