"""Opens what a comparison needs of a run: its record, its renderer and, where one was named, an engine for logprobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from appliance.capture.rendering.renderer import Renderer
from appliance.config.runconfig import RunConfig, from_record
from appliance.engine.engine import Engine
from appliance.engine.remote import RemoteEngine
from appliance.engine.sampler import engine_settings
from appliance.errors import ModelError
from appliance.operate.rendering_diff import Score, compare, compare_text
from appliance.record.access import reading
from appliance.record.store import Store
from appliance.types import Logprobs, TokenIds

__all__ = ["compare_run", "compare_text"]


async def compare_run(
    home: Path,
    run: str,
    model: Path | None,
    engine_url: str,
    scores: bool,
    told: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """The comparison of a run's calls; `scores` starts the run's own policy, `engine_url` names one that runs."""
    with reading(home) as store:
        run_id = store.run(run).id
        config = from_record(store.run(run_id).config)
        folder = model or _model_folder(home, run_id, config)
        renderer = Renderer.from_folder(folder)
        async with _score(home, store, run_id, config, (engine_url, scores, folder)) as score:
            return await compare(store, run_id, renderer, score, told)


def _model_folder(home: Path, run_id: str, config: RunConfig) -> Path:
    served = home / "runs" / run_id / "model" / "served"
    for folder in (served, Path(config.model.path).expanduser()):
        if (folder / "tokenizer.json").exists():
            return folder
    raise ModelError(f"the model of run {run_id} is no longer at {served}", "name its folder with --model")


@asynccontextmanager
async def _score(
    home: Path, store: Store, run_id: str, config: RunConfig, how: tuple[str, bool, Path]
) -> AsyncIterator[Score | None]:
    engine_url, scores, folder = how
    if engine_url:
        async with RemoteEngine(engine_url) as remote:

            async def ask(ids: TokenIds, version: int) -> Logprobs:
                return await remote.score(ids)

            yield ask
    elif scores:
        async with Engine(engine_settings(config, folder, home / "runs" / run_id / "compare.log")) as engine:
            for version, path, _ in store.versions(run_id):
                await engine.load_adapter(version, path)
            yield engine.score
    else:
        yield None
