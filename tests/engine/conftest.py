"""What the tests of one engine and of several ask for: asyncio alone, and settings of an engine that is a fake."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.engine.engine import EngineSettings
from tests.support.fake_vllm import FAKE


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps({"vocab_size": 64, "hidden_size": 8, "num_attention_heads": 2, "head_dim": 4})
    )
    return folder


@pytest.fixture
def settings(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., EngineSettings]:
    """Settings of a fake engine that behaves as `mode` says."""
    (tmp_path / "fake.py").write_text(FAKE)
    monkeypatch.setenv("FAKE_PIDS", str(tmp_path / "pids"))

    def build(mode: str = "good", **more: object) -> EngineSettings:
        program = (sys.executable, "-S", str(tmp_path / "fake.py"), mode)
        return EngineSettings(model=model, log=tmp_path / "logs" / "engine.log", program=program, **more)  # type: ignore[arg-type]

    return build
