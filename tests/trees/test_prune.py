"""Which calls train and which do not, each with its reason; built as records of a few calls."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.config.sections import BranchesSection
from appliance.train.batch import Sequence
from appliance.trees.forks import forks
from appliance.trees.recovery import Recovered, digests, recovered
from appliance.types import Call, Credit, Message, Said, Sample
from tests.support.calls import a_call, a_sample, calls, wordless


def reasons(*calls: Call, **settings: object) -> dict[int, str]:
    return recovered(wordless(*calls), BranchesSection(**settings)).left_out  # type: ignore[arg-type]


def test_an_undelivered_answer_is_left_out_unless_it_was_continued() -> None:
    lost, kept = a_sample([1], [2]), a_sample([1], [3])
    later = a_sample([1, 3, 4], [5])
    found = reasons(a_call(0, lost, False), a_call(1, kept, False), a_call(2, later), a_call(3, None))
    assert found == {0: "the harness never took the answer", 3: "recorded without token ids"}


def test_a_sub_agents_call_trains_by_default_and_is_left_out_when_the_run_says_so() -> None:
    ordinary = a_call(0, a_sample([1], [2]), lineage='{"thread-id":"a"}')
    helper = a_call(1, a_sample([1], [3]), lineage='{"thread-id":"b","x-openai-subagent":"collab_spawn"}')
    assert reasons(ordinary, helper) == {}
    left = reasons(ordinary, helper, sub_agent=Credit.LEAVE_OUT)
    assert left == {1: "a sub-agent's call (branches.sub_agent = leave_out)"}


def test_a_tree_with_too_many_leaves_is_left_out_whole() -> None:
    calls = [a_call(n, a_sample([n, 9], [1])) for n in range(4)]
    assert reasons(*calls, max_leaves=4, auxiliary=Credit.INCLUDE) == {}
    found = reasons(*calls, max_leaves=3, auxiliary=Credit.INCLUDE)
    assert set(found.values()) == {"over-branched: 4 leaves, more than branches.max_leaves = 3"} and len(found) == 4


def words(sequence: int, sample: Sample, *messages: Message, answer: str, at: float | None = None) -> Said:
    return Said(a_call(sequence, sample, at=at), messages, (), Message("assistant", answer))


USER = Message("user", "please do the thing")


def test_of_a_retried_prompt_the_leaf_that_was_not_gone_on_from_is_dead() -> None:
    first = words(0, a_sample([1], [2]), USER, answer="one")
    again = words(1, a_sample([1], [3]), USER, answer="two")
    after = words(2, a_sample([1, 3, 4], [5]), USER, again.answer, Message("user", "more"), answer="three")
    found = recovered([first, again, after], BranchesSection())
    assert found.left_out == {0: "a dead leaf: the harness asked the same again in call 1"}
    assert sorted(found.rows[0].calls.tolist()) == [-1, -1, 1, 2]


def test_a_turn_that_drifted_costs_no_other_turn_its_training() -> None:
    """The echo of the second answer was encoded anew: a fork; every sampled token still trains, once (rllm#352)."""
    first = words(0, a_sample([1], [2, 3]), USER, answer="one")
    second = words(1, a_sample([1, 2, 3, 4], [5, 6]), USER, first.answer, Message("user", "b"), answer="two")
    drifted = a_sample([1, 2, 3, 4, 5, 9, 7], [8])
    third = words(2, drifted, USER, first.answer, Message("user", "b"), second.answer, Message("user", "c"), answer="x")
    found = recovered([first, second, third], BranchesSection())
    assert found.left_out == {}
    trained = [(c, t) for row in found.rows for c, t in zip(row.calls[row.mask], row.ids[row.mask], strict=True)]
    assert sorted(trained) == [(0, 2), (0, 3), (1, 5), (1, 6), (2, 8)]


def test_an_answer_that_the_harness_threw_away_is_a_dead_leaf() -> None:
    bad = words(0, a_sample([1], [2]), USER, answer="no tool call")
    after = words(1, a_sample([1, 7], [5]), USER, Message("user", "answer with a tool call"), answer="fine")
    assert dead(recovered([bad, after], BranchesSection())) == [0]


def dead(found: Recovered) -> list[int]:
    return [n for n, reason in found.left_out.items() if reason.startswith("a dead leaf")]


def test_two_answers_to_one_prompt_at_once_both_stay() -> None:
    one = words(0, a_sample([1], [2]), USER, answer="one", at=0.0)
    two = words(1, a_sample([1], [3]), USER, answer="two", at=0.1)
    assert recovered([one, two], BranchesSection()).left_out == {}


# ------------------------------------------------------------------ whatever was called, in whatever order

told = st.tuples(
    st.booleans(), st.sampled_from(["", '{"kind":"sub-agent"}', '{"kind":"auxiliary"}']), st.integers(0, 5)
)


@st.composite
def records(draw: st.DrawFn) -> list[Said]:
    """Calls with ids, words that follow them, marks and times that may collide and overlap."""
    made: list[Said] = []
    for n, (prompt, sampled) in enumerate(draw(calls)):
        delivered, lineage, at = draw(told)
        messages = tuple(Message("user" if t else "assistant", f"word {t}") for t in prompt)
        call = a_call(n, a_sample(prompt, sampled, -10.0 * n), delivered, lineage, float(at))
        made.append(Said(call, messages, (), Message("assistant", f"word {sampled[0]}")))
    return made


@settings(max_examples=60, deadline=None)
@given(records())
def test_E11_every_sampled_token_is_trained_once_or_left_out_with_a_reason(record: list[Said]) -> None:
    found = recovered(record, BranchesSection())
    trained = sorted(float(x) for row in found.rows for x in row.behaviour_logprobs[row.mask])
    kept = [c for n, c in enumerate(record) if n not in found.left_out]
    assert trained == sorted(float(x) for c in kept if c.call.sample for x in c.call.sample.logprobs)
    assert all(found.left_out.values())


@settings(max_examples=60, deadline=None)
@given(records(), st.integers())
def test_I4_roles_reasons_and_loss_inputs_do_not_depend_on_the_order_of_arrival(record: list[Said], seed: int) -> None:
    order = list(range(len(record)))
    random.Random(seed).shuffle(order)
    straight, shuffled = recovered(record, BranchesSection()), recovered([record[i] for i in order], BranchesSection())
    assert {order[n]: r for n, r in shuffled.left_out.items()} == straight.left_out
    assert [shuffled.roles[n].branch for n in range(len(order))] == [straight.roles[i].branch for i in order]
    both = [
        digests(Sequence(r.ids, r.mask, r.behaviour_logprobs, 1.0, 1) for r in f.rows) for f in (straight, shuffled)
    ]
    assert both[0] == both[1]


@settings(max_examples=60, deadline=None)
@given(records())
def test_a_tree_has_one_leaf_and_one_more_for_each_fork_and_parents_come_first(record: list[Said]) -> None:
    found = recovered(record, BranchesSection())
    assert len(forks(record, found, lambda ids: str(ids.tolist()))) == len(found.tree.ends) - 1
    for n, role in enumerate(found.roles):
        assert role.parent is None or record[role.parent].call.started_at <= record[n].call.started_at
