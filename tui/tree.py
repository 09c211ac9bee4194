"""The tree of one rollout: where its calls part and why, each piece's tokens coloured by logprob or advantage, and two
branches side by side.
"""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.widget import Widget

from tui.listing import Cell, Column, Listing, Shape
from tui.pager import Pager, Paragraph
from tui.state import Snapshot
from tui.text import count, reward
from tui.tokens import Piece, TokenPager, kind_by_advantage, kind_by_logprob
from tui.treedata import MAX_TOKENS, NodeLine, TreePage
from tui.view import LookWanted, View, rollout_span

COLUMNS = (Column("Tree", 17, grow=2), Column("Tokens", 6, right=True), Column("Trained", 11, grow=1))
EMPTY = "No tree: open a rollout\nwith enter in view 2."


class TreeView(View):
    """Nodes on the left, tokens on the right, the fork below; the nodes take the keys."""

    BINDINGS = [  # noqa: RUF012
        ("enter", "open", "Its call"),
        ("n", "turn(1)", "Fork"),
        Binding("p", "turn(-1)", "Previous", show=False),
        ("c", "colour", "Colour"),
        ("b", "beside", "Beside"),
    ]

    def compose_body(self) -> ComposeResult:
        """List, one or two texts, and the fork."""
        with Horizontal():
            yield Listing(Shape(COLUMNS, lambda node: str(node.number), self._cells, EMPTY), id="tree-list")
            yield TokenPager(id="tokens-other")
            yield TokenPager(id="tokens")
        story = Pager(id="fork-story")
        story.add_class("story")
        yield story

    def on_mount(self) -> None:
        """State before the first snapshot."""
        self._snapshot = Snapshot()
        self._by_advantage = False
        self._is_beside = False
        self.query_one("#tokens-other").display = False

    @property
    def focus_target(self) -> Widget:
        """The nodes."""
        return self._list

    @property
    def _list(self) -> Listing[NodeLine]:
        return self.query_one("#tree-list", Listing)

    @property
    def _page(self) -> TreePage:
        page = self._snapshot.page
        return page if isinstance(page, TreePage) else TreePage()

    def show(self, snapshot: Snapshot) -> None:
        """Draws the tree of the open rollout."""
        is_other = self._page.rollout_id != getattr(snapshot.page, "rollout_id", 0)
        self._snapshot = snapshot
        page, rollout = self._page, snapshot.rollout
        self._list.show(page.nodes)
        if is_other:
            self._list.put_cursor(0)
        if rollout is None:
            self.say(("Tree", "bold"), ("   choose a rollout in view 2, press enter, then 6", "$muted"))
        else:
            flat = f"   {count(page.num_unique)} of {count(page.num_flat)} tokens are unique" if page.num_flat else ""
            advantage = "" if page.advantage is None else f"   advantage {page.advantage:+.2f}"
            self.say(
                (f"Rollout {rollout.id}   ", "bold"),
                (f"{page.num_rows} rows, {page.num_forks} forks   ", ""),
                rollout_span(rollout),
                (f"   reward {reward(rollout.reward)}{advantage}", ""),
                (f"   {rollout.task}   {rollout.harness}{flat}", "$muted"),
            )
        self._show_node()

    def _show_node(self) -> None:
        node, page = self._list.current, self._page
        story = self.query_one("#fork-story", Pager)
        if node is None:
            self.query_one("#tokens", TokenPager).show(page.problem or "", ())
            story.show([(page.problem, "muted")] if page.problem else [])
            return
        other = next((n for n in page.nodes if node.rivals and n.number == node.rivals[0]), None)
        beside = self.query_one("#tokens-other", TokenPager)
        beside.display = self._is_beside and other is not None
        if other is not None and self._is_beside:
            beside.show(_title(other), self._pieces(other))
        self.query_one("#tokens", TokenPager).show(_title(node), self._pieces(node))
        story.show(_story(node, self._by_advantage))

    def _pieces(self, node: NodeLine) -> list[Piece]:
        page = self._page
        advantage = None if node.left_out else page.advantage
        found = [
            (t.text, kind_by_advantage(t, advantage) if self._by_advantage else kind_by_logprob(t))
            for t in page.tokens(node.number)
        ]
        more = node.num_tokens - MAX_TOKENS
        return [*found, (f" … {more} more", "prompt")] if more > 0 else found

    def filter(self, text: str) -> None:
        """Filters the nodes."""
        self.filter_text = text
        self._list.filter(text)
        self.show(self._snapshot)

    def copied(self) -> str:
        """The rollout's number."""
        return str(self._snapshot.rollout.id) if self._snapshot.rollout else ""

    def action_turn(self, step: int) -> None:
        """Goes to the next or previous fork."""
        nodes, current = self._page.nodes, self._list.current
        here = next((n for n, node in enumerate(nodes) if node is current), 0)
        places = [n for n, node in enumerate(nodes) if node.fork]
        ahead = [n for n in places if n > here] if step > 0 else [n for n in reversed(places) if n < here]
        if ahead:
            self._list.put_cursor(ahead[0])

    def action_colour(self) -> None:
        """By logprob, or by advantage."""
        self._by_advantage = not self._by_advantage
        self._show_node()

    def action_beside(self) -> None:
        """The branch beside it too, or not."""
        self._is_beside = not self._is_beside
        self.set_class(self._is_beside, "-beside")
        self._show_node()

    @on(Listing.Moved, "#tree-list")
    def _moved(self, message: Listing.Moved) -> None:
        self._show_node()
        node = self._list.current
        if isinstance(message, Listing.Opened) and node is not None and node.call is not None:
            self.post_message(LookWanted("calls", call=node.call))

    def action_open(self) -> None:
        """Shows the call that the node belongs to."""
        self._list.action_open()

    def _cells(self, node: NodeLine) -> tuple[Cell, ...]:
        if node.call is None:
            what: Cell = (f"{node.lead}○ prompt", "muted")
            trained: Cell = ("", "muted")
        else:
            what = (f"{node.lead}● call {node.call} {node.branch}", "text")
            trained = ("✓ trained", "good") if not node.left_out else (f"· {node.left_out}", "muted")
        if node.fork:
            trained = (f"≠ {node.fork.cause}", "warn" if node.fork.cause != "unknown" else "bad")
        return (what, (count(node.num_tokens), "text"), trained)


def _title(node: NodeLine) -> str:
    if node.call is None:
        return f"{node.num_tokens} prompt tokens"
    return f"call {node.call} · {node.num_tokens} · logprob {node.logprob or 0.0:.2f}"


def _story(node: NodeLine, by_advantage: bool) -> list[Paragraph]:
    lines: list[Paragraph] = []
    if node.fork:
        f = node.fork
        lines = [
            (f"≠ call {f.call} left call {f.reference} at token {f.at}: {f.cause}", "tool"),
            (f"expected  …{f.before[-24:]}{f.expected}", "text"),
            (f"found     …{f.before[-24:]}{f.found}", "text"),
            *([(f.detail, "muted")] if f.detail else []),
            (f"→ {f.remedy}", "muted"),
        ]
    elif node.call is not None:
        state = f"not trained: {node.left_out}" if node.left_out else "trained"
        lines = [(f"call {node.call} · {node.branch} · {state}", "text")]
    legend = (
        "colours: advantage; underlined: lowered"
        if by_advantage
        else "colours: probability ≥ 80, 40, 10 %; underlined: rarer"
    )
    return [(f"{legend}; c changes", "muted"), *lines]
