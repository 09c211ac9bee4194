"""Which calls of a rollout are trained and which are not, each with its reason; nothing leaves the record. Pure.

Source: ClawGym II's filters (arXiv 2608.16798): drop dead leaves of retries and regenerations, undelivered answers and
rollouts with too many leaves. We add stray roots, and say each reason in words a person can act on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from appliance.trees.branches import Role, agent
from appliance.trees.tree import Tree
from appliance.types import Branch, CallKind, Credit, Said

if TYPE_CHECKING:
    from appliance.config.sections import BranchesSection  # only a type here: trees load no pydantic

NO_IDS = "recorded without token ids"
NOTHING_SAMPLED = "nothing was sampled"
UNDELIVERED = "the harness never took the answer"
STRAY = "a stray root: nothing that the rollout's agent said leads to it"


def prune(
    calls: Sequence[Said], roles: Sequence[Role], tree: Tree, numbers: Sequence[int], settings: BranchesSection
) -> dict[int, str]:
    """Calls that are not trained, by position, with the reason. `numbers[i]` is the call of the tree's sample i.

    An undelivered answer that a later prompt continues was seen by the harness after all (a replay), so it stays.
    """
    reasons: dict[int, str] = {}
    continued = {role.parent for role in roles}
    main = next((i for i, role in enumerate(roles) if role.parent is None and role.branch is not Branch.AUXILIARY), 0)
    for i, (call, role) in enumerate(zip(calls, roles, strict=True)):
        is_root = role.parent is None and role.reentered is None and i != main
        stray = STRAY if role.branch is Branch.AUXILIARY and is_root and _is_stray(call) else ""
        reason = _broken(call, i in continued) or stray or _dead(i, calls, roles, continued)
        if reason := reason or _left_out(role, settings):
            reasons[i] = reason
    return reasons | _over_branched(tree, numbers, reasons, settings.max_leaves)


def _broken(call: Said, is_continued: bool) -> str:
    sample = call.call.sample
    if sample is None:
        return NO_IDS
    if not len(sample.sampled_ids):
        return NOTHING_SAMPLED
    return "" if call.call.delivered or is_continued else UNDELIVERED


def _dead(i: int, calls: Sequence[Said], roles: Sequence[Role], continued: set[int | None]) -> str:
    """A leaf that a retry or regeneration left behind: a later call of the same branch asks the same again, or goes
    on from the same words without this answer. One that a later call echoes in other tokens (drift) is none.
    """
    place = (roles[i].branch, roles[i].parent, agent(calls[i].call))
    alike = [j for j, r in enumerate(roles) if j != i and (r.branch, r.parent) == place[:2]]
    rivals = [j for j in alike if agent(calls[j].call) == place[2]]
    if i in continued or not calls[i].messages or roles[i].reentered is not None or not rivals:
        return ""
    own = [m.canonical() for m in calls[i].messages]
    start, end = calls[i].call.started_at, calls[i].call.ended_at
    for j in rivals:
        other = calls[j]
        begins = [m.canonical() for m in other.messages[: len(own)]] == own
        is_twin, is_later = len(other.messages) == len(own), other.call.started_at >= end
        if begins and not is_twin and other.messages[len(own)].canonical() == calls[i].answer.canonical():
            return ""
        if begins and is_twin and (is_later or (j in continued and other.call.ended_at <= start)):
            said = "asked the same again" if is_later else "went on from an equal answer"
            return f"a dead leaf: the harness {said} in call {other.call.sequence}"
        if begins and is_later:
            return f"a dead leaf: the harness went on without this answer in call {other.call.sequence}"
    return ""


def _left_out(role: Role, settings: BranchesSection) -> str:
    if settings.credit(role.branch) is not Credit.LEAVE_OUT:
        return ""
    name = {Branch.SUB_AGENT: "sub-agent's", Branch.COMPACTION: "compaction"}.get(role.branch, str(role.branch))
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name} call (branches.{role.branch} = leave_out)"


def _is_stray(call: Said) -> bool:
    """Another program's call, or one with tools, so an agent of its own, and yet led to by nothing."""
    return call.call.kind is CallKind.STRAY or bool(call.tools)


def _over_branched(tree: Tree, numbers: Sequence[int], reasons: dict[int, str], max_leaves: int) -> dict[int, str]:
    """All calls of a tree with too many leaves: a harness that forks at every call has no trajectory to learn from."""
    kept = [s for s, number in enumerate(numbers) if number not in reasons]
    leaves = sum(not tree.nodes[tree.leaves[s]].children for s in kept)
    if leaves <= max_leaves:
        return {}
    told = f"over-branched: {leaves} leaves, more than branches.max_leaves = {max_leaves}"
    return {numbers[s]: told for s in kept}
