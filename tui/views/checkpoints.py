"""Checkpoints and evaluations: the policy's versions, what each step measured, and Pass@1 where it was evaluated."""

from __future__ import annotations

import time
from collections.abc import Sequence

from appliance.report.intervals import wilson
from tui.pages.checkpoints import CheckpointsPage, VersionLine
from tui.text import reward, share, size
from tui.views.table_view import TableView, facts
from tui.views.view import Span
from tui.widgets.pager import Paragraph
from tui.widgets.table import Cell, Column


class CheckpointsView(TableView[VersionLine]):
    """The list of versions, the newest on top."""

    COLUMNS = (
        Column("Version", 9),
        Column("Made", 8),
        Column("Reward", 6, right=True),
        Column("Loss", 8, right=True),
        Column("Gap", 7, right=True),
        Column("Size", 9, right=True),
        Column("Evaluated", 16, grow=3),
    )
    EMPTY = "No version yet: the cold start makes version 0, each step one more."

    def rows(self, page: CheckpointsPage | None) -> Sequence[VersionLine]:
        """Newest first."""
        return page.versions if page else ()

    def key(self, row: VersionLine) -> str:
        """The version's number."""
        return str(row.version)

    def copied(self) -> str:
        """The adapter's folder."""
        return self.current.path if self.current else ""

    def cells(self, row: VersionLine) -> tuple[Cell, ...]:
        """A version whose folder was pruned is quiet and says so."""
        tested = "  ".join(f"{e.harness} {share(e.rate)}" for e in row.evaluations if e.rate is not None)
        return (
            (f"{'✓' if row.is_there else '·'} {row.version}", "good" if row.is_there else "muted"),
            (time.strftime("%H:%M:%S", time.localtime(row.created_at)), "muted"),
            (reward(row.metrics.get("reward")), "accent"),
            (_number(row.metrics.get("loss")), "text"),
            (_number(row.metrics.get("logprob_gap")), "text"),
            (size(row.size_bytes) if row.is_there else "pruned", "text" if row.is_there else "muted"),
            (tested or "–", "text" if tested else "muted"),
        )

    def headline(self, page: CheckpointsPage | None) -> Sequence[Span]:
        """Every step is a checkpoint; a resume goes on from the newest."""
        versions = page.versions if page else ()
        tested = sum(bool(v.evaluations) for v in versions)
        newest = f"   newest {versions[0].version}" if versions else ""
        return ((f"{len(versions)} versions", "bold"), (f"{newest}   {tested} evaluated   every step is one", "$muted"))

    def story(self, row: VersionLine) -> list[Paragraph]:
        """Evaluations with their intervals, then every metric of its step."""
        lines: list[Paragraph] = []
        for e in row.evaluations:
            low, high = wilson(e.num_passed, e.num_graded) if e.num_graded else (0.0, 1.0)
            interval = f"[{100 * low:.0f}, {100 * high:.0f}]" if e.num_graded else ""
            text = f"{e.label:<8}{e.harness:<16} Pass@1 {share(e.rate):>5} {interval:<9}"
            lines.append((f"{text}  mean {reward(e.mean)}   {e.num_graded} of {e.num_tasks} graded", "text"))
        if not lines:
            lines.append(("Not evaluated: `:` evaluate measures the newest version on held-out tasks.", "muted"))
        shown = "   ".join(f"{name} {value:.4g}" for name, value in sorted(row.metrics.items()))
        made = "the cold start" if row.parent is None else f"version {row.parent}"
        where = row.path if row.is_there else f"{row.path} (gone: train.keep_adapters)"
        return [
            *lines,
            facts(("made from", made), ("sha256", row.sha256[:16])),
            facts(("folder", where)),
            (shown or "no step made it: no metrics", "muted"),
        ]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"
