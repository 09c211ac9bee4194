"""The form for a new run: the settings it asks for, whether what was typed will do, the TOML it makes. No Textual.

What a field may hold is decided by the configuration's own types, so form, TOML and `--set` cannot differ.
"""

from __future__ import annotations

import json
import re
import time
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from appliance.errors import ApplianceError
from appliance.system.files import private_folder
from tui.text import plain, plain_line

BASE = "from"
"""The field that names a TOML whose settings the others change; empty for the defaults."""
ASKED = (
    "name", "seed", "harnesses", "model.path", "tasks.pack", "train.algorithm", "train.steps", "train.groups",
    "train.group_size", "train.learning_rate", "rollout.parallel", "rollout.timeout_s", "evaluation.enabled",
)  # fmt: skip
Tables = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """A setting. `value` as one would type it; `choices` is empty where anything of its type will do."""

    key: str
    value: str
    meaning: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Filled:
    """What a filled form comes to: the TOML, or what is wrong and in which field."""

    toml: str = ""
    problem: str = ""
    key: str = ""


def asked(base: Path | None = None) -> list[Asked]:
    """The fields with what holds where nothing is typed; ConfigError where `base` is no run's TOML."""
    from appliance.config.runconfig import leaves, resolve

    found = {key: (value, meaning) for key, value, meaning in leaves(resolve(base))}
    meaning = "a TOML to begin with, for example data/demo.toml; empty: the defaults"
    fields = [Asked(BASE, str(base or ""), meaning)]
    return fields + [Asked(key, _typed(found[key][0]), found[key][1], _choices(key)) for key in ASKED]


def filled(typed: Mapping[str, str], harnesses: Collection[str]) -> Filled:
    """The TOML of a form: its base, and what differs from it. `harnesses`: the names at hand."""
    from appliance.config.runconfig import leaves, resolve

    base = Path(typed[BASE]).expanduser() if typed.get(BASE, "").strip() else None
    try:
        before = {key: value for key, value, _ in leaves(resolve(base))}
    except ApplianceError as error:
        return Filled(problem=plain_line(error.message), key=BASE)
    changed = {key: typed[key].strip() for key in ASKED if key in typed and typed[key].strip() != _typed(before[key])}
    for key, text in changed.items():
        if problem := _problem(key, text):
            return Filled(problem=problem, key=key)
    try:
        config = resolve(base, changed)
    except ApplianceError as error:
        return Filled(problem=plain_line(error.message.removeprefix("--set: : ")), key="")
    if missing := _missing(config.harnesses, harnesses, config.pack_path):
        return Filled(problem=missing[1], key=missing[0])
    tables: Tables = tomllib.loads(base.read_text(encoding="utf-8")) if base else {}
    after = {key: value for key, value, _ in leaves(config)}
    for key in changed:
        section, _, name = key.rpartition(".")
        (tables.setdefault(section, {}) if section else tables)[name] = after[key]
    return Filled(toml=toml_text(tables))


def written(home: Path, toml: str) -> Path:
    """The form's TOML as a file of its own, for `corral train`."""
    name = re.sub(r"[^\w-]+", "-", str(tomllib.loads(toml).get("name", "run"))).strip("-") or "run"
    path = home / "forms" / f"{name}-{time.strftime('%m%d-%H%M%S')}.toml"
    private_folder(path.parent)
    path.touch(mode=0o600)
    path.write_text(toml, encoding="utf-8")
    return path


def toml_text(tables: Tables) -> str:
    """Tables of one level as TOML; single values come first, as TOML wants it."""
    lines = [f"{key} = {_literal(value)}" for key, value in tables.items() if not isinstance(value, dict)]
    for name, table in tables.items():
        if isinstance(table, dict):
            lines += ["", f"[{name}]", *(f"{key} = {_literal(value)}" for key, value in table.items())]
    return plain("\n".join(lines).strip()) + "\n"


def _literal(value: object) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(_literal(v) for v in value)}]"
    if isinstance(value, bool | str):  # JSON's words for these are TOML's
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


def _typed(value: object) -> str:
    """A value as one types it."""
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(str(v) for v in value) if isinstance(value, list | tuple) else str(value)


def _choices(key: str) -> tuple[str, ...]:
    from appliance.config.runconfig import RunConfig

    section, _, name = key.rpartition(".")
    kind: Any = RunConfig.model_fields[section].annotation if section else RunConfig
    annotation = kind.model_fields[name].annotation
    if annotation is bool:
        return ("true", "false")
    return tuple(str(a) for a in get_args(annotation)) if get_origin(annotation) is Literal else ()


def _problem(key: str, text: str) -> str:
    """What the configuration says of this value alone."""
    from appliance.config.runconfig import resolve

    try:
        resolve(None, {key: text})
    except ApplianceError as error:
        told = plain_line(error.message.removeprefix("--set: "))
        return "" if told.startswith(": ") else told  # it must only fit other keys, which are looked at together
    return ""


def harness_names(home: Path) -> tuple[str, ...]:
    """Harnesses that a run of this home can use."""
    from appliance.harness.catalog import Shelf

    return tuple(Shelf.of(home).harnesses)


def _missing(chosen: tuple[str, ...], harnesses: Collection[str], pack: Path) -> tuple[str, str] | None:
    """(field, what is wrong) where a harness or the pack is not at hand."""
    for name in chosen:
        if name not in harnesses:
            return "harnesses", f"there is no harness {plain_line(name)!r}; known: {', '.join(harnesses)}"
    if not pack.is_dir():
        return "tasks.pack", f"{plain_line(str(pack))}: there is no such pack"
    return None
