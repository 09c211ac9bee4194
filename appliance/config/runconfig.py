"""One TOML a run, environment over it, command line over both; unknown keys are errors with a suggestion.

The tables and their defaults are in sections.py. Derived values are properties. `resolve` reads the sources;
`sources` says, for every key, which of them decided.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict
from pydantic_settings.exceptions import SettingsError

from appliance.config.paths import CHECKOUT, home, podman_home
from appliance.config.sections import (
    BranchesSection,
    ColdstartSection,
    EngineSection,
    EvaluationSection,
    JudgeSection,
    ModelSection,
    RecordSection,
    RolloutSection,
    Section,
    TasksSection,
    TrainSection,
)
from appliance.errors import ConfigError

__all__ = ["CHECKOUT", "RunConfig", "from_record", "home", "leaves", "num_gpus", "podman_home", "resolve", "sources"]
ENV_PREFIX = "CORRAL_RUN_"
LISTS = ("harnesses", "tasks.families", "train.harness_weights")
"""Keys whose text on the command line is a list, parted by commas."""


class RunConfig(Section):
    """Everything a run depends on besides the code, the pack and the model folder."""

    name: str = Field("run", description="a word for people")
    seed: int = Field(0, ge=0, description="seed of task order, growth, sampling and training")
    harnesses: tuple[str, ...] = Field(("pi", "codex"), min_length=1, description="harnesses trained and evaluated in")
    model: ModelSection = ModelSection()
    record: RecordSection = RecordSection()
    tasks: TasksSection = TasksSection()
    engine: EngineSection = EngineSection()
    rollout: RolloutSection = RolloutSection()
    coldstart: ColdstartSection = ColdstartSection()
    train: TrainSection = TrainSection()
    branches: BranchesSection = BranchesSection()
    evaluation: EvaluationSection = EvaluationSection()
    judge: JudgeSection = JudgeSection()

    @model_validator(mode="after")
    def _settings_fit_each_other(self) -> RunConfig:
        """What one key alone cannot see."""
        t = self.train
        if t.harness_weights and (len(t.harness_weights) != len(self.harnesses) or not any(t.harness_weights)):
            raise ValueError(f"train.harness_weights needs one weight for each of {', '.join(self.harnesses)}")
        if t.overlong_hard and t.overlong_hard <= t.overlong_soft:
            raise ValueError("train.overlong_hard must be above train.overlong_soft")
        if self.engine.sleep and t.ahead:
            raise ValueError("engine.sleep and train.ahead: an engine that sleeps samples nothing ahead; unset one")
        if self.judge.url and self.judge.engine:
            raise ValueError("judge.url and judge.engine are both set; leave one of them empty")
        if t.parity_stop and t.parity_alarm > t.parity_stop:
            raise ValueError("train.parity_alarm must not be above train.parity_stop")
        return self

    @model_validator(mode="after")
    def _rows_hold_a_context(self) -> RunConfig:
        """A path longer than a row could never be trained, and no resume would get past it."""
        if self.train.row_tokens < self.engine.max_model_len:
            raise ValueError("train.row_tokens must be at least engine.max_model_len")
        return self

    @property
    def train_ranks(self) -> int:
        """Processes that train: `train.ranks`, or one for each GPU that the engines leave free."""
        if self.train.ranks or self.engine.resolved_device == "cpu":
            return self.train.ranks or 1
        gpus = num_gpus()
        return max(1, gpus - self.engine.replicas)

    @property
    def shares_gpus(self) -> bool:
        """Whether engines and trainer have to live on the same GPUs, as on a machine with one."""
        wanted = self.train_ranks + self.engine.replicas
        return self.engine.resolved_device == "cuda" and 0 < num_gpus() < wanted

    @property
    def pack_path(self) -> Path:
        """Folder of the pack: under data/ by its bare name, or as given."""
        pack = self.tasks.pack
        named = CHECKOUT / "data" / pack
        is_name = pack == Path(pack).name and pack not in ("", "..")
        return named if is_name and os.path.isdir(named) else Path(os.path.expanduser(pack))


class _Environment(BaseSettings, RunConfig):
    """The same keys as environment variables, for example CORRAL_RUN_TRAIN__STEPS."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, env_nested_delimiter="__", extra="forbid")


