"""The proxy alone over a scripted vLLM on a real socket: recorded, continued after a restart, looked at, compared."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import httpx
import numpy as np
import pytest

from appliance.bench.load.drive import Size, Target, cpu_by_size, load, process
from appliance.bench.load.model import bodies, tokenizer_folder
from appliance.cli import main
from appliance.config.runconfig import resolve
from appliance.engine.remote import RemoteEngine
from appliance.errors import ConfigError, EngineError, HostError
from appliance.operate.rerender import compare_run
from appliance.record.access import reading
from appliance.runs.standalone_proxy import Serving, Wish, serve
from appliance.types import RunState

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    folder = tmp_path_factory.mktemp("scripted")
    tokenizer_folder(folder / "model")
    with process(["-m", "appliance.bench.load.engine", str(folder / "model"), "0"], folder / "log") as (port, _):
        yield folder / "model", f"http://127.0.0.1:{port}/v1"


async def talk(home: Path, engine: tuple[Path, str], num_calls: int, run: str | None = None) -> tuple[Serving, list]:  # type: ignore[type-arg]
    answers: list[object] = []
    seen: list[Serving] = []

    async def ready(serving: Serving) -> None:
        seen.append(serving)
        async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
            for body in islice(bodies(1, 200), num_calls):
                reply = await http.post(f"{serving.session_url}/v1/chat/completions", content=body)
                answers.append((reply.status_code, reply.json()))

    config = resolve(None, {"model.path": str(engine[0])})
    await serve(home, Wish(config, engine[1], port=0, run=run), ready)
    return seen[0], answers


async def test_what_is_said_through_it_is_recorded_continued_and_shown(
    tmp_path: Path, engine: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    first, said = await talk(tmp_path, engine, 2)
    again, repeated = await talk(tmp_path, engine, 3, first.run)
    assert (again.token, again.rollout) == (first.token, first.rollout)
    assert repeated[:2] == said and [status for status, _ in repeated] == [200] * 3

    monkeypatch.setenv("CORRAL_HOME", str(tmp_path))
    assert main(["calls", str(first.rollout), "--json"]) == 0
    calls = json.loads(capfdbinary.readouterr().out)["calls"]
    assert [call["sequence"] for call in calls] == [0, 1, 2]
    assert main(["call", str(calls[1]["call"]), "--raw"]) == 0
    assert next(islice(bodies(1, 200), 1, 2)) in capfdbinary.readouterr().out
    assert main(["call", "999"]) == 1

    found = await compare_run(tmp_path, first.run, engine[0], "", scores=False)
    # The scripted engine spells its calls as no template would, so every later prompt changes when rendered anew.
    assert (found["graft"]["forks"], found["template"]["forks"], found["calls"]) == (0, 2, 3)
    assert found["rollouts"][0]["recorded_as"] == "graft" and found["needs_engine"]
    assert found["template"]["unique_tokens"] > found["graft"]["unique_tokens"]


async def test_a_remote_engine_that_does_not_keep_its_word_is_refused(engine: tuple[Path, str]) -> None:
    async with RemoteEngine(engine[1]) as remote:
        sample = await remote.sample(np.arange(5, dtype=np.int32), 8)
        assert sample.prompt_ids.tolist() == [0, 1, 2, 3, 4] and len(sample.logprobs) == len(sample.sampled_ids)
        # It says the same logprobs at every temperature: not those it would have sampled with.
        await remote.probe([1, 2, 3])
        with pytest.raises(EngineError, match="not at the temperature"):
            await remote.probe([1, 2, 3], temperature=0.7)
    with pytest.raises(HostError, match="serves no model 'other'"):
        async with RemoteEngine(engine[1], "other"):
            pass
    with pytest.raises(HostError, match="not an http"):
        RemoteEngine("ftp://x")


async def test_one_run_is_served_by_one_proxy_at_a_time(tmp_path: Path, engine: tuple[Path, str]) -> None:
    config = resolve(None, {"model.path": str(engine[0])})

    async def never(serving: Serving) -> None:
        raise AssertionError("it must not serve")

    async def ready(serving: Serving) -> None:
        with pytest.raises(HostError, match=f"another `corral proxy` serves run {serving.run}"):
            await serve(tmp_path, Wish(config, engine[1], port=0, run=serving.run), never)
        with reading(tmp_path) as store:
            assert store.run(serving.run).state is RunState.RUNNING

    await serve(tmp_path, Wish(config, engine[1], port=0), ready)


async def test_a_proxy_without_a_model_says_what_to_name(tmp_path: Path) -> None:
    async def ready(serving: Serving) -> None:
        raise AssertionError("it must not serve")

    with pytest.raises(ConfigError, match="no folder"):
        await serve(tmp_path, Wish(resolve(None, {"model.path": str(tmp_path / "none")})), ready)


def test_the_load_of_the_bench_loses_and_doubles_nothing(tmp_path: Path, engine: tuple[Path, str]) -> None:
    port = engine[1].rpartition(":")[2].partition("/")[0]
    (tmp_path / "model").symlink_to(engine[0])
    with process(["-m", "appliance.bench.load.ours", str(tmp_path), port, "6"], tmp_path / "log") as (own, pid):
        target = Target(own, lambda n: f"/s/t{n}/v1/chat/completions", pids=(pid,))
        found = load(target, Size(5, 100, 0, 4))
        assert (found.failed, len(found.latencies)) == (0, 20) and found.rss_after > 0
        used = cpu_by_size(target, (100,), 2)
        assert len(used) == 1 and used[0] > 0
