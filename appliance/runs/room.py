"""How much memory this machine has to give: what the memory plan is held against."""

from __future__ import annotations

import subprocess
from pathlib import Path

from appliance.config.runconfig import RunConfig
from appliance.errors import ConfigError, ModelError
from appliance.runs.memory_plan import Plan, Shape, enforce, plans

POCKET_VOCABULARY = 2048
SMOLLM2 = Shape(576, 9, 3, 64, 1536, 30, 49152, True)
"""Known before its weights are unpacked."""


def available_bytes(config: RunConfig) -> int | None:
    """Free memory of the smallest GPU, or of the machine or its cgroup; None where neither can be read."""
    if config.engine.resolved_device == "cuda":
        return _gpu_bytes()
    found = [value for value in (_machine_bytes(), _cgroup_bytes()) if value is not None]
    return min(found, default=None)


def shape_of(config: RunConfig, home: Path) -> Shape:
    """The shape of the run's model, whether or not it is on disk yet; ModelError when it cannot be known."""
    if config.model.path == "pocket":
        return Shape(192, 6, 6, 32, 384, 3, POCKET_VOCABULARY, True, has_head_norms=True)
    if config.model.path == "smollm2":
        folder = home / "models" / "smollm2"
        return Shape.of(folder) if (folder / "config.json").is_file() else SMOLLM2
    folder = Path(config.model.path).expanduser()
    if not folder.is_dir():
        raise ModelError(f"model.path: {folder} is not a folder", "name a local Hugging Face model folder")
    return Shape.of(folder)


def plan_of(config: RunConfig, home: Path) -> list[Plan]:
    """The plans of a run on this machine, whether or not they fit."""
    return plans(config, shape_of(config, home), available_bytes(config))


def check_room(config: RunConfig, home: Path) -> None:
    """ConfigError unless the run fits this machine; called before anything of it is loaded."""
    if config.engine.sleep and config.engine.resolved_device == "cpu":
        raise ConfigError("engine.sleep: vLLM sleeps on a GPU only; this engine runs on the CPU", "unset engine.sleep")
    enforce(config, shape_of(config, home), available_bytes(config))


def _machine_bytes() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return None


def _cgroup_bytes() -> int | None:
    folder = Path("/sys/fs/cgroup")
    try:
        limit = (folder / "memory.max").read_text().strip()
        return None if limit == "max" else int(limit) - int((folder / "memory.current").read_text())
    except (OSError, ValueError):
        return None


def _gpu_bytes() -> int | None:
    query = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
        return min(int(line) << 20 for line in told.splitlines() if line.strip())
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