def num_gpus() -> int:
    """NVIDIA GPUs that the driver shows."""
    folder = Path("/proc/driver/nvidia/gpus")
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def resolve(path: Path | None, overrides: Mapping[str, str] | None = None) -> RunConfig:
    """Reads `path`, then `CORRAL_RUN_*`, then `overrides` (dotted key → text) into one configuration.

    Raises ConfigError naming the file and key, with a suggestion for a misspelt one.
    """
    values = _read_toml(path) if path else {}
    _validate(values, str(path))
    values = _merge(values, _environment())
    _validate(values, "environment")
    for key, text in (overrides or {}).items():
        values = _merge(values, _nested(key, text))
    return _validate(values, "--set")


def _environment() -> dict[str, Any]:
    """The values of CORRAL_RUN_* variables, nested; ConfigError for a name that is no key."""
    known = {(ENV_PREFIX + key.replace(".", "__")).upper() for key, _, _ in leaves(RunConfig())}
    for name in sorted(os.environ):
        if name.upper().startswith(ENV_PREFIX) and name.upper() not in known:
            key = name[len(ENV_PREFIX) :].lower().replace("__", ".")
            raise ConfigError(
                f"environment {name}: unknown key {key!r}", _suggestion(key, {k for k, _, _ in leaves(RunConfig())})
            )
    try:
        return EnvSettingsSource(_Environment)()
    except SettingsError as error:
        raise ConfigError(
            f"environment: {error}", "lists are JSON, for example CORRAL_RUN_HARNESSES='[\"pi\"]'"
        ) from error


def from_record(stored: Mapping[str, Any]) -> RunConfig:
    """The configuration that a run was started with, as the record holds it; the environment has no say.

    Keys that a later version dropped are passed over: old runs stay readable.
    """
    return _validate(_known(stored, RunConfig), "record")


def _known(stored: Mapping[str, Any], section: type[Section]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, field in section.model_fields.items():
        if name in stored:
            kind = field.annotation
            is_table = isinstance(kind, type) and issubclass(kind, Section) and isinstance(stored[name], Mapping)
            found[name] = _known(stored[name], kind) if is_table else stored[name]  # type: ignore[arg-type]
    return found


def leaves(config: RunConfig) -> Iterator[tuple[str, object, str]]:
    """(dotted key, value, description) of every setting."""
    for name, field in RunConfig.model_fields.items():
        value = getattr(config, name)
        if isinstance(value, Section):
            for key, inner in type(value).model_fields.items():
                yield f"{name}.{key}", getattr(value, key), inner.description or ""
        else:
            yield name, value, field.description or ""


def sources(path: Path | None, overrides: Mapping[str, str] | None = None) -> dict[str, str]:
    """For every key, what decided it: `default`, the TOML's path, `environment` or `command line`."""
    toml = _read_toml(path) if path else {}
    found: dict[str, str] = {}
    for key, _, _ in leaves(resolve(path, overrides)):
        section, _, name = key.rpartition(".")
        table = toml.get(section, {}) if section else toml
        env = (ENV_PREFIX + key.replace(".", "__")).upper()
        if key in (overrides or {}):
            found[key] = "command line"
        elif env in {name.upper() for name in os.environ}:
            found[key] = f"environment {env}"
        elif isinstance(table, dict) and name in table:
            found[key] = str(path)
        else:
            found[key] = "default"
    return found


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file", "name a run's TOML, for example data/demo.toml") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}", "mend the line named above") from error


def _validate(values: Mapping[str, Any], source: str) -> RunConfig:
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise _config_error(error, source) from error


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _nested(key: str, text: str) -> dict[str, Any]:
    """`train.steps`, `5` → {"train": {"steps": "5"}}; the validator turns the text into the key's type."""
    section, _, name = key.rpartition(".")
    value: Any = [part.strip() for part in text.split(",") if part.strip()] if key in LISTS else text
    return {section: {name: value}} if section else {name: value}


def _config_error(error: ValidationError, source: str) -> ConfigError:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = {k for k, _, _ in leaves(RunConfig())} | set(RunConfig.model_fields)
        return ConfigError(f"{source}: unknown key {key!r}", _suggestion(key, known))
    return ConfigError(
        f"{source}: {key}: {first['msg']} (found {first['input']!r})", "see `corral config show` for every key"
    )


def _suggestion(key: str, known: set[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    if not near:
        name = key.rpartition(".")[2]
        names = {k.rpartition(".")[2]: k for k in sorted(known)}
        near = [names[n] for n in difflib.get_close_matches(name, list(names), n=1)]
    return f"did you mean {near[0]!r}?" if near else "see `corral config show` for every key"
