"""The tree of one rollout: where its calls part and why, each piece's tokens coloured by logprob or advantage, and two
branches side by side.
"""

from __future__ import annotations

from collections.abc import Sequence

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.widget import Widget

from tui.pages.snapshot import Snapshot
from tui.pages.tree import MAX_TOKENS, NodeLine, TreePage, token_with
from tui.text import count, reward
from tui.views.view import ActWanted, LookWanted, View, rollout_span
from tui.widgets.pager import Pager, Paragraph
from tui.widgets.table import Cell, Column, Listing, Shape
from tui.widgets.tokens import Piece, TokenPager, kind_by_advantage, kind_by_logprob

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
        Binding("right", "pick(1)", "Next token", show=False),
        Binding("left", "pick(-1)", "Previous token", show=False),
        Binding("o", "editor", "Edit", show=False),
        Binding("Y", "copy_text", "Copy text", show=False),
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
        self._picked = (0, 0)
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
            self._picked = (0, 0)
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
        place = self._place(node)
        self.query_one("#tokens", TokenPager).show(_title(node), self._pieces(node, place))
        story.show([*_numbers(node, page, place), *_story(node, self._by_advantage)])

    def _place(self, node: NodeLine) -> int:
        """The picked token of a node: its first until another is picked."""
        number, place = self._picked
        return place if number == node.number else 0

    def _pieces(self, node: NodeLine, picked: int | None = None) -> list[Piece]:
        page = self._page
        advantage = None if node.left_out else page.advantage
        found = [
            (t.text, kind_by_advantage(t, advantage) if self._by_advantage else kind_by_logprob(t))
            for t in page.tokens(node.number)
        ]
        if picked is not None and picked < len(found):
            found[picked] = (found[picked][0], "picked")
        more = node.num_tokens - MAX_TOKENS
        return [*found, (f" … {more} more", "prompt")] if more > 0 else found

    def filter(self, text: str) -> None:
        """Filters the nodes; what no node's row holds is looked for in the tokens."""
        self.filter_text = text
        self._list.filter(text)
        if text and not self._list.num_shown:
            self._list.filter("")
            if self._list.current is not None:
                self._find([self._list.current, *self._page.nodes], 0)
        self.show(self._snapshot)

    def find_again(self) -> None:
        """The next place in the tokens, in this node or below."""
        nodes, current = self._page.nodes, self._list.current
        if self.filter_text and current is not None and self._list.num_shown == len(nodes):
            here = next(n for n, node in enumerate(nodes) if node is current)
            ahead = self._place(current) + 1 if self._picked[0] == current.number else 0
            self._find([current, *nodes[here + 1 :], *nodes[: here + 1]], ahead)

    def _find(self, nodes: Sequence[NodeLine], start: int) -> None:
        """Puts both cursors on the first place of the filter's text; `start`: the first node's token to begin with."""
        for node in nodes:
            place = token_with(self._page.tokens(node.number), self.filter_text, start)
            if place is not None:
                self._picked = (node.number, place)
                self._list.put_cursor(next(n for n, other in enumerate(self._page.nodes) if other is node))
                self._show_node()
                return
            start = 0

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

    def action_pick(self, step: int) -> None:
        """Goes to the next or previous token of the node."""
        if node := self._list.current:
            last = len(self._page.tokens(node.number)) - 1
            self._picked = (node.number, max(0, min(last, self._place(node) + step)))
            self._show_node()

    def action_editor(self) -> None:
        """Opens the text of the node in the user's editor."""
        if text := self._text():
            self.post_message(ActWanted("show", text))

    def action_copy_text(self) -> None:
        """Copies the text of the node to the clipboard of the terminal."""
        if text := self._text():
            self.app.copy_to_clipboard(text)
            self.notify("copied the text of the node", timeout=2, markup=False)

    def _text(self) -> str:
        node = self._list.current
        return "" if node is None else "".join(token.text for token in self._page.tokens(node.number))

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


def _numbers(node: NodeLine, page: TreePage, place: int) -> list[Paragraph]:
    """The picked token in numbers: every trained token carries the rollout's advantage."""
    tokens = page.tokens(node.number)
    if place >= len(tokens):
        return []
    token, told = tokens[place], [f"token {place + 1}/{node.num_tokens} {tokens[place].text.strip()[:16]!r}"]
    if token.logprob is not None:
        told.append(f"logprob {token.logprob:.3f}")
    is_trained = token.logprob is not None and not node.left_out and page.advantage is not None
    told.append(f"mask {int(is_trained)}")
    told.append(f"advantage {page.advantage:+.3f}" if is_trained else "advantage –")
    return [("   ".join(told), "text")]


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
