"""Sandboxes that live now: whose they are, what they use, which nobody owns. A shell into one is a key away."""

from __future__ import annotations

from collections.abc import Sequence

from tui.pages.sandboxes import SandboxesPage, SandboxLine, read_log
from tui.text import duration, size
from tui.views.table_view import TableView, facts
from tui.views.view import ActWanted, Span, TextWanted
from tui.widgets.pager import Paragraph
from tui.widgets.table import Cell, Column


class SandboxesView(TableView[SandboxLine]):
    """The list of containers, the oldest on top."""

    BINDINGS = [  # noqa: RUF012
        ("enter", "shell", "Shell"),
        ("l", "log", "Log"),
        ("x", "end", "End it"),
        ("o", "orphans", "Remove orphans"),
    ]
    COLUMNS = (
        Column("Sandbox", 16, grow=2),
        Column("State", 10),
        Column("Owner", 9),
        Column("Rollout", 9, right=True),
        Column("Age", 5, right=True),
        Column("Memory", 9, right=True),
        Column("Procs", 5, right=True),
        Column("Image", 8, grow=1),
    )
    EMPTY = "No sandbox lives now: one is made for each rollout and goes with it."

    def rows(self, page: SandboxesPage | None) -> Sequence[SandboxLine]:
        """As Podman lists them."""
        return page.sandboxes if page else ()

    def key(self, row: SandboxLine) -> str:
        """Its name."""
        return row.name

    def cells(self, row: SandboxLine) -> tuple[Cell, ...]:
        """Orphans stand out by glyph and word."""
        runs = row.state == "running"
        return (
            (row.name, "text"),
            (f"{'●' if runs else '○'} {row.state}", "good" if runs else "muted"),
            ("! orphan" if row.is_orphan else "✓ owned", "bad" if row.is_orphan else "muted"),
            (row.rollout or "waits", "text" if row.rollout else "muted"),
            (duration(self.snapshot.now - row.created_at), "muted"),
            (size(row.memory_bytes) if row.memory_bytes is not None else "–", "text"),
            (str(row.num_processes) if row.num_processes is not None else "–", "muted"),
            (row.image, "muted"),
        )

    def headline(self, page: SandboxesPage | None) -> Sequence[Span]:
        """How many, and how many too many."""
        if page is None:
            return (("Sandboxes", "bold"), ("   asking Podman …", "$muted"))
        if page.problem:
            return (("Sandboxes   ", "bold"), (f"✗ {page.problem[0]}   → {page.problem[1]}", "$error"))
        orphans = sum(s.is_orphan for s in page.sandboxes)
        told: Span = (f"   ! {orphans} orphans (o removes them)", "$error") if orphans else ("   no orphans", "$muted")
        return ((f"{len(page.sandboxes)} sandboxes", "bold"), told)

    def story(self, row: SandboxLine) -> list[Paragraph]:
        """What it is for."""
        owner = "nobody: the process that made it is gone" if row.is_orphan else "a supervisor that is alive"
        return [
            (row.name, "text"),
            facts(("run", row.run), ("rollout", row.rollout), ("image", row.image)),
            (f"owned by {owner}", "bad" if row.is_orphan else "muted"),
        ]

    def action_shell(self) -> None:
        """Opens a shell in it."""
        if self.current:
            self.post_message(ActWanted("shell", self.current.name))

    def action_log(self) -> None:
        """Shows what it has written."""
        if self.current:
            name = self.current.name
            self.post_message(TextWanted(f"Log of {name}", lambda home: read_log(home, name)))

    def action_end(self) -> None:
        """Ends it; its rollout then ends as its harness does."""
        if self.current:
            self.post_message(ActWanted("end sandbox", self.current.name))

    def action_orphans(self) -> None:
        """Removes what nobody owns."""
        self.post_message(ActWanted("remove orphans"))
