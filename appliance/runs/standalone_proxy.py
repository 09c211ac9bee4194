"""`corral proxy`: the capture proxy alone, over a running vLLM or one started on a model folder.

What a harness says through it is recorded as one rollout of a run of its own, to be looked at with `corral calls`,
`corral tree` and `corral call`. Started again with the same run, it goes on with the same token and the same record:
a repeated request gets its recorded answer.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from appliance.capture.proxy import Limits, Proxy
from appliance.capture.rendering.families import renderer_of
from appliance.capture.rendering.renderer import Renderer
from appliance.config.runconfig import RunConfig, from_record
from appliance.engine.engine import Engine
from appliance.engine.policy_responder import Engine as Samples
from appliance.engine.policy_responder import EngineAnswerer, Sampling
from appliance.engine.probe import probe_prompt
from appliance.engine.remote import RemoteEngine
from appliance.engine.sampler import engine_settings
from appliance.errors import ConfigError, EngineError, HostError, StoreError
from appliance.record.access import code_version, writing
from appliance.record.store import Store
from appliance.sandbox.settings import proxy_directory
from appliance.system.files import private_folder
from appliance.types import Purpose, RolloutPlan, RunState

KEY_VARIABLE = "CORRAL_ENGINE_KEY"
NOTE = "proxy.json"
_LIMITS = Limits(max_calls=1_000_000, max_sampled_tokens=1 << 40, max_replays=1_000_000)


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for. `model` is the folder with tokenizer and chat template, and weights unless `engine_url`.

    `run` goes on with an earlier proxy's record; None begins a new one.
    """

    config: RunConfig
    engine_url: str = ""
    served_model: str = ""
    port: int = 8123
    run: str | None = None


@dataclass(frozen=True, slots=True)
class Serving:
    """What a harness needs to know to call the proxy."""

    run: str
    rollout: int
    url: str
    token: str
    model: str

    @property
    def session_url(self) -> str:
        """The base URL that carries the token; OpenAI's clients take it with /v1, Anthropic's and Google's without."""
        return f"{self.url}/s/{self.token}"


async def serve(home: Path, wish: Wish, ready: Callable[[Serving], Awaitable[None]]) -> None:
    """Serves until `ready`, which is told the address once it answers, returns."""
    with writing(home) as store:
        config = from_record(store.run(wish.run).config) if wish.run else wish.config
        folder = Path(config.model.path).expanduser()
        if not folder.is_dir():
            raise ConfigError(f"model.path: {folder} is no folder", "name a model's folder: corral proxy FOLDER")
        renderer = renderer_of(folder, config.model.renderer)
        run_id, rollout_id, token = _open_run(home, store, config, wish.run)
        log = home / "runs" / run_id / "engine.log"
        with _alone(home / "runs" / run_id / NOTE, run_id):
            try:
                async with _engine(config, renderer, log, wish) as (engine, length):
                    sampling = Sampling(
                        temperature=config.rollout.temperature,
                        max_tokens=config.rollout.max_tokens,
                        context_length=length,
                        seed=config.seed,
                        rendering=config.rollout.rendering,
                    )
                    answerer = EngineAnswerer(engine, renderer, sampling)
                    directory = proxy_directory(home) / str(os.getpid())  # several may serve one record
                    async with Proxy(store, directory, _LIMITS, answerer, port=wish.port) as proxy:
                        proxy.open(rollout_id, token)
                        url = f"http://127.0.0.1:{proxy.port}"
                        await ready(Serving(run_id, rollout_id, url, token, folder.name))
            finally:
                store.move_run(run_id, RunState.STOPPED, "the proxy was stopped; `corral proxy --run` goes on")


@contextmanager
def _alone(note: Path, run_id: str) -> Iterator[None]:
    """Holds a run for one proxy: two would number its calls alike, and one would lose them."""
    with note.open("rb") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            raise HostError(f"another `corral proxy` serves run {run_id}", "stop it first, or leave out --run") from e
        yield


@asynccontextmanager
async def _engine(config: RunConfig, renderer: Renderer, log: Path, wish: Wish) -> AsyncIterator[tuple[Samples, int]]:
    """(what samples, tokens of context): the given server, or one of our own on the model folder."""
    if not wish.engine_url:
        settings = engine_settings(config, Path(config.model.path).expanduser(), log)
        async with Engine(settings) as own:
            yield own, settings.max_model_len
        return
    key = os.environ.get(KEY_VARIABLE, "")
    async with RemoteEngine(wish.engine_url, wish.served_model, key) as remote:
        try:
            await remote.probe(probe_prompt(renderer.vocab_size), config.rollout.temperature)
        except EngineError as e:
            remedy = "name a vLLM that returns token ids, or set rollout.temperature=1"
            raise HostError(f"{wish.engine_url} cannot be recorded: {e.message}", remedy) from e
        yield remote, remote.max_model_len or config.engine.max_model_len


def _open_run(home: Path, store: Store, config: RunConfig, run: str | None) -> tuple[str, int, str]:
    """(run, rollout, token), new or those of an earlier proxy; the token lies in a file only its owner can read."""
    if run is not None:
        run_id = store.run(run).id
        try:
            note = json.loads((home / "runs" / run_id / NOTE).read_text(encoding="utf-8"))
            rollout_id, token = int(note["rollout"]), str(note["token"])
        except (OSError, ValueError, LookupError) as e:
            raise StoreError(f"run {run_id} is not a proxy's: {e}", "leave out --run to begin a new one") from e
        store.move_run(run_id, RunState.RUNNING)
        return run_id, rollout_id, token
    run_id = f"proxy-{time.strftime('%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    store.create_run(run_id, "proxy", config.model_dump(mode="json"), config.seed, code_version())
    store.move_run(run_id, RunState.RUNNING)
    (rollout,) = store.plan([RolloutPlan(run_id, Purpose.SINGLE, 0, "yours", "yours", 0)])
    store.begin(rollout.id, 0)
    token = secrets.token_urlsafe(16)
    path = private_folder(private_folder(home / "runs") / run_id) / NOTE
    path.touch(mode=0o600)
    path.write_text(json.dumps({"rollout": rollout.id, "token": token}), encoding="utf-8")
    return run_id, rollout.id, token
