"""The form for a new run: a few settings, checked while they are typed, and beside them the TOML that starts it."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.events import DescendantFocus
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from appliance.errors import ApplianceError
from tui.pages.new_run import BASE, Asked, Filled, asked, filled, harness_names
from tui.text import plain_line


class StartForm(ModalScreen[str | None]):
    """Closes with the TOML, or with nothing. It cannot be left by ctrl+s while something in it is wrong."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "Close"),
        Binding("ctrl+s", "start", "Start", priority=True),
        Binding("down", "app.focus_next", "Next", priority=True),
        Binding("up", "app.focus_previous", "Previous", priority=True),
    ]

    def __init__(self, home: Path) -> None:
        super().__init__()
        self._harnesses = harness_names(home)
        self._fields = {field.key: field for field in asked()}
        self._filled = Filled()

    def compose(self) -> ComposeResult:
        """Fields on the left, the TOML on the right, what is said of the field in front below."""
        with Vertical(classes="dialog start") as box:
            box.border_title = "A new run"
            with Horizontal():
                with VerticalScroll(can_focus=False):
                    for field in self._fields.values():
                        with Horizontal(classes="asked"):
                            yield Static(field.key, classes="asked-name", markup=False)
                            yield Input(field.value, id=_id(field.key), compact=True)
                with VerticalScroll(can_focus=False, id="start-side"):
                    yield Static(id="start-toml", markup=False)
            yield Static(id="start-told", markup=False)
            yield Static("ctrl+s starts it   ↑ ↓ fields   esc leaves it", classes="quiet", markup=False)

    def on_mount(self) -> None:
        """Says what the empty form comes to."""
        self.query(Input).first().focus()
        self._look()

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        event.stop()
        if event.input.id == _id(BASE):
            self._take_base(event.value)
        self._look()

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.focus_next()

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        """The line below is about the field in front."""
        self._tell()

    def action_close(self) -> None:
        """Closes with nothing."""
        self.dismiss(None)

    def action_start(self) -> None:
        """Closes with the TOML, unless something is wrong: then the cursor goes there."""
        self._look()
        if not self._filled.problem:
            self.dismiss(self._filled.toml)
        elif self._filled.key:
            self.query_one(f"#{_id(self._filled.key)}", Input).focus()

    def _take_base(self, path: str) -> None:
        """The other fields show what the base says, once there is such a file."""
        try:
            found = asked(Path(path.strip()).expanduser() if path.strip() else None)
        except ApplianceError:
            return  # still being typed; `filled` says what is wrong with it
        for field in found[1:]:
            line = self.query_one(f"#{_id(field.key)}", Input)
            if line.value == self._fields[field.key].value:
                line.value = field.value
            self._fields[field.key] = field

    def _look(self) -> None:
        typed = {field: self.query_one(f"#{_id(field)}", Input).value for field in self._fields}
        self._filled = filled(typed, self._harnesses)
        shown = self._filled.toml.rstrip() or "# every key has its default"
        self.query_one("#start-toml", Static).update("" if self._filled.problem else shown)
        for field in self._fields:
            self.query_one(f"#{_id(field)}", Input).set_class(field == self._filled.key, "-wrong")
        self._tell()

    def _tell(self) -> None:
        front = self.focused
        field: Asked | None = next((f for f in self._fields.values() if front and front.id == _id(f.key)), None)
        meaning = "" if field is None else field.meaning + (f": {', '.join(field.choices)}" if field.choices else "")
        wrong = (f"✗ {self._filled.problem}", "$error") if self._filled.problem else ("✓ this will do", "$success")
        self.query_one("#start-told", Static).update(Content.assemble((plain_line(meaning), "$muted"), "\n", wrong))


def _id(key: str) -> str:
    return f"asked-{key.replace('.', '-')}"
