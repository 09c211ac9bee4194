"""Every error Corral raises on purpose.

    CorralError
    ├── ApplianceError          stops the command and tells the user what to do
    │   ├── ConfigError         a run's TOML, environment or command line
    │   ├── HostError           podman, disk, ports, missing programs
    │   ├── ModelError          a model folder, tokenizer, template or adapter
    │   ├── PackError           a task pack or one of its tasks
    │   ├── HarnessFileError    a file under harnesses/
    │   ├── StoreError          the record: newer, foreign, full
    │   │   └── RecordLocked    another process holds it
    │   ├── ExportError         a file to export to or to import from
    │   └── TrainingError       NaN, no usable group, a batch that does not fit
    └── RolloutError            recorded once on one rollout; the run goes on
        ├── SandboxError        the container: no start, out of memory, lost
        ├── HarnessError        the agent program: exit code, time limit, no call made
        ├── EngineError         the sampler: dead, hung, no token ids
        ├── CaptureError        the proxy: a call that could not be recorded whole
        ├── GraderError         the grader: no reward, nonsense, time limit
        └── TaskError           the task itself: its setup script failed, its health check was never met

A bad rollout is data, not a crash: `RolloutError.part` names what failed and `cause` is a stable,
countable word (`timeout`, `out_of_memory`, `no_reward`, …).
"""

from __future__ import annotations

from typing import ClassVar


class CorralError(Exception):
    """Base of both families. `message` says what happened and names the file, key or id."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ApplianceError(CorralError):
    """Stops the command. `remedy` is the one thing the user should do next; may be empty."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}\n  remedy: {self.remedy}" if self.remedy else self.message


class ConfigError(ApplianceError):
    """A run's configuration is wrong."""


class HostError(ApplianceError):
    """The machine lacks something: podman, disk space, a free port."""


class ModelError(ApplianceError):
    """A model folder cannot be used as it is."""


class PackError(ApplianceError):
    """A task pack or one of its tasks is malformed."""


class HarnessFileError(ApplianceError):
    """A harness file is malformed or its image is missing."""


class StoreError(ApplianceError):
    """The record cannot be opened or written."""


class RecordLocked(StoreError):
    """Another process holds the record."""


class ExportError(ApplianceError):
    """A file cannot be written as it was asked for, or is not what can be imported."""


class TrainingError(ApplianceError):
    """An optimiser step cannot be taken; the last good version is kept."""


class RolloutError(CorralError):
    """One rollout failed. `cause` is a stable countable word; the reward stays None (I5).

    `output`: what the harness printed last, as far as it was known by then.
    """

    part: ClassVar[str] = "corral"

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message)
        self.cause = cause
        self.output = ""

    @property
    def label(self) -> str:
        """`part:cause`, as it is counted in tables and demo.json."""
        return f"{self.part}:{self.cause}"


class SandboxError(RolloutError):
    """The container did not start, ran out of memory or was lost."""

    part = "sandbox"


class HarnessError(RolloutError):
    """The agent program ended wrongly, hung, or never called the model."""

    part = "harness"


class EngineError(RolloutError):
    """The sampler is dead, hung or answers without token ids."""

    part = "engine"


class CaptureError(RolloutError):
    """A call could not be recorded whole."""

    part = "capture"


class GraderError(RolloutError):
    """The grader gave no usable reward."""

    part = "grader"


class TaskError(RolloutError):
    """What the task says must hold before its agent starts does not."""

    part = "task"


def first_of(group: BaseExceptionGroup[BaseException]) -> CorralError | None:
    """The first error of ours inside an exception group, however deep; None when there is none."""
    for error in group.exceptions:
        found = first_of(error) if isinstance(error, BaseExceptionGroup) else error
        if isinstance(found, CorralError):
            return found
    return None
