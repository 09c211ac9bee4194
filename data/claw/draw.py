"""The random choices of one claw task, and what a task is before it is written."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import TypeVar

T = TypeVar("T")
Files = dict[str, str]
Check = dict[str, object]

PEOPLE = (
    "Ada Bell", "Ben Okafor", "Chloe Sato", "Dario Lund", "Elif Kaya", "Femi Ade", "Greta Holm", "Hugo Marin", "Ines Costa",
    "Jonas Weber", "Kira Novak", "Liam Byrne", "Mina Haddad", "Noor Aziz", "Olga Petrov", "Pablo Ruiz", "Quinn Avery",
    "Rosa Greco", "Sven Dahl", "Tara Singh", "Uma Rao", "Viktor Kral", "Wanda Zielinska", "Yusuf Demir",
)  # fmt: skip
PRODUCTS = (
    "anvil", "basket", "candle", "drill", "easel", "funnel", "gasket", "hammer", "inkwell", "jigsaw", "kettle", "lantern",
    "mallet", "needle", "oilcan", "pulley", "quill", "ratchet", "spindle", "trowel", "urn", "valve", "winch", "yoke",
)  # fmt: skip
REGIONS = ("north", "south", "east", "west", "coast", "inland")
FIRMS = ("Alder & Co", "Brook Ltd", "Cedar GmbH", "Dune SA", "Elm Works", "Fjord AS", "Grove Inc", "Harbor BV")
SERVICES = ("auth", "billing", "cart", "export", "mail", "orders", "search", "users")


class Draw:
    """A seeded source of choices; only `randrange` and `shuffle` are used, which are stable across versions."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def number(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included."""
        return self._random.randrange(low, high + 1)

    def cents(self, low: int, high: int) -> float:
        """An amount with two decimals from `low` to `high` units."""
        return self.number(low * 100, high * 100) / 100

    def pick(self, items: Sequence[T]) -> T:
        """One of the items."""
        return items[self.number(0, len(items) - 1)]

    def some(self, items: Sequence[T], count: int) -> list[T]:
        """`count` different items, in random order."""
        return self.shuffled(items)[:count]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """The items in random order."""
        order = list(items)
        self._random.shuffle(order)
        return order

    def day(self, year: int = 2026) -> date:
        """A day of the year."""
        return date(year, 1, 1) + timedelta(days=self.number(0, 360))

    def moment(self, day: date) -> datetime:
        """A second of the day."""
        return datetime(day.year, day.month, day.day) + timedelta(seconds=self.number(0, 86_399))


@dataclass(frozen=True)
class ClawTask:
    """One task before it is written. `oracle` is a Python program that solves it from the workspace alone."""

    instruction: str
    files: Files
    checks: list[Check]
    oracle: str
    may_change: tuple[str, ...] = ()

    @property
    def expected(self) -> dict[str, object]:
        """What the hidden check compares with."""
        intact = {path: text for path, text in self.files.items() if path not in self.may_change}
        return {"checks": self.checks, "intact": intact}


def want_json(file: str, want: object, weight: float = 1.0) -> Check:
    """Credit for each right leaf of a JSON file."""
    return {"name": file, "kind": "json", "file": file, "want": want, "weight": weight}


def want_csv(file: str, header: list[str], rows: list[list[str]], ordered: bool = True, weight: float = 1.0) -> Check:
    """Credit for each right row of a CSV file."""
    return {
        "name": file, "kind": "csv", "file": file, "header": header, "rows": rows, "ordered": ordered, "weight": weight,
    }  # fmt: skip


def want_text(file: str, want: str, before: str | None = None, weight: float = 1.0) -> Check:
    """Credit for each right line; with `before`, only for lines that had to change."""
    check: Check = {"name": file, "kind": "text", "file": file, "want": want, "weight": weight}
    return check if before is None else check | {"before": before}


def table(header: Sequence[str], rows: Sequence[Sequence[object]], separator: str = ",") -> str:
    """A CSV text."""
    return "".join(separator.join(str(c) for c in row) + "\n" for row in [header, *rows])


def json_lines(items: Sequence[object]) -> str:
    """One JSON value a line."""
    return "".join(json.dumps(item) + "\n" for item in items)
