"""What a call is to its rollout, where headers or lengths tell; what the words tell is in test_forks.py."""

from __future__ import annotations

import json

from appliance.config.sections import BranchesSection
from appliance.trees.branches import headers
from appliance.trees.forks import Cause, forks
from appliance.trees.recovery import recovered
from appliance.types import Branch, Credit, Message, Said, Sample
from tests.support.calls import a_call, a_sample

SYSTEM, USER = Message("system", "You are an agent."), Message("user", "please mend the tests")


def told(n: int, sample: Sample, *messages: Message, answer: str = "ok", **kept: str) -> Said:
    return Said(a_call(n, sample, lineage=json.dumps({"headers": kept})), messages, (), Message("assistant", answer))


def branches(*calls: Said) -> list[Branch]:
    return [role.branch for role in recovered(calls, BranchesSection()).roles]


def test_codex_says_by_its_window_that_it_compacted() -> None:
    window = "x-codex-window-id"
    before = told(0, a_sample([1, 2], [3]), SYSTEM, USER, **{window: "a:0"})
    after = told(1, a_sample([1, 9], [4]), SYSTEM, Message("user", "state: half done"), **{window: "a:1"})
    on = told(2, a_sample([1, 9, 4, 5], [6]), SYSTEM, **{window: "a:1"})
    assert branches(before, after, on) == [Branch.CONTINUATION, Branch.COMPACTION, Branch.COMPACTION]
    assert recovered([before, after, on], BranchesSection()).roles[1].parent == 0


def test_a_summary_too_poor_to_be_found_again_is_trained_as_the_compaction_that_it_is() -> None:
    """As a policy may write it; the harness asked for it and went on from it all the same."""
    told_so = {"x-codex-window-id": "a:0"}
    asked = json.dumps({"kind": "auxiliary", "headers": told_so})
    before = told(0, a_sample([1, 2], [3]), SYSTEM, USER, answer="first do this", **told_so)
    poor = Said(a_call(1, a_sample([1, 2, 3, 4], [5]), lineage=asked), (SYSTEM, USER), (), Message("assistant", ""))
    after = told(2, a_sample([1, 9], [4]), SYSTEM, Message("user", "(no summary)"), **{"x-codex-window-id": "a:1"})
    found = recovered([before, poor, after], BranchesSection())
    assert [role.branch for role in found.roles] == [Branch.CONTINUATION, Branch.COMPACTION, Branch.COMPACTION]
    assert (found.roles[1].reentered, found.roles[2].parent) == (2, 1) and found.left_out == {}


def test_two_summaries_in_the_same_words_are_two_compactions() -> None:
    """A policy that got nowhere in a window sums up the next one alike, so that both windows begin alike."""
    text, ask = "I tried it and it did not work", Message("user", "sum up")
    asked = [json.dumps({"kind": "auxiliary", "headers": {"x-codex-window-id": f"a:{n}"}}) for n in range(2)]
    begun = (SYSTEM, USER, Message("user", f"So far: {text}"))
    tried = [(SYSTEM, USER, Message("assistant", "first"), ask), (*begun, Message("assistant", "try"), ask)]
    sums = [
        Said(a_call(n, a_sample([1, 5, n], [6]), lineage=mark), messages, (), Message("assistant", text))
        for n, mark, messages in zip((1, 3), asked, tried, strict=True)
    ]
    calls = [
        told(0, a_sample([1, 2], [3]), SYSTEM, USER, answer="first", **{"x-codex-window-id": "a:0"}),
        sums[0],
        told(2, a_sample([1, 9], [4]), *begun, answer="try", **{"x-codex-window-id": "a:1"}),
        sums[1],
        told(4, a_sample([1, 9], [8]), *begun, answer="stop", **{"x-codex-window-id": "a:2"}),
    ]
    found = recovered(calls, BranchesSection())
    assert [(r.parent, r.reentered) for r in found.roles] == [(None, None), (0, 2), (1, None), (2, 4), (3, None)]
    assert [r.branch for r in found.roles] == [Branch.CONTINUATION, *[Branch.COMPACTION] * 4]
    assert found.left_out == {} and {f.cause for f in forks(calls, found, str)} == {Cause.COMPACTION}


def test_a_sub_agents_turns_stay_its_own_and_the_main_agent_goes_on() -> None:
    agent = {"x-claude-code-agent-id": "b7"}
    calls = [
        told(0, a_sample([1, 2], [3]), SYSTEM, USER),
        told(1, a_sample([8], [7]), Message("user", "count"), **agent),
        told(2, a_sample([8, 7, 6], [5]), Message("user", "count"), **agent),
        told(3, a_sample([1, 2, 3, 4], [9]), SYSTEM, USER),
    ]
    found = recovered(calls, BranchesSection())
    assert [r.branch for r in found.roles] == [
        Branch.CONTINUATION, Branch.SUB_AGENT, Branch.SUB_AGENT, Branch.CONTINUATION,
    ]  # fmt: skip
    assert [r.parent for r in found.roles] == [None, 0, 1, 0]
    left = recovered(calls, BranchesSection(sub_agent=Credit.LEAVE_OUT))
    assert sorted(left.left_out) == [1, 2] and len(left.rows) == 1
    assert set(left.rows[0].calls.tolist()) == {-1, 0, 3}


def test_two_agents_with_one_task_are_no_retry_and_both_train() -> None:
    """As claude-code starts them in the background: the second's first call repeats the first's, word for word."""
    main = told(0, a_sample([1, 2], [3]), SYSTEM, USER)
    marks = [json.dumps({"kind": "sub-agent", "agent": name}) for name in ("a", "b")]
    first, second = (
        Said(
            a_call(n, a_sample([8], [7, n]), lineage=mark), (Message("user", "count"),), (), Message("assistant", "ok")
        )
        for n, mark in enumerate(marks, 1)
    )
    found = recovered([main, first, second], BranchesSection())
    assert [f.cause for f in forks([main, first, second], found, str)] == [Cause.SUB_AGENT, Cause.SUB_AGENT]
    assert found.left_out == {} and len(found.rows) == 3


def test_a_history_cut_to_its_tail_is_a_compaction_that_kept_the_tail() -> None:
    turns = [Message("user" if n % 2 else "assistant", f"turn number {n}") for n in range(1, 9)]
    whole = told(0, a_sample([1, 2, 3, 4], [5]), SYSTEM, USER, *turns)
    cut = told(1, a_sample([1, 4], [6]), SYSTEM, *turns[-4:])
    role = recovered([whole, cut], BranchesSection()).roles[1]
    assert (role.branch, role.parent, role.kept) == (Branch.COMPACTION, 0, 5)


def test_headers_that_are_no_headers_are_none() -> None:
    for lineage in ("", "[1]", '{"headers": 3}', "{broken"):
        assert headers(a_call(0, None, lineage=lineage)) == {}
    assert headers(a_call(0, None, lineage='{"thread-id":"a"}')) == {"thread-id": "a"}
