"""View 5: the calls of one rollout: what the harness asked and what the model said, as text or as raw bytes.

All of it was written by models and tasks. It is drawn as plain text: no markup, no control characters.
"""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.widget import Widget

from appliance.types import Message
from tui.pages.calls import CallText
from tui.pages.snapshot import Snapshot
from tui.text import count, reward
from tui.views.view import ActWanted, View, rollout_span
from tui.widgets.pager import Pager, Paragraph
from tui.widgets.table import Cell, Column, Listing, Shape

COLUMNS = (Column("Call", 4, right=True), Column("In", 6, right=True), Column("Out", 5, right=True))
EMPTY = "No calls yet.\nThe model has not\nbeen asked."
RULE = "─"


class CallsView(View):
    """Calls on the left, the text of one on the right; the text takes the keys."""

    BINDINGS = [  # noqa: RUF012
        ("n", "turn(1)", "Next"),
        Binding("p", "turn(-1)", "Previous", show=False),
        ("e", "expand(True)", "All"),
        ("x", "expand(False)", "New"),
        ("r", "raw", "Raw"),
        ("o", "editor", "Edit"),
        Binding("Y", "copy_text", "Copy text", show=False),
    ]

    def compose_body(self) -> ComposeResult:
        """List and text, side by side."""
        with Horizontal():
            yield Listing(Shape(COLUMNS, lambda call: str(call.id), _cells, EMPTY), id="calls-list")
            yield Pager(id="call-text")

    def on_mount(self) -> None:
        """State before the first snapshot."""
        self._snapshot = Snapshot()
        self._is_raw = False
        self._went_to: int | None = None
        self._is_whole = False

    @property
    def focus_target(self) -> Widget:
        """The text."""
        return self._pager

    @property
    def _list(self) -> Listing[CallText]:
        return self.query_one("#calls-list", Listing)

    @property
    def _pager(self) -> Pager:
        return self.query_one("#call-text", Pager)

    def show(self, snapshot: Snapshot) -> None:
        """Draws the calls of the open rollout."""
        is_other = getattr(snapshot.rollout, "id", None) != getattr(self._snapshot.rollout, "id", None)
        self._snapshot = snapshot
        rollout = snapshot.rollout
        self._list.show(snapshot.calls)
        to = snapshot.wanted.call
        if is_other or to != self._went_to:
            self._went_to = to
            self._list.put_cursor(next((n for n, c in enumerate(snapshot.calls) if c.sequence == to), 0))
        if rollout is None:
            self.say(("Calls", "bold"))
            self._pager.show([("", "text"), ("Choose a rollout in view 2 and press enter.", "muted")])
            return
        self.say(
            (f"Rollout {rollout.id}   ", "bold"),
            (f"{rollout.task}   {rollout.harness}   ", ""),
            rollout_span(rollout),
            (f"   {rollout.failure or 'reward ' + reward(rollout.reward)}", "$error" if rollout.failure else ""),
            ("   raw bytes" if self._is_raw else "", "$warning"),
        )
        self._show_text()

    def _show_text(self) -> None:
        call = self._list.current
        if call is None:
            self._pager.show([("", "text"), ("This rollout has made no call yet.", "muted")])
        else:
            self._pager.show(self._paragraphs(call))

    def filter(self, text: str) -> None:
        """Finds `text` in the call."""
        self.filter_text = text
        self._pager.find(text)
        self.show(self._snapshot)

    def find_again(self) -> None:
        """The next place."""
        self._pager.find(self.filter_text, again=True)

    def copied(self) -> str:
        """The id of the rollout."""
        return str(self._snapshot.rollout.id) if self._snapshot.rollout else ""

    def action_turn(self, calls: int) -> None:
        """Goes to another call."""
        self._list.action_move(calls)

    def action_expand(self, whole: bool) -> None:
        """Shows the whole history, or only what is new since the call before."""
        self._is_whole = whole
        self.show(self._snapshot)

    def action_raw(self) -> None:
        """Shows the bytes of request and response, or text again."""
        self._is_raw = not self._is_raw
        self.show(self._snapshot)

    def action_editor(self) -> None:
        """Opens the text of the call, or its bytes, in the user's editor."""
        if text := self._text():
            self.post_message(ActWanted("show", text))

    def action_copy_text(self) -> None:
        """Copies the text of the call, or its bytes, to the clipboard of the terminal."""
        if text := self._text():
            self.app.copy_to_clipboard(text)
            self.notify("copied the text of the call", timeout=2, markup=False)

    def _text(self) -> str:
        call = self._list.current
        return "" if call is None else "\n".join(text for text, _ in self._paragraphs(call)) + "\n"

    def _paragraphs(self, call: CallText) -> list[Paragraph]:
        return raw_text(call) if self._is_raw else call_text(call, self._is_whole)

    @on(Listing.Moved, "#calls-list")
    def _moved(self) -> None:
        if self._snapshot.rollout is not None:
            self._show_text()


def _cells(call: CallText) -> tuple[Cell, ...]:
    asked, said = call.num_prompt_tokens, call.num_sampled_tokens
    return (
        (f"{call.sequence}" if call.is_delivered else f"✗ {call.sequence}", "text" if call.is_delivered else "bad"),
        ("text" if asked is None else count(asked), "muted"),
        ("" if said is None else count(said), "accent"),
    )


def call_text(call: CallText, whole: bool) -> list[Paragraph]:
    """Facts, then messages (those that are new, or all), then the answer."""
    facts = [f"call {call.sequence}", call.wire, f"{call.seconds:.1f} s", call.stop_reason]
    if call.num_prompt_tokens is not None:
        facts += [f"{call.num_prompt_tokens} tokens in, {call.num_sampled_tokens} out", f"policy {call.policy_version}"]
    if not call.is_delivered:
        facts.append("✗ the harness did not take the answer")
    lines: list[Paragraph] = [("   ".join(f for f in facts if f), "muted")]
    if call.tools:
        lines.append((f"tools: {', '.join(call.tools)}", "muted"))
    if call.lineage:
        lines.append((f"lineage: {call.lineage}", "muted"))
    if call.answer is None:
        return [*lines, ("", "text"), ("The text of this call cannot be read; press r for its bytes.", "bad")]
    known = 0 if whole else call.num_known
    if known:
        lines += [("", "text"), (f"… {known} earlier messages (e shows them)", "muted")]
    for message in call.messages[known:]:
        lines += _message(message, message.role)
    return [*lines, *_message(call.answer, "assistant · the answer")]


def _message(message: Message, title: str) -> list[Paragraph]:
    kind = message.role if message.role in ("system", "user", "assistant", "tool") else "user"
    lines: list[Paragraph] = [("", "text"), (f"{RULE * 2} {title} {RULE * 30}", kind)]
    if message.reasoning:
        lines += [("thinking:", "muted"), (message.reasoning, "muted")]
    if message.content:
        lines.append((message.content.rstrip("\n"), "text"))
    lines += [(f"→ {c.name}  {c.arguments}", "tool") for c in message.tool_calls]
    return lines


def raw_text(call: CallText) -> list[Paragraph]:
    """The bytes of request and response as they went over the wire, control characters made visible."""
    return [
        (f"{RULE * 2} request {RULE * 30}", "user"),
        (call.request or "(empty)", "text"),
        ("", "text"),
        (f"{RULE * 2} response {RULE * 30}", "assistant"),
        (call.response or "(empty)", "text"),
    ]
