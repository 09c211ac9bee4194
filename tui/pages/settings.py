"""A run's effective configuration, key by key, with what decided each value. No Textual."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from appliance.record.store import Run, Store
from tui.text import plain, plain_line


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of a run. `source`: `default`, or what set it."""

    key: str
    value: str
    source: str
    meaning: str
    default: str


@dataclass(frozen=True, slots=True)
class SettingsPage:
    """Every key of the run in the order of the configuration."""

    settings: tuple[Setting, ...] = ()


def settings(store: Store, run: Run) -> SettingsPage:
    """The effective configuration, as the run was created with it."""
    from appliance.config.runconfig import RunConfig, from_record, leaves

    defaults = {key: value for key, value, _ in leaves(RunConfig())}
    told = _sources(store.path.parent / "runs" / run.id / "sources.json")
    found = []
    for key, value, meaning in leaves(from_record(run.config)):
        source = told.get(key) or ("default" if _shown(value) == _shown(defaults[key]) else "this run")
        found.append(Setting(key, plain_line(_shown(value)), plain_line(source), plain(meaning), _shown(defaults[key])))
    return SettingsPage(tuple(found))


def _shown(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _sources(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}
