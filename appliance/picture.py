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


def bars_svg(title: str, values: Sequence[tuple[str, float]]) -> str:
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
