"""How much a harness repeats itself, and what of its tokens is used; by records of a few calls."""

from __future__ import annotations

import pytest

from appliance.config.sections import BranchesSection
from appliance.operate.prompt_stability import stability
from appliance.trees.recovery import recovered
from appliance.trees.utilisation import Use, of_metrics, shares, use
from appliance.types import Message, Said, Tool, ToolCall
from tests.support.calls import a_call, a_sample, wordless

LS = Message("assistant", tool_calls=(ToolCall("1", "bash", "{}"),))


def a_rollout(clock: str = "10:00", tools: tuple[Tool, ...] = (Tool("bash"),), extra: bool = False) -> list[Said]:
    """Two calls of ten and fourteen tokens, whose third token says the time."""
    head = [1, 2, int(clock.replace(":", "")), 4, 5, 6, 7, 8]
    first = (Message("system", f"It is {clock} now."), Message("user", "list"))
    second = (*first, LS, Message("tool", "a b"), *((Message("user", "and?"),) if extra else ()))
    return [
        Said(a_call(0, a_sample(head, [9, 10])), first, tools, LS),
        Said(a_call(1, a_sample([*head, 9, 10, 11, 12], [13, 14])), second, tools, Message("assistant", "done")),
    ]


def test_a_harness_that_repeats_itself_shares_all_but_what_is_sampled_anew() -> None:
    found = stability([a_rollout(), a_rollout(), a_rollout()])
    assert (found.same_prompts, found.same_tools, found.same_order, found.first_differences) == (1, 1, 1, ())
    assert found.calls == (2, 2, 2)
    # flat 3 x (10 + 14); a rollout's tree holds 14; siblings do not share samples: 8 + 3 x 2 + 2 + 2 + 2 x 2
    assert found.shareable_tokens == pytest.approx(1 - 22 / 72)
    assert found.shareable_between == pytest.approx(1 - 22 / 42)


def test_a_clock_is_shown_and_costs_what_follows_it() -> None:
    found = stability([a_rollout("10:00"), a_rollout("10:01")])
    assert (found.same_prompts, found.same_tools, found.same_order) == (0, 1, 1)
    assert found.first_differences == ("message 0 (system): 'It is 10:00 now.' against 'It is 10:01 now.'",)
    assert found.shareable_between == pytest.approx(1 - 26 / 28)  # only the two tokens before the clock


def test_other_tools_another_order_and_a_missing_call_count() -> None:
    usual, other = a_rollout(), a_rollout(tools=(Tool("shell"),), extra=True)
    found = stability([usual, usual[:], other, usual[:1]])
    assert found.same_order == 0.5 and found.calls == (2, 2, 2, 1)
    assert found.same_tools == pytest.approx((2 + 0 + 1) / 6) and found.same_prompts == pytest.approx((2 + 1 + 1) / 6)
    assert found.as_json()["rollouts"] == 4


def test_one_rollout_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="at least two"):
        stability([a_rollout(), []])


def test_utilisation_counts_what_other_ways_of_logging_keep() -> None:
    """Three answers of one, two and three tokens; the third starts from a history cut after the first question."""
    record = wordless(
        a_call(0, a_sample([1, 2], [3])),
        a_call(1, a_sample([1, 2, 3, 4], [5, 6])),
        a_call(2, a_sample([1, 9], [7, 8, 7])),
    )
    counts = use(record, recovered(record, BranchesSection()))
    assert counts == Use(6, 6, call_tokens=14, tree_tokens=10, last_call_tokens=3, outcome_tokens=3)
    assert shares(counts + counts) == {
        "trained": 1.0,
        "last_call_only": 0.5,
        "outcome_only": 0.5,
        "flat_per_unique": 1.4,
    }
    assert of_metrics([counts.metrics(), {"loss": 1.0}]) == counts
    assert shares(Use())["trained"] is None
