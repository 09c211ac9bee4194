"""Two small pictures of a curve: an SVG that opens anywhere, and one line of blocks for a terminal. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

BLOCKS = "▁▂▃▄▅▆▇█"
COLOURS = ("#2a6f97", "#bc4b51", "#5b8e7d", "#8d6a9f", "#d08c3f")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 360, 56, 120, 44, 44


def sparkline(values: Sequence[float]) -> str:
    """Shares in [0, 1] as block characters; empty for no values."""
    return "".join(BLOCKS[min(int(max(v, 0.0) * len(BLOCKS)), len(BLOCKS) - 1)] for v in values)


def interval_bars_svg(rows: Sequence[tuple[str, float | None, Sequence[float] | None]], title: str) -> str:
    """Shares in [0, 1] as bars, one a line, each with its interval as a whisker; None is said to be missing."""
    left, width, line = 300, 360, 26
    height = 60 + line * max(1, len(rows))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 90} {height}"',
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{left + width + 90}" height="{height}" fill="white"/>',
        f'<text x="16" y="24" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    for n, (name, value, interval) in enumerate(rows):
        y = 44 + n * line
        parts.append(f'<text x="{left - 8}" y="{y + 12}" text-anchor="end">{escape(name)}</text>')
        if value is None:
            parts.append(f'<text x="{left + 8}" y="{y + 12}" fill="#777">no grade</text>')
            continue
        parts.append(f'<rect x="{left}" y="{y}" width="{value * width:.1f}" height="16" fill="{COLOURS[0]}"/>')
        if interval:
            a, b = (left + share * width for share in interval)
            parts.append(f'<path d="M{a:.1f} {y + 8}H{b:.1f}M{a:.1f} {y + 3}v10M{b:.1f} {y + 3}v10" stroke="#333"/>')
        parts.append(f'<text x="{left + width + 8}" y="{y + 12}">{100 * value:.1f} %</text>')
    return "\n".join([*parts, "</svg>\n"])


def heat_svg(
    rows: Sequence[str], columns: Sequence[str], cells: Mapping[tuple[str, str], float | None], title: str
) -> str:
    """A matrix of shares in [0, 1]: the darker the higher, each cell with its number."""
    left, side, high = 200, 120, 44
    width, height = left + side * len(columns) + 20, 80 + high * len(rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"',
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="16" y="24" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    for n, column in enumerate(columns):
        parts.append(f'<text x="{left + side * (n + 0.5)}" y="56" text-anchor="middle">{escape(column)}</text>')
    for m, row in enumerate(rows):
        y = 66 + m * high
        parts.append(f'<text x="{left - 10}" y="{y + high / 2 + 4}" text-anchor="end">{escape(row)}</text>')
        for n, column in enumerate(columns):
            value = cells.get((row, column))
            shade, ink = (0.0, "#777") if value is None else (value, "white" if value > 0.5 else "#222")
            x = left + side * n
            parts.append(
                f'<rect x="{x}" y="{y}" width="{side - 2}" height="{high - 2}" fill="{COLOURS[0]}" '
                f'fill-opacity="{0.06 + 0.94 * shade:.3f}"/>'
            )
            text = "–" if value is None else f"{100 * value:.1f}"
            parts.append(
                f'<text x="{x + side / 2}" y="{y + high / 2 + 4}" text-anchor="middle" fill="{ink}">{text}</text>'
            )
    return "\n".join([*parts, "</svg>\n"])


def curve_svg(curves: Mapping[str, Sequence[tuple[int, float]]], title: str) -> str:
    """Curves of shares in [0, 1] over integer steps, with axes and a legend at each curve's end."""
    steps = [step for points in curves.values() for step, _ in points] or [0, 1]
    first = min(steps)
    last = max(*steps, first + 1)

    def x(step: float) -> float:
        return LEFT + (step - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    def y(share: float) -> float:
        return TOP + (1 - share) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="24" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(f'<path d="M{LEFT} {y(share):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(share) + 4:.1f}" text-anchor="end" fill="#555">{share:.2f}</text>')
    stride = max(1, (last - first) // 10)
    for step in range(first, last + 1, stride):
        parts.append(f'<text x="{x(step):.1f}" y="{HEIGHT - 18}" text-anchor="middle" fill="#555">{step}</text>')
    for n, (name, points) in enumerate(curves.items()):
        colour = COLOURS[n % len(COLOURS)]
        line = " ".join(f"{x(s):.1f},{y(v):.1f}" for s, v in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        end = points[-1]
        parts.append(f'<text x="{x(end[0]) + 8:.1f}" y="{y(end[1]) + 4:.1f}" fill="{colour}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def amounts_svg(title: str, values: Sequence[tuple[str, float]]) -> str:
    """Named values from 0 as horizontal bars, each with its number."""
    most = max((value for _, value in values), default=0.0) or 1.0
    height = TOP + 28 * len(values) + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"',
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="24" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    for n, (name, value) in enumerate(values):
        top, length = TOP + 28 * n, value / most * (WIDTH - 2 * RIGHT)
        parts.append(f'<text x="{RIGHT - 8}" y="{top + 14}" text-anchor="end" fill="#555">{escape(name)}</text>')
        parts.append(f'<rect x="{RIGHT}" y="{top}" width="{length:.1f}" height="20" fill="{COLOURS[0]}"/>')
        parts.append(f'<text x="{RIGHT + length + 8:.1f}" y="{top + 14}" fill="#555">{value:.3g}</text>')
    return "\n".join([*parts, "</svg>\n"])
