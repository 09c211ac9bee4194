"""Recovery as sentences: what a tree of calls must be (I4, E11)."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.trees.tree import Tree, recover, rows
from tests.support.calls import a_sample, calls


def shape(tree: Tree) -> list[tuple]:
    """The forest without node numbers: sorted (ids to the end of the node, own length, sampled?)."""
    return sorted((tuple(tree.ids(n)), len(node.ids), node.call >= 0) for n, node in enumerate(tree.nodes))


def test_a_conversation_that_only_grows_is_one_row() -> None:
    first = a_sample([1, 2], [3, 4])
    second = a_sample([1, 2, 3, 4, 5], [6])
    (row,) = rows([first, second], [True, True])
    assert list(row.ids) == [1, 2, 3, 4, 5, 6]
    assert list(row.mask) == [False, False, True, True, False, True]
    assert list(row.behaviour_logprobs) == [0, 0, -1, -2, 0, -1]
    assert list(row.calls) == [-1, -1, 0, 0, -1, 1]


def test_a_compacted_history_becomes_a_second_path() -> None:
    long, compacted = a_sample([1, 2, 3, 4], [5]), a_sample([1, 9], [7])
    tree = recover([long, compacted])
    assert len(tree.ends) == 2 and tree.num_unique_tokens == 1 + 4 + 2


def test_one_prompt_sampled_twice_gives_siblings_even_when_equal() -> None:
    tree = recover([a_sample([1], [2, 3]), a_sample([1], [2, 3])])
    assert [(node.parent, list(node.ids)) for node in tree.nodes] == [(-1, [1]), (0, [2, 3]), (0, [2, 3])]


def test_a_fork_inside_an_answer_splits_it_and_keeps_its_owner() -> None:
    tree = recover([a_sample([1], [2, 3, 4]), a_sample([1, 2, 9], [5])])
    owners = {tuple(tree.ids(n)): (node.call, node.offset) for n, node in enumerate(tree.nodes)}
    assert owners[(1, 2)] == (0, 0) and owners[(1, 2, 3, 4)] == (0, 1) and owners[(1, 2, 9)] == (-1, 0)


@settings(max_examples=150, deadline=None)
@given(calls)
def test_I4_every_path_is_exactly_its_call(drawn: list) -> None:
    samples = [a_sample(*c) for c in drawn]
    tree = recover(samples)
    for sample, leaf in zip(samples, tree.leaves, strict=True):
        assert list(tree.ids(leaf)) == [*sample.prompt_ids, *sample.sampled_ids]


@settings(max_examples=150, deadline=None)
@given(calls, st.integers())
def test_I4_the_tree_does_not_depend_on_the_order_of_arrival(drawn: list, seed: int) -> None:
    shuffled = drawn[:]
    random.Random(seed).shuffle(shuffled)
    assert shape(recover([a_sample(*c) for c in drawn])) == shape(recover([a_sample(*c) for c in shuffled]))


@settings(max_examples=150, deadline=None)
@given(calls)
def test_E11_the_trained_tokens_are_exactly_the_sampled_ones(drawn: list) -> None:
    samples = [a_sample(p, s, first_logprob=-10.0 * i) for i, (p, s) in enumerate(drawn)]
    found = rows(samples, [True] * len(samples))
    trained = sorted(float(x) for row in found for x in row.behaviour_logprobs[row.mask])
    assert trained == sorted(float(x) for s in samples for x in s.logprobs)


@settings(max_examples=150, deadline=None)
@given(calls)
def test_no_row_is_the_beginning_of_another(drawn: list) -> None:
    found = rows([a_sample(*c) for c in drawn], [True] * len(drawn))
    assert sum(int(row.mask.sum()) for row in found) == sum(len(s) for _, s in drawn)
