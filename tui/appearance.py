"""Keys and colours of the UI, from `ui.toml` in Corral's home. What is wrong in it is said and left out. No Textual.

theme = "corral"          # or "mono", or a theme of Textual
[keys]
stop = "ctrl+s"           # the name of a key's act as `?` shows it → keys, parted by commas
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

FILE = "ui.toml"


@dataclass(frozen=True, slots=True)
class Preferences:
    """`problems` are sentences for the user."""

    theme: str = "corral"
    keys: dict[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def read_preferences(home: Path, themes: Collection[str], actions: Collection[str]) -> Preferences:
    """The file's settings; defaults where there is none, or where it says something unknown."""
    path = home / FILE
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Preferences()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        return Preferences(problems=(f"{path}: cannot be read: {error}; defaults hold",))
    problems = [f"{path}: unknown key {key!r}; theme and [keys] are known" for key in found if key not in KNOWN]
    theme = found.get("theme", "corral")
    if theme not in themes:
        problems.append(f"{path}: theme {theme!r} is unknown; try corral or mono")
        theme = "corral"
    raw = found.get("keys", {})
    keys = {str(k): str(v) for k, v in raw.items()} if isinstance(raw, dict) else {}
    problems += [
        f"{path}: keys.{k}: there is no such act; known: {', '.join(actions)}" for k in keys if k not in actions
    ]
    return Preferences(theme, {k: v for k, v in keys.items() if k in actions}, tuple(problems))


KNOWN = ("theme", "keys")
