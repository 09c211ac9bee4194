"""The line on top: where one is, and how the chosen run does. Narrow terminals see the numbers of the other views."""

from __future__ import annotations

from textual.content import Content

from tui.navigation import PLACES
from tui.pages.snapshot import RunLine
from tui.views.view import Span, run_span

WORDS_FROM = 128
"""Columns from which every numbered view is named."""

SMALLEST = (60, 16)
"""Columns and lines below which the views no longer read well."""


def too_small(width: int, height: int) -> Content | None:
    """What is said instead of the line on top where the terminal is too small; None where it is not."""
    if width >= SMALLEST[0] and height >= SMALLEST[1]:
        return None
    return Content.assemble((f"▲ {width}×{height} is too small: {SMALLEST[0]}×{SMALLEST[1]}", "bold $warning"))


def header(current: str, run: RunLine | None, width: int, marks: list[Span], is_active: bool) -> Content:
    """The line. `marks` are further states: read-only, frozen. `is_active` False: there is no record to look at."""
    spans: list[Span] = [("corral ", "bold $accent")]
    numbered = [place for place in PLACES if place.key]
    for place in numbered:
        here = place.name == current and is_active
        name = f" {place.title}" if here or width >= WORDS_FROM else ""
        spans.append((f" {place.key}{name} ", "reverse bold" if here else "" if name else "$muted"))
    if is_active and current not in {place.name for place in numbered}:
        spans.append((f" {current.title()} ", "reverse bold"))
    spans.append((" : more ", "$muted"))
    for mark in marks:
        spans += [(" ", ""), mark]
    if run is not None and is_active:
        spans += [("  ", ""), run_span(run), (f" {run.name}", "$muted")]
        spans.append((f" · {run.phase}" if run.is_live and run.phase else "", "$muted"))
    return Content.assemble(*spans)
