"""The engine against a small fake of vLLM's HTTP server (fast), and against vLLM itself (`real`)."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import anyio
import numpy as np
import pytest

from appliance.config.runconfig import resolve
from appliance.engine.child import Child, command, environment
from appliance.engine.engine import Engine, EngineSettings
from appliance.engine.load import read_load
from appliance.engine.pulse import Pulse
from appliance.engine.sampler import engine_settings
from appliance.errors import EngineError, HostError, ModelError
from appliance.types import StopReason
from tests.support.fake_vllm import adapter

pytestmark = pytest.mark.anyio

HANG_S = 60.0  # bounds a hang, not a busy machine; an engine that dies is told of at once


def test_an_engine_that_is_to_sleep_is_started_for_it_and_no_other(settings: Callable[..., EngineSettings]) -> None:
    for sleeps in (True, False):
        asked = settings(sleeps=sleeps)
        assert ("--enable-sleep-mode" in command(asked, Path("s"))) is sleeps
        assert environment(asked, Path("f")).get("VLLM_SERVER_DEV_MODE") == ("1" if sleeps else None)


def fake_pids(tmp_path: Path) -> list[int]:
    return [int(p) for p in (tmp_path / "pids").read_text().split()]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def until_gone(pids: list[int]) -> None:
    with anyio.fail_after(10):
        while any(is_running(pid) for pid in pids):
            await anyio.sleep(0.05)


async def stop(pid: int) -> None:
    """SIGSTOP, and wait until the process has really stopped: it may be in the middle of an answer."""
    os.kill(pid, signal.SIGSTOP)
    with anyio.fail_after(10):
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            await anyio.sleep(0.01)


@asynccontextmanager
async def failing(cause: str) -> AsyncIterator[None]:
    with pytest.raises(EngineError) as caught:
        yield
    assert caught.value.cause == cause, caught.value.message


# ------------------------------------------------------------------ the fake server


async def test_a_sample_carries_ids_logprobs_and_the_version(settings: Callable[..., EngineSettings]) -> None:
    async with Engine(settings()) as engine:
        sample = await engine.sample([3, 4], max_tokens=3, temperature=0.5)
    assert sample.prompt_ids.tolist() == [3, 4] and sample.sampled_ids.tolist() == [5, 6, 7]
    assert sample.logprobs.tolist() == [-10.0, -12.0, -14.0]
    assert sample.stop_reason is StopReason.LENGTH and sample.policy_version == 0
    assert sample.prompt_ids.dtype == np.int32 and sample.logprobs.dtype == np.float32


@pytest.mark.parametrize(
    "mode", ["no_ids", "no_logprobs", "short_logprobs", "nan", "other_prompt", "other_model", "aborted"]
)
async def test_an_answer_that_is_not_whole_is_an_error(settings: Callable[..., EngineSettings], mode: str) -> None:
    async with Engine(settings(mode)) as engine:
        async with failing("bad_answer"):
            await engine.sample([63], max_tokens=3)
        assert engine.failure is None  # the answer is at fault, not the engine


async def test_a_refused_call_is_an_error_and_the_engine_goes_on(settings: Callable[..., EngineSettings]) -> None:
    async with Engine(settings("refuses")) as engine:
        async with failing("refused"):
            await engine.sample([63], max_tokens=3)
        assert len((await engine.sample([5], max_tokens=2)).sampled_ids) == 2


async def test_raw_logprobs_do_not_pass_the_probe(settings: Callable[..., EngineSettings]) -> None:
    with pytest.raises(HostError, match="not at the temperature"):
        async with Engine(settings("raw_logprobs")):
            pass


async def test_impossible_prompts_never_reach_the_server(settings: Callable[..., EngineSettings]) -> None:
    async with Engine(settings(max_model_len=32)) as engine:
        for ids in ([], [64], [-1]):
            async with failing("bad_prompt"):
                await engine.sample(ids, max_tokens=1)
        async with failing("context_full"):
            await engine.sample([1] * 32, max_tokens=1)
        assert len((await engine.sample([1] * 31, max_tokens=3)).sampled_ids) == 1
        with pytest.raises(ValueError, match="greedy"):
            await engine.sample([1], max_tokens=1, temperature=0.0)


async def test_I6_a_call_goes_to_the_version_stamped_at_dispatch(
    settings: Callable[..., EngineSettings], tmp_path: Path
) -> None:
    one, two = adapter(tmp_path / "one", b"\x01"), adapter(tmp_path / "two", b"\x02")
    async with Engine(settings()) as engine:
        swap = await engine.load_adapter(1, one)
        assert engine.current_version == swap.version == 1 and swap.shift == pytest.approx(0.1, abs=1e-5)
        await engine.load_adapter(2, two)
        old = await engine.sample([12], max_tokens=1, policy_version=1)
        new = await engine.sample([12], max_tokens=1)
        base = await engine.sample([12], max_tokens=1, policy_version=0)
    assert [s.policy_version for s in (base, old, new)] == [0, 1, 2]
    assert [float(s.logprobs[0]) for s in (base, old, new)] == pytest.approx([0.0, -0.1, -0.2])


async def test_only_the_two_newest_versions_stay_loaded(
    settings: Callable[..., EngineSettings], tmp_path: Path
) -> None:
    async with Engine(settings()) as engine:
        for version in (1, 2, 3):
            await engine.load_adapter(version, adapter(tmp_path / str(version), bytes([version])))
        async with failing("unknown_version"):
            await engine.sample([5], max_tokens=1, policy_version=1)
        assert [(await engine.sample([5], max_tokens=1, policy_version=n)).policy_version for n in (2, 3)] == [2, 3]


async def test_a_swap_that_changes_nothing_is_an_error(settings: Callable[..., EngineSettings], tmp_path: Path) -> None:
    one, two = adapter(tmp_path / "one", b"\x01"), adapter(tmp_path / "two", b"\x02")
    async with Engine(settings("stale")) as engine:
        await engine.load_adapter(1, one)
        async with failing("stale_weights"):
            await engine.load_adapter(2, two)
        assert engine.current_version == 1


async def test_a_dead_engine_fails_calls_with_its_last_lines(
    settings: Callable[..., EngineSettings], tmp_path: Path
) -> None:
    async with Engine(settings("drops")) as engine:
        with anyio.fail_after(HANG_S), pytest.raises(EngineError, match="last words") as caught:
            await engine.sample([63], max_tokens=1)
        assert caught.value.cause == "dead"
        async with failing("dead"):
            await engine.sample([5], max_tokens=1)
        await until_gone(fake_pids(tmp_path))


async def test_a_hung_call_ends_at_its_deadline_and_ends_the_engine(
    settings: Callable[..., EngineSettings], tmp_path: Path
) -> None:
    async with Engine(settings("hung", call_deadline_s=0.3)) as engine:
        async with failing("hung"):
            await engine.sample([63], max_tokens=1)
        await until_gone(fake_pids(tmp_path))
        assert engine.failure is not None and engine.failure.cause == "hung"


async def test_an_engine_without_health_is_ended(settings: Callable[..., EngineSettings], tmp_path: Path) -> None:
    async with Engine(settings(health_every_s=0.05, health_deadline_s=0.3)) as engine:
        await stop(fake_pids(tmp_path)[0])
        async with failing("hung"):
            await engine.sample([5], max_tokens=1)
        await until_gone(fake_pids(tmp_path))
        assert engine.failure is not None and engine.failure.cause == "hung"


async def test_an_engine_that_owes_a_call_and_does_nothing_is_ended(
    settings: Callable[..., EngineSettings], tmp_path: Path
) -> None:
    async with Engine(settings("hung", health_every_s=0.1, still_s=1.0)) as engine:
        with anyio.fail_after(HANG_S), pytest.raises(EngineError, match="its workers do nothing") as caught:
            await engine.sample([63], max_tokens=1)  # the fake answers health questions meanwhile
        assert caught.value.cause == "hung"
        await until_gone(fake_pids(tmp_path))


async def test_a_stopped_engine_is_ended_before_its_health_deadline(
    settings: Callable[..., EngineSettings], tmp_path: Path
) -> None:
    async with Engine(settings(health_every_s=0.1, still_s=1.0, health_deadline_s=600.0)) as engine:
        await stop(fake_pids(tmp_path)[0])
        with anyio.fail_after(HANG_S), pytest.raises(EngineError, match=r"a health question .* does nothing"):
            await engine.sample([5], max_tokens=1)
        await until_gone(fake_pids(tmp_path))


async def test_a_process_that_runs_or_waits_for_a_core_is_not_still() -> None:
    """One that only spins and one that sleeps, looked at as a server is."""
    line = "import time, sys\nprint(1, flush=True)\n"
    for code, is_still in (("while True: pass", False), ("time.sleep(600)", True)):
        process = await anyio.open_process([sys.executable, "-c", line + code], stderr=None)
        try:
            assert process.stdout is not None
            await process.stdout.receive()
            pulse = Pulse()
            with anyio.move_on_after(HANG_S):
                for _ in range(1000 if is_still else 30):
                    pulse.look([process.pid])
                    if pulse.still >= 5:
                        break
                    await anyio.sleep(0.05)
            assert (pulse.still >= 5) is is_still
        finally:
            process.kill()
            await process.aclose()


async def test_one_hung_call_fails_the_others_at_once(settings: Callable[..., EngineSettings]) -> None:
    causes: list[str] = []

    async def call(engine: Engine) -> None:
        with pytest.raises(EngineError) as caught:
            await engine.sample([63], max_tokens=1)
        causes.append(caught.value.cause)

    async with Engine(settings("hung", call_deadline_s=0.3)) as engine, anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(call, engine)
    assert causes == ["hung"] * 3


async def test_a_restarted_engine_answers_for_the_same_version(
    settings: Callable[..., EngineSettings], tmp_path: Path
) -> None:
    async with Engine(settings()) as engine:
        await engine.load_adapter(4, adapter(tmp_path / "four", b"\x04"))
        before = await engine.sample([12], max_tokens=1)
        os.kill(fake_pids(tmp_path)[0], signal.SIGKILL)
        await until_gone(fake_pids(tmp_path))
        await engine.restart()
        after = await engine.sample([12], max_tokens=1)
    assert after.policy_version == before.policy_version == 4
    assert after.logprobs.tolist() == before.logprobs.tolist()


def test_the_last_lines_are_those_that_say_why_it_ended(tmp_path: Path) -> None:
    farewell = [
        "(APIServer pid=7) INFO 11-29 23:44:37 [core_client.py:770] [shutdown] MPClient: start timeout=0s",
        *(f' - leaked instance of type "{n}"' for n in range(9)),
        " - ... skipped remainder",
        "See https://nanobind.readthedocs.io/en/latest/refleaks.html/lib/python3.11/resource_tracker.py:254: leaked",
        "  warnings.warn('resource_tracker: There appear to be %d '",
    ]
    why = "(EngineCore pid=8) ERROR 11-29 23:44:37 [core.py:1512] RuntimeError: head_dim=16 is not supported"
    log = tmp_path / "engine.log"
    log.write_text("\n".join(["up", why, *farewell]) + "\n")
    assert Child(None, tmp_path, log).tail() == "up\nRuntimeError: head_dim=16 is not supported"  # type: ignore[arg-type]


async def test_an_engine_that_does_not_start_says_why(settings: Callable[..., EngineSettings]) -> None:
    with pytest.raises(HostError, match=r"(?s)ended with code 3.*last words.*remedy.*engine\.log"):
        async with Engine(settings("no_start")):
            pass


async def test_an_engine_that_is_never_ready_is_given_up(settings: Callable[..., EngineSettings]) -> None:
    with pytest.raises(HostError, match="not ready after"):
        async with Engine(settings("never_ready", startup_deadline_s=0.5)):
            pass


async def test_nothing_is_left_after_a_stop(settings: Callable[..., EngineSettings], tmp_path: Path) -> None:
    async with Engine(settings()) as engine:
        folder = engine._child.socket.parent if engine._child else tmp_path
        assert folder.exists()
    await until_gone(fake_pids(tmp_path))
    assert not folder.exists()


async def test_nothing_is_left_when_the_supervisor_is_killed(
    settings: Callable[..., EngineSettings], tmp_path: Path
) -> None:
    built = settings()
    script = (
        "import anyio, pathlib\nfrom appliance.engine.engine import Engine, EngineSettings\n"
        "async def main():\n"
        f"    s = EngineSettings(model=pathlib.Path({str(built.model)!r}), log=pathlib.Path({str(built.log)!r}),"
        f" program={built.program!r})\n"
        "    async with Engine(s):\n        print('up', flush=True)\n        await anyio.sleep(600)\n"
        "anyio.run(main)\n"
    )
    supervisor = await anyio.open_process([sys.executable, "-c", script], stderr=None)
    try:
        assert supervisor.stdout is not None
        assert (await supervisor.stdout.receive()).strip() == b"up"
    finally:
        supervisor.kill()
        await supervisor.aclose()
    await until_gone(fake_pids(tmp_path))


async def test_nothing_is_left_when_the_guard_is_killed(
    settings: Callable[..., EngineSettings], tmp_path: Path
) -> None:
    async with Engine(settings()) as engine:
        assert engine._child is not None
        os.kill(engine._child._process.pid, signal.SIGKILL)
        await until_gone(fake_pids(tmp_path))
        async with failing("dead"):
            await engine.sample([5], max_tokens=1)


async def test_a_folder_that_is_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nowhere/config\.json"):
        Engine(EngineSettings(model=tmp_path / "nowhere", log=tmp_path / "log"))


async def test_the_server_is_told_to_stay_offline_and_off_the_network(tmp_path: Path) -> None:
    settings = EngineSettings(model=tmp_path, log=tmp_path / "log")
    switches, line = environment(settings, tmp_path), command(settings, tmp_path / "api.sock")
    assert {switches[k] for k in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "VLLM_NO_USAGE_STATS")} == {"1"}
    assert line[line.index("--uds") + 1] == str(tmp_path / "api.sock") and "--port" not in line


# ------------------------------------------------------------------ vLLM itself


def tiny_model(folder: Path) -> Path:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=512, tie_word_embeddings=True,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).float()
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(4)  # else all ids are about equally likely
    model.save_pretrained(folder)
    return folder


def tiny_adapter(model: Path, folder: Path) -> Path:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(1)
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    get_peft_model(
        base, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", init_lora_weights=False)
    ).save_pretrained(folder)
    return folder


@pytest.mark.real
async def test_each_kind_of_weights_is_as_far_from_the_trainer_as_it_has_to_be(tmp_path: Path) -> None:
    """engine.weights: the gap |log π − log μ| of one sample, against the trainer's own NF4 policy and adapter."""
    from appliance.train.bases import BaseSettings
    from appliance.train.batch import Sequence, pack
    from appliance.train.policy import PolicySettings, load_policy
    from appliance.train.weights import export_served

    model = tiny_model(tmp_path / "base")
    folder = tiny_adapter(model, tmp_path / "adapter")
    export_served(model, BaseSettings("nf4"), tmp_path / "served")
    policy = load_policy(model, PolicySettings(BaseSettings("nf4"), 8), folder)
    prompt = [int(i) for i in np.random.default_rng(0).integers(0, 512, 150)]
    gaps = {}
    for weights in ("dequantised", "original", "nf4"):
        config = resolve(None, {"engine.weights": weights, "engine.max_model_len": 512, "engine.kv_cache_gib": 0.25})
        served = tmp_path / ("served" if weights == "dequantised" else "base")
        settings = engine_settings(config, served, tmp_path / f"{weights}.log")
        async with Engine(settings) as engine:
            await engine.load_adapter(1, folder)
            sample = await engine.sample(prompt, 20, 1.0, seed=2, policy_version=1)
        ids = np.concatenate([sample.prompt_ids, sample.sampled_ids])
        row = Sequence(ids, np.arange(len(ids)) >= len(prompt), np.zeros(len(ids), np.float32), 0.0, 0)
        (packed,) = pack([row], 1 << 20)
        gaps[weights] = float(np.abs(policy.logprobs(packed, 1.0).detach().numpy() - sample.logprobs).mean())
    print(gaps)
    assert gaps["dequantised"] < 1e-4 < gaps["nf4"] < 0.1 and gaps["nf4"] < gaps["original"]


