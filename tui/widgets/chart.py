"""A line chart in characters; pure. Series differ by mark as well as by colour, so it reads without colours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

MARKS = ("●", "◆", "▲", "■", "○", "◇")
Point = tuple[int, float]
Grid = list[list[tuple[str, int]]]
"""Rows of (character, index of its series, or -1 for axes and empty cells)."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The y axis. With `is_log` both ends are above 0."""

    low: float = 0.0
    high: float = 1.0
    is_log: bool = False

    def place(self, value: float) -> float:
        """Where a value lies: 0 is the low end, 1 the high one; what is outside lies on an end."""
        low, high, value = self.low, self.high, max(min(value, self.high), self.low)
        if self.is_log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return (value - low) / (high - low)

    @property
    def ticks(self) -> tuple[float, float, float]:
        """High end, middle, low end."""
        middle = math.sqrt(self.low * self.high) if self.is_log else (self.low + self.high) / 2
        return self.high, middle, self.low


def scale_of(values: Sequence[float], is_log: bool) -> Scale:
    """An axis that holds all of these. Logarithms need values above 0: where there are none it stays linear."""
    shown = [v for v in values if math.isfinite(v) and (v > 0 or not is_log)]
    if not shown:
        return scale_of(values, False) if is_log else Scale()
    low, high = min(shown), max(shown)
    if low == high:
        low, high = (low / 2, high * 2) if is_log else (low - max(abs(low), 1e-6) / 2, high + max(abs(high), 1e-6) / 2)
    return Scale(low, high, is_log)


def smoothed(points: Sequence[Point], weight: float) -> list[Point]:
    """The exponential moving average, `weight` of it from before; freed of its start at 0 as Adam's means are."""
    mean, known, found = 0.0, 0.0, []
    for x, y in points:
        mean = weight * mean + (1 - weight) * y
        known = weight * known + (1 - weight)
        found.append((x, mean / known))
    return found


def draw(
    series: Mapping[str, Sequence[Point]],
    last_x: int,
    size: tuple[int, int],
    scale: Scale | None = None,
    at: int | None = None,
) -> Grid:
    """Series of points (x from 1) in `size` (columns, rows), with both axes. The last row names x; `at` is marked."""
    scale = scale or Scale()
    labels = [_label(tick) for tick in scale.ticks]
    axis = max(map(len, labels)) + 2
    columns, rows = max(size[0], axis + 8), max(size[1], 4)
    last_x = max(last_x, 1, *(x for points in series.values() for x, _ in points))
    plot = _Plot([[(" ", -1)] * columns for _ in range(rows)], axis, columns - axis - 1, rows - 2, last_x)
    plot.axes(labels, at)
    for index, points in enumerate(series.values()):
        placed = [(plot.column(x), plot.row(scale.place(y))) for x, y in points]
        for start, end in pairwise(placed):
            plot.line(start, end, index)
    for index, points in enumerate(series.values()):
        for x, y in points:
            plot.grid[plot.row(scale.place(y))][plot.column(x)] = (MARKS[index % len(MARKS)], index)
    return plot.grid


def _label(value: float) -> str:
    return f"{value:4.1f}" if value in (0.0, 0.5, 1.0) else f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class _Plot:
    """The cells: `axis` of them lie left of the plot, which is `wide` and `high`."""

    grid: Grid
    axis: int
    wide: int
    high: int
    last_x: int

    def column(self, x: int) -> int:
        return self.axis + (
            self.wide // 2 if self.last_x == 1 else round((x - 1) * (self.wide - 1) / (self.last_x - 1))
        )

    def row(self, place: float) -> int:
        return round((1 - min(1.0, max(0.0, place))) * (self.high - 1))

    def line(self, start: tuple[int, int], end: tuple[int, int], index: int) -> None:
        (left, top), (right, bottom) = start, end
        cells = max(right - left, 1)
        for column in range(left + 1, right):
            row = round(top + (bottom - top) * (column - left) / cells)
            if self.grid[row][column][1] == -1:
                self.grid[row][column] = ("·", index)

    def axes(self, labels: Sequence[str], at: int | None) -> None:
        for row in range(self.high):
            self.write(row, self.axis - 1, "│")
        for place, label in zip((1.0, 0.5, 0.0), labels, strict=True):
            if place == 0.5 and self.high < 5:
                continue
            row = self.row(place)
            self.write(row, self.axis - 2 - len(label), label)
            self.write(row, self.axis - 1, "┤")
            if place:
                for column in range(self.axis, self.axis + self.wide, 4):
                    self.write(row, column, "┈")
        if at is not None and 1 <= at <= self.last_x:
            for row in range(self.high):
                self.write(row, self.column(at), "┊")
        self.write(self.high, self.axis - 1, "└" + "─" * self.wide)
        self._name_x()

    def _name_x(self) -> None:
        free = 0
        for x in range(1, self.last_x + 1):
            text, column = str(x), self.column(x)
            place = column - len(text) // 2
            if place >= free and (x == self.last_x or place + 2 * len(text) + 1 < self.column(self.last_x)):
                self.write(self.high, column, "┴")
                self.write(self.high + 1, place, text)
                free = place + len(text) + 3

    def write(self, row: int, column: int, text: str) -> None:
        for offset, char in enumerate(text):
            if 0 <= column + offset < len(self.grid[row]):
                self.grid[row][column + offset] = (char, -1)
