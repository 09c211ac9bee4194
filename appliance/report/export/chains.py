"""A rollout's calls as conversations: the main one, and one for each branch that ends by itself. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from appliance.report.trace import Recollection
from appliance.types import Branch, Message, Said, Tool

MAIN = (Branch.CONTINUATION, Branch.COMPACTION, Branch.PARALLEL)


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """One call in its conversation: the messages that are new in it, then its answer. `number` counts calls."""

    number: int
    said: Said
    new: tuple[Message, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """A conversation from its first call to a call that nothing continues. `branch` is what its first call is."""

    branch: Branch
    turns: tuple[Turn, ...]

    @property
    def messages(self) -> tuple[Message, ...]:
        """What the last call was asked, and its answer."""
        last = self.turns[-1].said
        return (*last.messages, last.answer)

    @property
    def tools(self) -> tuple[Tool, ...]:
        """What the last call was offered."""
        return self.turns[-1].said.tools


def chains(told: Recollection) -> list[Chain]:
    """The main conversation first, then the others in the order of their ends; [] without calls."""
    roles = told.found.roles
    continued = {role.parent for role in roles if role.branch is Branch.CONTINUATION}
    found = [_chain(told, n) for n in range(len(told.calls)) if n not in continued]
    main = [chain for chain in found if chain.branch in MAIN]
    first = main[-1] if main else (found[-1] if found else None)
    return ([first] if first else []) + [chain for chain in found if chain is not first]


def _chain(told: Recollection, end: int) -> Chain:
    """Up from its last call while each continues the one above."""
    way, here = [end], end
    while (role := told.found.roles[here]).branch is Branch.CONTINUATION and role.parent is not None:
        here = role.parent
        if here in way:  # a cycle cannot be told as a conversation
            break
        way.append(here)
    turns: list[Turn] = []
    known: tuple[Message, ...] = ()
    for number in reversed(way):
        said = told.calls[number]
        turns.append(Turn(number, said, said.messages[_shared(known, said.messages) :]))
        known = (*said.messages, said.answer)
    return Chain(told.found.roles[way[-1]].branch, tuple(turns))


def _shared(known: tuple[Message, ...], messages: tuple[Message, ...]) -> int:
    shared = 0
    for old, new in zip(known, messages, strict=False):
        if old.canonical() != new.canonical():
            break
        shared += 1
    return shared