def reference_logprobs(
    model: Path, adapter: Path | None, prompt: list[int], sampled: list[int], temperature: float
) -> list[float]:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    net = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    if adapter is not None:
        net = PeftModel.from_pretrained(net, adapter)
    with torch.no_grad():
        logits = net(torch.tensor([prompt + sampled])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits / temperature, -1)[range(len(sampled)), sampled].tolist()


@pytest.mark.slow
async def test_the_plugin_adds_each_adapter_to_its_own_rows_only() -> None:
    import torch

    from appliance.engine.vllm_plugin import add_lora_linear, rows_by_adapter

    torch.manual_seed(0)
    a, b = torch.randn(2, 3, 1, 4, 8), torch.randn(2, 3, 1, 5, 4)  # two slices of five outputs, three slots
    x, y = torch.randn(6, 8), torch.randn(6, 10)
    for indices in ([0, -1, 2, 2, 0, -1], [1] * 6, [-1] * 6):
        wrapper = SimpleNamespace(rows_by_adapter=rows_by_adapter(torch.tensor(indices)))
        found = y.clone()
        add_lora_linear(wrapper, found, x, tuple(a), tuple(b), 0.5, (5, 5))
        for row, slot in enumerate(indices):
            added = torch.cat([0.5 * b[s, slot, 0] @ a[s, slot, 0] @ x[row] for s in (0, 1)]) if slot >= 0 else 0.0
            assert torch.allclose(found[row], y[row] + added, atol=1e-5)


