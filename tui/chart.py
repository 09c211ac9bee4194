"""A line chart in characters; pure. Series differ by mark as well as by colour, so it reads without colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

MARKS = ("●", "◆", "▲", "■", "○", "◇")
Point = tuple[int, float]
Grid = list[list[tuple[str, int]]]
"""Rows of (character, index of its series, or -1 for axes and empty cells)."""

AXIS = 6
"""Cells left of the plot: the number, a space and the axis."""


def draw(series: Mapping[str, Sequence[Point]], last_x: int, size: tuple[int, int]) -> Grid:
    """Series of (x from 1, y in [0, 1]) in `size` (columns, rows), with both axes. The last row names x."""
    columns, rows = max(size[0], AXIS + 8), max(size[1], 4)
    wide, high = columns - AXIS - 1, rows - 2
    last_x = max(last_x, 1, *(x for points in series.values() for x, _ in points))
    grid: Grid = [[(" ", -1)] * columns for _ in range(rows)]
    _axes(grid, wide, high, last_x)
    for index, points in enumerate(series.values()):
        placed = [(_column(x, last_x, wide), _row(y, high)) for x, y in points]
        for start, end in pairwise(placed):
            _line(grid, start, end, index)
    for index, points in enumerate(series.values()):
        for x, y in points:
            grid[_row(y, high)][_column(x, last_x, wide)] = (MARKS[index % len(MARKS)], index)
    return grid


def _column(x: int, last_x: int, wide: int) -> int:
    return AXIS + (wide // 2 if last_x == 1 else round((x - 1) * (wide - 1) / (last_x - 1)))


def _row(y: float, high: int) -> int:
    return round((1 - min(1.0, max(0.0, y))) * (high - 1))


def _line(grid: Grid, start: tuple[int, int], end: tuple[int, int], index: int) -> None:
    (left, top), (right, bottom) = start, end
    cells = max(right - left, 1)
    for column in range(left + 1, right):
        row = round(top + (bottom - top) * (column - left) / cells)
        if grid[row][column][1] == -1:
            grid[row][column] = ("·", index)


def _axes(grid: Grid, wide: int, high: int, last_x: int) -> None:
    for row in range(high):
        _write(grid, row, AXIS - 1, "│")
    for value in (1.0, 0.5, 0.0) if high >= 5 else (1.0, 0.0):
        row = _row(value, high)
        _write(grid, row, 0, f"{value:4.1f}")
        _write(grid, row, AXIS - 1, "┤")
        if value:
            for column in range(AXIS, AXIS + wide, 4):
                _write(grid, row, column, "┈")
    _write(grid, high, AXIS - 1, "└" + "─" * wide)
    free = 0
    for x in range(1, last_x + 1):
        text, column = str(x), _column(x, last_x, wide)
        place = column - len(text) // 2
        if place >= free and (x == last_x or place + 2 * len(text) + 1 < _column(last_x, last_x, wide)):
            _write(grid, high, column, "┴")
            _write(grid, high + 1, place, text)
            free = place + len(text) + 3


def _write(grid: Grid, row: int, column: int, text: str) -> None:
    for offset, char in enumerate(text):
        if 0 <= column + offset < len(grid[row]):
            grid[row][column + offset] = (char, -1)
