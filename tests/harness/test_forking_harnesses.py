"""Harnesses that really fork, in real sandboxes: which branches they make, and what a setting trains of them.

Their scripted policy plays a task whose second command needs what the first one printed.
"""

from __future__ import annotations

from collections import Counter

import pytest

from appliance.config.runconfig import CHECKOUT
from appliance.config.sections import BranchesSection
from appliance.runs.scripted_responder import byte_renderer
from appliance.tasks.generated import tasks_folder
from appliance.tasks.pack import Task
from appliance.trees.forks import Cause, forks
from appliance.trees.recovery import Recovered, recovered
from appliance.types import Branch, Credit, Said
from tests.support.played import played

PACK = tasks_folder(CHECKOUT / "data" / "pocket")
TASK = "find-value-train-00"
LEAVE_OUT = BranchesSection(compaction=Credit.LEAVE_OUT, sub_agent=Credit.LEAVE_OUT)


def trained(calls: list[Said], found: Recovered) -> dict[Branch, int]:
    """Branch → sampled tokens that are trained, each once."""
    counts: Counter[Branch] = Counter()
    for row in found.rows:
        for call in row.calls[row.mask].tolist():
            counts[found.roles[call].branch] += 1
    kept = [c.call.sample for n, c in enumerate(calls) if n not in found.left_out]
    assert sum(counts.values()) == sum(len(s.sampled_ids) for s in kept if s is not None)
    return dict(counts)


@pytest.mark.real
def test_codex_compacts_after_each_command_and_a_setting_leaves_that_out() -> None:
    trial = played("codex-compact", Task.from_dir(PACK / TASK))
    assert trial.rollout.reward == 1.0, trial.rollout.failure_detail
    found = recovered(trial.calls, BranchesSection())
    assert [role.branch for role in found.roles] == [Branch.CONTINUATION, *[Branch.COMPACTION] * 4]
    assert [role.reentered for role in found.roles] == [None, 2, None, 4, None]
    assert "It printed pilot=salmon" in trial.calls[2].messages[-1].content, "the value survives in the summary alone"
    causes = [fork.cause for fork in forks(trial.calls, found, byte_renderer().decode)]
    assert causes == [Cause.COMPACTION] * 4 and len(found.rows) == 5
    whole = trained(trial.calls, found)
    left = trained(trial.calls, recovered(trial.calls, LEAVE_OUT))
    assert left == {Branch.CONTINUATION: whole[Branch.CONTINUATION]} and whole[Branch.COMPACTION] > 0


@pytest.mark.real
def test_a_helper_does_the_task_and_a_setting_leaves_it_out() -> None:
    trial = played("team", Task.from_dir(PACK / TASK))
    assert trial.rollout.reward == 1.0, trial.rollout.failure_detail
    found = recovered(trial.calls, BranchesSection())
    main, helper = Branch.CONTINUATION, Branch.SUB_AGENT
    assert [role.branch for role in found.roles] == [main, helper, helper, helper, main]
    assert (found.roles[1].parent, found.roles[3].reentered) == (0, 4)
    assert [f.cause for f in forks(trial.calls, found, byte_renderer().decode)] == [Cause.SUB_AGENT]
    whole = trained(trial.calls, found)
    left = trained(trial.calls, recovered(trial.calls, LEAVE_OUT))
    assert left == {main: whole[main]} and whole[helper] > 0
