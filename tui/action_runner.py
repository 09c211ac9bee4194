"""Does acts for the application: says why one cannot be done, asks before what destroys, and tells how it went."""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from textual.app import App, SuspendNotSupported

from appliance.errors import ApplianceError, CorralError
from tui.actions import BY_NAME, Act, Site
from tui.pages.snapshot import Snapshot
from tui.text import plain
from tui.views.new_run import StartForm
from tui.widgets.dialogs import Ask, Confirm
from tui.widgets.textscreen import TextScreen

InTerminal = Callable[[Sequence[str], dict[str, str]], int]
"""Runs a program in the terminal that the UI has left for a while; returns its exit code."""


class Actor:
    """One for the application. `in_terminal` takes the terminal's place in tests."""

    def __init__(self, app: App[Any], home: Path, in_terminal: InTerminal | None = None) -> None:
        self._app = app
        self._home = home
        self._in_terminal = in_terminal or self._suspended

    def act(self, name: str, argument: str, snapshot: Snapshot, readonly: bool) -> None:
        """Begins an act by its name."""
        if name == "show":
            self._show_in_editor(argument)
            return
        if readonly:
            self._app.notify(f"read-only: {name} is refused", severity="warning", markup=False)
            return
        if name in ("shell", "edit"):
            self._leave_screen(name, argument)
            return
        act = BY_NAME[name]
        site = Site(self._home, snapshot.run, any(run.is_live for run in snapshot.runs), argument)
        if missing := act.missing(site):
            self._app.notify(f"nothing to {name}: {missing}", timeout=4, markup=False)
        elif name == "new run":
            self._app.push_screen(StartForm(self._home), lambda toml: self._typed(act, site, toml))
        elif act.asks and not argument:
            self._app.push_screen(Ask(f"{name.title()}", *act.asks), lambda typed: self._typed(act, site, typed))
        elif act.question:
            self._confirm(act, site)
        else:
            self._do(act, site)

    def offer_resume(self, snapshot: Snapshot, readonly: bool) -> None:
        """Says that the supervisor of the run in front is gone, and offers to start another."""
        run = snapshot.run
        name = run.name if run else ""
        told = f"The supervisor of {name} is gone: nothing goes on, nothing recorded is lost."
        if readonly or len(self._app.screen_stack) > 1:  # a dialog in front is not to be covered
            self._app.notify(f"{told} `corral resume` goes on.", severity="error", timeout=15, markup=False)
            return

        def answered(yes: bool | None) -> None:
            if yes:
                self.act("resume", "", snapshot, readonly)

        question = f"{told}\nStart a supervisor that goes on from the record? (later: r in Runs)"
        self._app.push_screen(Confirm("The supervisor is gone", question), answered)

    def read(self, title: str, read: Callable[[Path], str]) -> None:
        """Reads a text in a thread and shows it over the views."""
        self._app.run_worker(self._read(title, read), group="texts", exclusive=True)

    async def _read(self, title: str, read: Callable[[Path], str]) -> None:
        try:
            text = await asyncio.to_thread(read, self._home)
        except (CorralError, OSError) as error:
            self._app.notify(f"{title}: {plain(str(error))}", severity="error", timeout=15, markup=False)
            return
        self._app.push_screen(TextScreen(title, text))

    def _typed(self, act: Act, site: Site, typed: str | None) -> None:
        if typed and typed.strip():
            self._do(act, Site(site.home, site.run, site.others_live, typed.strip()))

    def _confirm(self, act: Act, site: Site) -> None:
        run = site.run
        words = {"name": run.name if run else "", "id": run.id if run else "", "argument": site.argument}
        title, _, text = act.question.partition("\n")
        shown = [part.format(**words) for part in (title, text)]

        def answered(yes: bool | None) -> None:
            if yes:
                self._do(act, site)

        self._app.push_screen(Confirm(*shown), answered)

    def _do(self, act: Act, site: Site) -> None:
        self._app.run_worker(self._done(act, site), group="acts")

    async def _done(self, act: Act, site: Site) -> None:
        try:
            message = await asyncio.to_thread(act.do, site)
        except (ApplianceError, OSError) as error:
            self._app.notify(f"{act.name} failed: {error}", severity="error", timeout=15, markup=False)
            return
        self._app.notify(message, timeout=6, markup=False)

    # ------------------------------------------------------------------ programs that need the terminal

    def _leave_screen(self, name: str, argument: str) -> None:
        """A shell in a sandbox, or an editor on a file."""
        try:
            argv, environment = self._program(name, argument)
            code = self._in_terminal(argv, environment)
        except SuspendNotSupported:
            self._app.notify("this terminal cannot be left for a while", severity="error", markup=False)
            return
        except (ApplianceError, OSError) as error:
            self._app.notify(f"{name} failed: {error}", severity="error", timeout=15, markup=False)
            return
        if code:
            self._app.notify(f"{argv[0]} ended with exit code {code}", severity="warning", markup=False)

    def _show_in_editor(self, text: str) -> None:
        """The text in the user's editor, as a file of its own that only they can read and that goes afterwards."""
        with tempfile.TemporaryDirectory(prefix="corral-text-") as folder:
            path = Path(folder) / "messages.txt"
            path.write_text(text, encoding="utf-8")
            self._leave_screen("edit", str(path))

    def _program(self, name: str, argument: str) -> tuple[Sequence[str], dict[str, str]]:
        if name == "edit":
            editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
            return [*shlex.split(editor), argument], dict(os.environ)
        from appliance.config.runconfig import podman_home
        from appliance.sandbox.admin import shell_command

        return shell_command(podman_home(self._home), argument)

    def _suspended(self, argv: Sequence[str], environment: dict[str, str]) -> int:
        with self._app.suspend():
            return subprocess.run(argv, env=environment, check=False).returncode


def lost_now(before: Snapshot, after: Snapshot) -> bool:
    """Whether the run in front has just lost its supervisor."""
    old, new = before.run, after.run
    return old is not None and new is not None and old.id == new.id and old.is_live and new.word == "lost"
