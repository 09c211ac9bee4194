"""What the cold start learns from: whole conversations of a teacher, and their renamings.

A renaming swaps the words of a task pool for others of the same pool, consistently in prompt, tool calls and tool
results, so that a few recordings show every word in every place. The system turn is the harness's own and keeps its
words; dates in it are redrawn, since the policy will be used on other days.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from appliance.types import Message, Tool

_LETTERS = re.compile("[A-Za-z]+")
_DATE = re.compile(r"\b\d{4}-\d{2}-\d{2}\b")


@dataclass(frozen=True, slots=True)
class Lesson:
    """One conversation that ended in full reward, answer included, as `harness` asked for it."""

    harness: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]

    @property
    def kind(self) -> tuple[str, ...]:
        """What lessons must share to look alike: harness, tools, and the roles before the first answer.

        A harness that forks has several: the main agent's, a helper's, a summary's, what follows a summary.
        """
        opening = itertools.takewhile(lambda role: role != "assistant", (m.role for m in self.messages))
        return (self.harness, *(tool.full_name for tool in self.tools), "", *opening)


def renamed(lesson: Lesson, words: Sequence[str], draw: random.Random) -> Lesson:
    """`lesson` with the pool `words` permuted and the system turn's dates redrawn."""
    mapping = dict(zip(words, draw.sample(words, len(words)), strict=True))
    date = f"20{draw.randrange(24, 40)}-{draw.randrange(1, 13):02d}-{draw.randrange(1, 29):02d}"
    return replace(lesson, messages=tuple(_renamed(m, mapping, date) for m in lesson.messages))


def _renamed(message: Message, mapping: Mapping[str, str], date: str) -> Message:
    if message.role == "system":
        return replace(message, content=_DATE.sub(date, message.content))

    def swap(text: str) -> str:
        return _LETTERS.sub(lambda match: mapping.get(match[0], match[0]), text)

    calls = tuple(replace(call, arguments=swap(call.arguments)) for call in message.tool_calls)
    return replace(message, content=swap(message.content), reasoning=swap(message.reasoning), tool_calls=calls)


def validation_split(lessons: Sequence[Lesson], seed: int, share: float = 0.1) -> tuple[list[Lesson], list[Lesson]]:
    """(train, validation): about `share` of each kind of lesson, at least one where it has two or more."""
    train: list[Lesson] = []
    held: list[Lesson] = []
    for kind in sorted({lesson.kind for lesson in lessons}):
        own = [lesson for lesson in lessons if lesson.kind == kind]
        random.Random(f"{seed}/{kind[0]}").shuffle(own)
        count = max(1, round(share * len(own))) if len(own) > 1 else 0
        held += own[:count]
        train += own[count:]
    return train, held
