"""Drives the terminal UI for the tests: keys in, screen text out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from tui.app import CorralApp

HANGS_S = 300
PATIENCE_S = 60


def looking(home: Path) -> CorralApp:
    """The UI two seconds after the record was last written, however slow this machine is."""
    written = (home / "supervisor.lock").stat().st_mtime
    return CorralApp(home, clock=lambda: written + 2)


def shown(app: CorralApp) -> str:
    """What the terminal is told to draw."""
    return "\n".join("".join(segment.text for segment in strip) for strip in app.screen._compositor.render_strips())


def drive(app: CorralApp, *steps: str, size: tuple[int, int] = (80, 24)) -> list[str]:
    """Opens the UI and presses the keys of each step; says what is on screen after each, on top of the others."""
    screens: list[str] = []

    async def look(pilot: Pilot[None]) -> None:
        for keys in steps or ("",):
            await press(pilot, keys)
            screens.append(shown(app))

    session(app, look, size)
    return screens


async def press(pilot: Pilot[None], keys: str) -> None:
    app = pilot.app
    assert isinstance(app, CorralApp)
    await app.poll_once()
    await pilot.pause()
    for key in keys.split():
        await pilot.press(key)
    if app.is_running and keys:
        await pilot.pause()
        await app.poll_once()
        await pilot.pause()
        await read(pilot)


async def read(pilot: Pilot[None]) -> None:
    """Waits until the view in front has what it shows of the machine."""
    app, until = pilot.app, time.monotonic() + PATIENCE_S
    assert isinstance(app, CorralApp)
    while app.is_running and app.is_reading and time.monotonic() < until:
        await asyncio.sleep(0.02)
        await app.poll_once()
        await pilot.pause()


def awaiting(task: asyncio.Task[Any]) -> str:
    """Where a task stands, from its outermost coroutine to the one that waits."""
    at: Any = task.get_coro()
    places = [task.get_name()]
    while frame := getattr(at, "cr_frame", None):
        places.append(f"{at.__qualname__}:{frame.f_lineno}")
        at = at.cr_await
    return " > ".join(places)


def session(app: CorralApp, steps: Callable, size: tuple[int, int] = (80, 24)) -> None:
    """Does the steps; a session that never ends fails with what everything waits for, instead of holding all tests."""

    async def whole() -> None:
        steps_task = asyncio.current_task()
        assert steps_task is not None

        def end() -> None:
            print(f"no end after {HANGS_S} s:\n{shown(app)}", *map(awaiting, asyncio.all_tasks()), sep="\n")
            steps_task.cancel()

        watch = asyncio.get_running_loop().call_later(HANGS_S, end)
        async with app.run_test(size=size, notifications=True) as pilot:
            await steps(pilot)
        watch.cancel()

    try:
        asyncio.run(whole())
    finally:
        app.close()


def words(screen: str) -> str:
    """The words of a screen, however its lines were broken."""
    return " ".join(screen.split())


def ahead(seconds: float) -> Callable[[], float]:
    return lambda: time.time() + seconds


async def until(pilot: Pilot[None], text: str) -> str:
    """Waits for something that a thread or another process has to say on the screen."""
    app, deadline = pilot.app, time.monotonic() + PATIENCE_S
    assert isinstance(app, CorralApp)
    while text not in shown(app) and time.monotonic() < deadline:
        await pilot.pause(0.05)
    assert text in shown(app), shown(app)
    return shown(app)
