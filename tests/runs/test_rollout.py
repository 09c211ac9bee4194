"""One rollout on real Podman with tiny harnesses and graders: every way it can end is one label, and nothing stays."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import NoReturn

import anyio
import pytest

from appliance.config.runconfig import resolve
from appliance.errors import EngineError
from appliance.runs.rollout import shorter
from appliance.runs.teachers import ScriptedTeacher
from appliance.sandbox.podman import Podman
from appliance.types import RolloutState
from tests.support.rollout_bench import CALLER, HONEST, Bench, caller

pytestmark = pytest.mark.real


def test_the_time_limit_that_was_in_force_is_named() -> None:
    assert shorter(90, 600, "timeout_s", "agent") == "rollout.timeout_s"
    assert shorter(900, 600, "timeout_s", "agent") == "the task's own [agent] timeout_sec"


@pytest.mark.anyio
async def test_a_good_rollout_has_a_reward_and_a_bad_one_has_zero(bench: Bench) -> None:
    good = await bench.make(caller())
    bad = await bench.make(caller(), command="echo no > out.txt")
    assert (good.state, good.reward, good.num_calls) == (RolloutState.GRADED, 1.0, 1)
    assert (bad.state, bad.reward) == (RolloutState.GRADED, 0.0)


@pytest.mark.anyio
async def test_a_harness_that_fails_is_named_and_has_no_reward(bench: Bench) -> None:
    ends = [
        (("sh", "-c", "echo broken >&2; exit 3 # {base_url} {prompt}"), "harness:no_call"),
        (("sh", "-c", "sleep 60 # {base_url} {prompt}"), "harness:timeout"),
        (caller("sys.exit(7)"), "harness:exit_code"),
    ]
    for argv, label in ends:
        ended = await bench.make(argv)
        assert (ended.state, ended.reward, ended.failure) == (RolloutState.FAILED, None, label)


@pytest.mark.anyio
async def test_a_grader_that_talks_nonsense_is_never_a_zero(bench: Bench) -> None:
    graders = [
        ("echo banana > /logs/verifier/reward.txt", "grader:bad_reward"),
        ("echo '{\"reward\": 7}' > /logs/verifier/reward.json", "grader:bad_reward"),
        ("ln -s /etc/passwd /logs/verifier/reward.txt", "grader:bad_reward"),
        ("echo fine", "grader:no_reward"),
        ("sleep 60", "grader:timeout"),
    ]
    for grader, label in graders:
        ended = await bench.make(caller(), grader)
        assert (ended.reward, ended.failure) == (None, label)


HUNGRY = "python3 -c 'bytearray(900_000_000)'"


@pytest.mark.anyio
async def test_a_grader_killed_for_memory_is_named_with_the_key_and_is_never_a_zero(bench: Bench) -> None:
    small = {"rollout.memory_mb": "128", "rollout.retries": "0"}
    bench.place = replace(bench.place, config=resolve(None, small))
    for grader in (f"echo 0 > /logs/verifier/reward.txt; {HUNGRY}", f"{HUNGRY}; true", f"{HUNGRY}; echo x"):
        ended = await bench.make(caller(), grader)
        assert (ended.reward, ended.failure) == (None, "grader:out_of_memory"), grader
        assert "rollout.memory_mb" in ended.failure_detail
    graded = await bench.make(caller(), f"{HUNGRY} || echo 0 > /logs/verifier/reward.txt")
    assert (graded.reward, graded.failure) == (0.0, "")  # what starved was the agent's work, and the grader says so


class Dead(ScriptedTeacher):
    """An engine that dies at every call."""

    async def answer(self, *_: object) -> NoReturn:
        raise EngineError("dead", "the sampler ended")


@pytest.mark.anyio
async def test_whatever_part_failed_the_harnesss_last_words_are_on_the_record(bench: Bench) -> None:
    words = "print('last words', flush=True)"
    ungraded = await bench.make(caller(words), "echo fine")
    assert (ungraded.failure, bench.output(ungraded)) == ("grader:no_reward", "last words\n")
    podman = bench.place.pool.hosts[0].podman
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(kill_once_it_works, bench, podman, ungraded.id + 1)
        told = ("python3", "-c", words + CALLER + "import time; time.sleep(60)", "{base_url}", "{prompt}")
        lost = await bench.make(told)
    assert (lost.failure, bench.output(lost)) == ("sandbox:lost", "last words\n")
    bench.teacher = Dead
    unanswered = await bench.make(("python3", "-c", words + CALLER, "{base_url}", "{prompt}"))
    assert unanswered.failure == "engine:dead"
    assert bench.output(unanswered).startswith("last words\n")


async def kill_once_it_works(bench: Bench, podman: Podman, rollout_id: int) -> None:
    """kill -9 of the Podman service, once this rollout's harness has been answered: what it printed before is out."""
    with anyio.fail_after(120):
        while not bench.place.store.calls(rollout_id):
            await anyio.sleep(0.05)
    os.kill(podman.service_pid, signal.SIGKILL)


@pytest.mark.anyio
async def test_what_the_agent_writes_as_its_reward_does_not_count(bench: Bench) -> None:
    cheat = "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; echo 1 > reward.txt; echo '{}' > reward.json"
    ended = await bench.make(caller(), command=cheat)
    assert (ended.state, ended.reward) == (RolloutState.GRADED, 0.0)


@pytest.mark.anyio
async def test_a_process_the_agent_leaves_behind_cannot_touch_the_graded_workspace(bench: Bench) -> None:
    late = "(sleep 1; echo hi > out.txt) >/dev/null 2>&1 & echo no > out.txt"
    grader = f"sleep 1.5; {HONEST}"
    ended = await bench.make(caller(), grader, command=late)
    assert ended.reward == 0.0


@pytest.mark.anyio
async def test_what_an_agent_leaves_for_its_grader_neither_shows_the_tests_nor_stalls_it(bench: Bench) -> None:
    """The hidden file holds the wanted answer; each cheat is graded, and fails."""
    compares = f'echo hi > /tmp/want; cmp -s out.txt "$(dirname "$0")/want.txt"; {HONEST}'
    cheats = [
        "ln -s /tests/want.txt out.txt",
        "ln -s / root; ln -s root/tests/want.txt out.txt",
        "mkfifo out.txt",
        "mkdir deep; cd deep; ln -s ../../tests/want.txt ../out.txt; chmod 000 /workspace",
    ]
    for cheat in cheats:
        bench.hidden = {"want.txt": "hi\n"}
        ended = await bench.make(caller(), compares, command=cheat)
        assert (ended.state, ended.reward) == (RolloutState.GRADED, 0.0), cheat


@pytest.mark.anyio
async def test_a_forged_token_opens_nothing(bench: Bench) -> None:
    forge = (
        'python3 -c "import urllib.request, urllib.error\n'
        "try: urllib.request.urlopen('http://127.0.0.1:8123/s/AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA/v1/models')\n"
        "except urllib.error.HTTPError as e: open('out.txt', 'w').write(str(e.code))\""
    )
    grader = HONEST.replace("= hi", "= 401")
    assert (await bench.make(caller(), grader, command=forge)).reward == 1.0


@pytest.mark.anyio
async def test_a_missing_image_is_the_sandboxs_failure(bench: Bench) -> None:
    bench.place = replace(bench.place, images={"tiny": "localhost/corral-none:0"})
    ended = await bench.make(caller())
    assert (ended.reward, ended.failure) == (None, "sandbox:no_image")
