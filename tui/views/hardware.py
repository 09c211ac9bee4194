"""Hardware: processor, memory, disk, the record's size, GPUs by owner; and Corral's own processes."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Static

from tui.pages.hardware import GpuLine, HardwarePage, ProcessLine
from tui.pages.snapshot import Snapshot
from tui.text import bar, cut, duration, share, size
from tui.views.table_view import TableView, facts
from tui.views.view import Span
from tui.widgets.pager import Paragraph
from tui.widgets.table import Cell, Column

BAR = 20
STALE_S = 20.0
NARROW_SHARE, FULL_SHARE = 0.8, 0.95


class HardwareView(TableView[ProcessLine]):
    """Gauges above the list of processes."""

    COLUMNS = (
        Column("Part", 10),
        Column("Process", 8, right=True),
        Column("Memory", 9, right=True),
        Column("CPU time", 8, right=True),
        Column("Command", 20, grow=1),
    )
    EMPTY = "No supervisor runs here, so no process of Corral does."

    def compose_body(self) -> ComposeResult:
        """Gauges, then processes."""
        yield Static(id="gauges", markup=False)
        yield from super().compose_body()

    def show(self, snapshot: Snapshot) -> None:
        """Draws the gauges too."""
        super().show(snapshot)
        if isinstance(snapshot.page, HardwarePage):
            lines = gauges(snapshot.page) + engine_gauges(snapshot)
            self.query_one("#gauges", Static).update(Content("\n").join(lines))

    def rows(self, page: HardwarePage | None) -> Sequence[ProcessLine]:
        """The largest first."""
        return page.processes if page else ()

    def key(self, row: ProcessLine) -> str:
        """Its number."""
        return str(row.pid)

    def cells(self, row: ProcessLine) -> tuple[Cell, ...]:
        """What it is to Corral, and what it uses."""
        return (
            (row.owner, "accent"),
            (str(row.pid), "muted"),
            (size(row.memory_bytes), "text"),
            (duration(row.cpu_s), "text"),
            (row.command, "muted"),
        )

    def headline(self, page: HardwarePage | None) -> Sequence[Span]:
        """The machine in a line."""
        if page is None:
            return (("Hardware", "bold"), ("   looking …", "$muted"))
        gpus = f"{len(page.gpus)} GPUs" if page.gpus else "no GPU"
        return (("Hardware", "bold"), (f"   {page.num_cores} cores   {gpus}   load {page.load:.1f}", "$muted"))

    def story(self, row: ProcessLine) -> list[Paragraph]:
        """Its whole command."""
        return [facts(("process", str(row.pid)), ("part", row.owner)), (row.command, "text")]


def gauges(page: HardwarePage) -> list[Content]:
    """One line a resource; what is nearly used up says so by glyph and word."""
    lines = [
        _gauge("cpu", page.busy_share, f"load {page.load:.1f} on {page.num_cores} cores"),
        _gauge(
            "memory",
            page.memory_used / page.memory_total if page.memory_total else None,
            f"{size(page.memory_used)} of {size(page.memory_total)}"
            + (f", swap {size(page.swap_used)}" if page.swap_used else ""),
        ),
        _gauge(
            "disk",
            1 - page.disk_free / page.disk_total if page.disk_total else None,
            f"{size(page.disk_free)} free of {size(page.disk_total)}",
        ),
        Content.assemble(
            (f"{'record':<8}", "$muted"), f"{size(page.record_bytes)}, journal {size(page.journal_bytes)}"
        ),
    ]
    if not page.gpus:
        return [
            *lines,
            Content.styled("no GPU here: nvidia-smi finds none; policy and sampler share the cores", "$muted"),
        ]
    return [*lines, *(_gpu(number, gpu) for number, gpu in enumerate(page.gpus))]


def engine_gauges(snapshot: Snapshot) -> list[Content]:
    """Cache and queue of the chosen run's engines, with how old the numbers are when the run has no engine now."""
    if not snapshot.engines:
        told = "engine  has told nothing yet: it is asked every few seconds while the run has one"
        return [Content.styled(told, "$muted")]
    lines = []
    for engine in snapshot.engines:
        age = snapshot.now - engine.at
        told = f"of cache   {engine.running} under way, {engine.waiting} waiting   "
        told += f"prefixes found {share(engine.hit_share)}"
        old = f"   ({duration(age)} ago)" if age > STALE_S else ""
        name = "engine" if len(snapshot.engines) == 1 else f"engine{engine.number}"
        lines.append(_gauge(name, engine.cache_share, told + old))
    return lines


def _gauge(name: str, used: float | None, text: str) -> Content:
    if used is None:
        return Content.assemble((f"{name:<8}", "$muted"), (f"{'measuring':<{BAR + 8}}", "$muted"), text)
    colour, word = "$success", ""
    if used >= FULL_SHARE:
        colour, word = "$error", "  ! nearly full"
    elif used >= NARROW_SHARE:
        colour, word = "$warning", "  ▲ high"
    return Content.assemble(
        (f"{name:<8}", "$muted"), (cut(bar(used, BAR), BAR), f"{colour} on $panel"), f" {share(used):>5}  ", text,
        (word, colour),
    )  # fmt: skip


def _gpu(number: int, gpu: GpuLine) -> Content:
    owners = "  ".join(f"{owner} {size(held)}" for owner, held in gpu.by_owner) or "nobody holds memory"
    used = gpu.used_bytes / gpu.total_bytes if gpu.total_bytes else None
    return _gauge(f"gpu {number}", used, f"{share(gpu.busy_share)} busy  {owners}  {gpu.name}")
