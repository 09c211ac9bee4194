"""Packing as sentences: what is shared, what is trained, and where the budget cuts (I4, I7, E11, E15)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.errors import TrainingError
from appliance.train.batch import Packed, Sequence, pack, split
from appliance.trees.tree import rows
from appliance.types import Sample, StopReason

Term = tuple[tuple[int, ...], float, float, int]


def a_row(ids: list[int], trained: list[int], advantage: float = 1.0, rollout: int = 0) -> Sequence:
    mask = np.isin(np.arange(len(ids)), trained)
    logprobs = np.where(mask, -np.arange(len(ids), dtype=np.float32) / 8, np.nan)
    return Sequence(np.array(ids, np.int32), mask, logprobs.astype(np.float32), advantage, rollout)


def terms_of(packs: list[Packed]) -> Counter[Term]:
    """Every loss term as (token ids up to and with the trained one, behaviour logprob, advantage, rollout)."""
    found: Counter[Term] = Counter()
    for p in packs:
        columns = (p.targets, p.behaviour_logprobs, p.advantages, p.rollouts)
        for target, logprob, advantage, rollout in zip(*columns, strict=True):
            found[(_path(p, int(target)), float(logprob), float(advantage), int(rollout))] += 1
    return found


def terms_in(sequences: list[Sequence]) -> Counter[Term]:
    """The same, read from the rows."""
    return Counter(
        (tuple(map(int, s.ids[: t + 1])), float(s.behaviour_logprobs[t]), float(np.float32(s.advantage)), s.rollout)
        for s in sequences
        for t in np.flatnonzero(s.mask)
    )


def _path(packed: Packed, token: int) -> tuple[int, ...]:
    way: list[int] = []
    while token >= 0:
        way.append(int(packed.ids[token]))
        token = int(packed.parents[token])
    return tuple(reversed(way))


ids = st.lists(st.integers(0, 2), min_size=2, max_size=7)
forests = st.lists(st.tuples(ids, st.integers(0, 3), st.integers(1, 2**6 - 1)), min_size=1, max_size=9).map(
    lambda drawn: [
        a_row(row, [t for t in range(1, len(row)) if bits >> (t - 1) & 1], float(rollout) - 1.5, rollout)
        for row, rollout, bits in drawn
    ]
)


def test_rows_under_one_prompt_share_it() -> None:
    (p,) = pack([a_row([5, 6, 7, 8], [2, 3]), a_row([5, 6, 9], [2], rollout=1)], 100)
    assert list(p.ids) == [5, 6, 7, 8, 9]
    assert list(p.positions) == [0, 1, 2, 3, 2]
    assert list(p.parents) == [-1, 0, 1, 2, 1]
    assert list(p.ends) == [5, 5, 4, 4, 5]
    assert list(p.predecessors) == [1, 2, 1] and list(p.labels) == [7, 8, 9]
    assert (p.num_tokens, p.num_flat_tokens, p.num_terms) == (5, 7, 3)


def test_a_token_sees_its_ancestors_and_itself_and_nothing_else() -> None:
    (p,) = pack([a_row([5, 6, 7, 8], [3]), a_row([5, 6, 9], [2]), a_row([4, 6], [1])], 100)
    for query in range(p.num_tokens):
        ancestors, token = set(), query
        while token >= 0:
            ancestors.add(token)
            token = int(p.parents[token])
        assert set(np.flatnonzero(p.mask()[query])) == ancestors


def test_two_rollouts_that_sampled_the_same_token_are_two_terms_with_one_target() -> None:
    (p,) = pack([a_row([5, 6], [1], 1.0, 0), a_row([5, 6], [1], -0.6, 1)], 100)
    assert list(p.targets) == [1, 1] and p.num_tokens == 2
    assert list(p.advantages) == [1.0, np.float32(-0.6)] and list(p.rollouts) == [0, 1]


def test_what_is_behind_the_last_trained_token_and_rows_without_one_are_not_computed() -> None:
    (p,) = pack([a_row([5, 6, 7, 8], [1]), a_row([1, 2, 3], [])], 100)
    assert list(p.ids) == [5, 6]
    assert pack([a_row([1, 2, 3], [])], 100) == []


def test_a_term_knows_its_place_in_its_rollout() -> None:
    late = replace(a_row([5, 6, 9], [2], rollout=1), times=np.array([0, 0, 4]))
    (p,) = pack([a_row([5, 6, 7], [2]), late], 100)
    assert dict(zip(p.rollouts.tolist(), p.times.tolist(), strict=True)) == {0: -1, 1: 4}


@given(forests, st.integers(7, 30), st.randoms())
@settings(max_examples=100, deadline=None)
def test_packs_hold_every_term_once_within_the_budget_in_an_order_of_their_own(sequences, budget, random) -> None:
    packs = pack(sequences, budget)
    assert terms_of(packs) == terms_in(sequences)
    assert all(p.num_tokens <= budget and not np.isnan(p.behaviour_logprobs).any() for p in packs)
    shuffled = list(sequences)
    random.shuffle(shuffled)
    for p, q in zip(packs, pack(shuffled, budget), strict=True):
        assert np.array_equal(p.ids, q.ids) and np.array_equal(p.parents, q.parents)
        assert np.array_equal(p.targets, q.targets) and np.array_equal(p.advantages, q.advantages)


def test_E11_the_trained_tokens_are_exactly_the_sampled_tokens_of_the_calls() -> None:
    def sample(prompt: list[int], sampled: list[int]) -> Sample:
        logprobs = -np.arange(1, len(sampled) + 1, dtype=np.float32) - len(prompt)
        return Sample(np.array(prompt, np.int32), np.array(sampled, np.int32), logprobs, StopReason.STOP, 0)

    calls = [sample([1, 2], [3, 4]), sample([1, 2, 3, 4, 5], [6]), sample([1, 2, 3, 9], [7, 8]), sample([2], [3])]
    sequences = [Sequence(r.ids, r.mask, r.behaviour_logprobs, 0.5, 0) for r in rows(calls, [True] * len(calls))]
    recorded = Counter(
        ((*map(int, c.prompt_ids), *map(int, c.sampled_ids[: i + 1])), float(c.logprobs[i]), 0.5, 0)
        for c in calls
        for i in range(len(c.sampled_ids))
    )
    assert terms_of(pack(sequences, 100)) == recorded
    assert terms_of(pack(sequences, 6)) == recorded


def test_a_cut_repeats_the_prefix_and_trains_nothing_of_it_twice() -> None:
    sequences = [a_row([5, 6, 7, 8], [1, 2, 3]), a_row([5, 6, 9, 9], [2, 3])]
    packs = pack(sequences, 5)
    assert [list(p.ids) for p in packs] == [[5, 6, 7, 8], [5, 6, 9, 9]]
    assert [list(p.targets) for p in packs] == [[1, 2, 3], [2, 3]]


def test_a_path_longer_than_the_budget_is_an_error_that_names_the_setting() -> None:
    with pytest.raises(TrainingError, match="rollout 3 has a path of 6 tokens") as raised:
        pack([a_row([1, 2, 3, 4, 5, 6], [5], rollout=3)], 5)
    assert "train.row_tokens" in raised.value.remedy


def test_a_row_whose_first_token_is_trained_has_no_context() -> None:
    with pytest.raises(ValueError, match="no context"):
        a_row([1, 2], [0])


@given(forests, st.integers(1, 5), st.randoms())
@settings(max_examples=50, deadline=None)
def test_minibatches_keep_rollouts_whole_and_do_not_depend_on_the_order(sequences, count, random) -> None:
    parts = split(sequences, count)
    members = [{s.rollout for s in part} for part in parts]
    assert sum(len(part) for part in parts) == len(sequences)
    assert len(set().union(*members)) == sum(len(m) for m in members)
    shuffled = list(sequences)
    random.shuffle(shuffled)
    assert [{s.rollout for s in part} for part in split(shuffled, count)] == members