@pytest.mark.real
async def test_vllm_agrees_with_transformers_and_leaves_nothing_behind(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model")
    folder = tiny_adapter(model, tmp_path / "adapter")
    prompt = [int(i) for i in np.random.default_rng(0).integers(0, 512, 150)]
    settings = EngineSettings(model=model, log=tmp_path / "engine.log", max_model_len=512, threads=2, kv_cache_gib=0.25)
    async with Engine(settings) as engine:
        base = await engine.sample(prompt, max_tokens=20, temperature=0.7, seed=1)
        swap = await engine.load_adapter(1, folder)
        results = {}

        async def call(version: int) -> None:
            results[version] = await engine.sample(prompt, 20, 0.7, seed=2, policy_version=version)

        async with anyio.create_task_group() as group:  # both versions in one batch
            group.start_soon(call, 0)
            group.start_soon(call, 1)
        scores = await engine.score(prompt + base.sampled_ids.tolist(), policy_version=0)
        assert swap.shift > 0.01
        for sample, path in ((base, None), (results[0], None), (results[1], folder)):
            wanted = reference_logprobs(model, path, prompt, sample.sampled_ids.tolist(), 0.7)
            assert np.abs(sample.logprobs - wanted).max() < 1e-3
        wanted = reference_logprobs(model, None, prompt, base.sampled_ids.tolist(), 1.0)
        assert np.abs(scores[len(prompt) - 1 :] - wanted).max() < 1e-3
        load = read_load((await engine.ask("/metrics")).body)
        assert load["running"] == load["waiting"] == 0 and 0 <= load["cache_share"] <= 1, load
        assert load["prefix_queries"] > 150 and load["prefix_hits"] > 0 and load["sampled_tokens"] >= 60, load
        stop = int(base.sampled_ids[3])
        cut = await engine.sample(prompt, 20, 0.7, stop_ids=[stop], seed=1, policy_version=0)
        assert cut.stop_reason is StopReason.STOP and int(cut.sampled_ids[-1]) == stop

        await kill_and_see_it_fail(engine, prompt, name="")
        await engine.restart()
        assert (await engine.sample(prompt, 20, 0.7, seed=2)).sampled_ids.tolist() == results[1].sampled_ids.tolist()
        await kill_and_see_it_fail(engine, prompt, name="VLLM::EngineCore")
        for name in ("VLLM::EngineCore", ""):  # a server that hangs: without its worker's answers, or without any
            await engine.restart()
            await kill_and_see_it_fail(engine, prompt, name, signal.SIGSTOP, "hung")


async def kill_and_see_it_fail(
    engine: Engine, prompt: list[int], name: str, sign: int = signal.SIGKILL, cause: str = "dead"
) -> None:
    """A signal to the API server (no name) or to the process called `name`, and what calls then say."""
    group_id = engine._child.pid() if engine._child else None
    assert group_id is not None
    members = [pid for pid in all_pids() if group_of(pid) == group_id]
    assert len(members) >= 2
    named = [pid for pid in members if Path(f"/proc/{pid}/cmdline").read_text().startswith(name)]
    os.kill(named[0] if name else group_id, sign)
    began = time.monotonic()
    with anyio.fail_after(HANG_S):
        async with failing(cause):
            await engine.sample(prompt, max_tokens=20)
    print(f"{cause} ({name or 'API server'}) told after {time.monotonic() - began:.1f} s")  # for LOG.md; with -s
    await until_gone(members)


def all_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None
