"""How much a harness repeats itself: rollouts of one task against one scripted engine, compared call by call. Pure.

A harness that tells the same story in other tokens each time lets its trees share little (ClawGym II, arXiv
2608.16798, on highly non-deterministic harnesses).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from appliance.trees.tree import recover
from appliance.types import Said


@dataclass(frozen=True, slots=True)
class Stability:
    """Shares in [0, 1] over all calls but the first rollout's, each call against its place in the most usual rollout.

    `same_prompts`: equal messages, word for word · `same_tools`: equal tools · `same_order`: rollouts with the usual
    number and order of calls (by what was asked) · `shareable_tokens`: of the tokens of all prompts and answers of all
    rollouts together, how many a common tree does not store again · `shareable_between`: the same, with what each
    rollout's own tree shares taken off first · `first_differences`: where prompts differ, as text.
    """

    rollouts: int
    calls: tuple[int, ...]
    same_prompts: float
    same_tools: float
    same_order: float
    shareable_tokens: float
    shareable_between: float
    first_differences: tuple[str, ...]

    def as_json(self) -> dict[str, object]:
        """For --json: every field by its name."""
        return asdict(self)


def stability(rollouts: Sequence[Sequence[Said]]) -> Stability:
    """Compares the rollouts; calls in the order of their start. Needs at least two rollouts with calls."""
    played = [sorted(r, key=lambda c: (c.call.started_at, c.call.sequence)) for r in rollouts if r]
    if len(played) < 2:
        raise ValueError(f"{len(played)} of {len(rollouts)} rollouts made a call; at least two are needed")
    usual_shape = Counter(_shape(r) for r in played).most_common(1)[0][0]
    usual = next(r for r in played if _shape(r) == usual_shape)
    others = [r for r in played if r is not usual]
    pairs = [(a, b) for r in others for a, b in zip(usual, r, strict=False)]
    places = sum(max(len(usual), len(r)) for r in others)

    def share(alike: Callable[[Said, Said], bool]) -> float:
        return sum(alike(a, b) for a, b in pairs) / places

    together, apart = _shared(played)
    return Stability(
        rollouts=len(played),
        calls=tuple(len(r) for r in played),
        same_prompts=share(lambda a, b: a.messages == b.messages),
        same_tools=share(lambda a, b: a.tools == b.tools),
        same_order=sum(_shape(r) == usual_shape for r in played) / len(played),
        shareable_tokens=together,
        shareable_between=apart,
        first_differences=tuple(dict.fromkeys(d for a, b in pairs if (d := _difference(a, b)))),
    )


def _shape(rollout: Sequence[Said]) -> tuple[tuple[object, ...], ...]:
    """What was asked in which order: roles of the messages, and the tools called in them, without their words."""
    return tuple(tuple((m.role, tuple(c.full_name for c in m.tool_calls)) for m in call.messages) for call in rollout)


def _shared(rollouts: Sequence[Sequence[Said]]) -> tuple[float, float]:
    samples = [[c.call.sample for c in r if c.call.sample is not None] for r in rollouts]
    everything = [s for own in samples for s in own]
    flat = sum(len(s.prompt_ids) + len(s.sampled_ids) for s in everything)
    own = sum(recover(s).num_unique_tokens for s in samples)
    unique = recover(everything).num_unique_tokens
    return (1 - unique / flat, 1 - unique / own) if flat else (0.0, 0.0)


def _difference(a: Said, b: Said) -> str:
    """The first words in which two prompts differ, each with its surroundings; empty when they agree."""
    for n, (mine, other) in enumerate(zip(a.messages, b.messages, strict=False)):
        if mine != other:
            return f"message {n} ({mine.role}): {_around(str(mine.content), str(other.content)) or 'other tool calls'}"
    if len(a.messages) != len(b.messages):
        return f"{len(a.messages)} messages against {len(b.messages)}"
    return ""


def _around(a: str, b: str, width: int = 24) -> str:
    if a == b:
        return ""
    start = _common(a, b)
    lo = max(0, start - width)
    return f"{a[lo : start + width]!r} against {b[lo : start + width]!r}"


def _common(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
