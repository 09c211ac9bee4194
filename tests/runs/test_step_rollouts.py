"""Tasks of several steps in real sandboxes: what each step finds, what it may not see, and what the linter says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from appliance.config.runconfig import home, podman_home
from appliance.harness.harness import Harness
from appliance.operate.pack_lint import lint_pack
from appliance.runs.rollout import make_rollout
from appliance.runs.teachers import ScriptedTeacher, StepTeacher
from appliance.sandbox.images.build import base_ref
from appliance.tasks.pack import load_pack
from appliance.types import Purpose, Rollout, RolloutPlan, RolloutState
from tests.support.rollout_bench import Bench, caller
from tests.support.step_tasks import Step, write_task

pytestmark = pytest.mark.real


async def make(bench: Bench, steps: Mapping[str, Step], head: str = "") -> Rollout:
    """One rollout of the tiny harness, told in each step by its own teacher."""
    bench.made += 1
    task = write_task(bench.folder / f"t{bench.made}", steps, head)
    harness = Harness(
        name="tiny", version="1", wire="chat", check=("true",), layer="", argv=caller(), env={},
        files={".tiny/settings": "of this step"}, memory_bytes=200_000_000, pids=64, quirks={},
    )  # fmt: skip
    place = replace(bench.place, harnesses={"tiny": harness})
    (planned,) = place.store.plan([RolloutPlan("r", Purpose.SINGLE, 0, "tiny", task.name, bench.made)])
    await make_rollout(place, planned, task, StepTeacher([ScriptedTeacher([s.command]) for s in steps.values()]), 0)
    (ended,) = [r for r in place.store.rollouts("r") if r.id == planned.id]
    print(ended.failure, ended.failure_detail, bench.output(ended))  # shown when a test fails
    return ended


@pytest.mark.anyio
async def test_a_step_begins_with_what_the_agent_left_and_not_with_what_the_grader_did(bench: Bench) -> None:
    outside = bench.folder.parent / "outside"
    outside.mkdir(mode=0o777)
    first = Step(
        "echo hi > first.txt; echo learnt > ~/memory; rm -rf ~/.tiny; ln -s /tmp ~/.tiny; "
        f"ln -s {outside} data; mkfifo pipe; echo part one"
    )
    second = Step(
        "test ! -e answer.txt && test -p pipe && grep -q learnt ~/memory && grep -q given data/given.txt && "
        "test ! -L ~/.tiny && test -f ready && pgrep -f sleeping >/dev/null && echo hi > second.txt; echo part two",
        setup="test -f first.txt || exit 1; touch ready; (exec -a sleeping sleep 60) &",
        settings='healthcheck.command = "test -f ready"',
    )
    ended = await make(bench, {"first": first, "second": second})
    assert (ended.state, ended.reward) == (RolloutState.GRADED, 1.0)
    assert ended.reward_parts == {"first": 1.0, "first: seen": 1.0, "second": 1.0, "second: seen": 1.0}
    assert bench.output(ended).split("part") == ["", " one\n\n", " two\n"]
    assert list(outside.iterdir()) == [], "the host followed a link of the agent's"
    calls = bench.place.store.calls(ended.id)
    assert [(c.sequence, c.step) for c in calls] == [(0, 0), (1, 1)]
    prompts = [json.loads(c.request_bytes)["messages"][0]["content"] for c in calls]
    assert prompts == ["Write hi to first.txt.", "Write hi to second.txt."]


@pytest.mark.anyio
async def test_a_step_that_earned_too_little_is_the_last(bench: Bench) -> None:
    steps = {"first": Step("true", settings="min_reward = 0.5"), "second": Step("echo hi > second.txt")}
    ended = await make(bench, steps)
    assert (ended.reward, ended.num_calls) == (0.0, 1) and ended.reward_parts == {"first": 0.0, "first: seen": 0.0}
    steps["first"].command = "echo hi > first.txt"
    steps["second"].command = "true"
    ended = await make(bench, steps)
    assert (ended.reward, ended.num_calls) == (0.5, 2)
    ended = await make(bench, steps, 'multi_step_reward_strategy = "final"')
    assert ended.reward == 0.0 and ended.reward_parts["first"] == 1.0


@pytest.mark.anyio
async def test_what_fails_in_a_step_names_it_and_gives_no_reward(bench: Bench) -> None:
    good = Step("echo hi > first.txt; echo said before")
    bad_setup = await make(bench, {"first": good, "second": Step(setup="exit 7")})
    assert (bad_setup.failure, bad_setup.reward) == ("task:setup", None)
    assert bad_setup.failure_detail == "step second: setup.sh ended with code 7"
    assert bench.output(bad_setup).startswith("said before")
    ill = Step(settings='healthcheck = {command = "false", interval_sec = 0.1, retries = 2}')
    unhealthy = await make(bench, {"first": good, "second": ill})
    assert (unhealthy.failure, unhealthy.num_calls) == ("task:unhealthy", 1)
    assert unhealthy.failure_detail == "step second: not healthy after 2 tries: false"
    no_grade = await make(bench, {"first": good, "second": Step(grader="true")})
    assert no_grade.failure == "grader:no_reward" and no_grade.failure_detail.startswith("step second: ")


@pytest.mark.anyio
async def test_a_step_that_begins_with_nothing_left_to_call_with_is_graded(bench: Bench) -> None:
    steps = {name: Step(f"echo hi > {name}.txt") for name in ("a", "b", "c", "d")}  # and a rollout may call three times
    ended = await make(bench, steps)
    assert (ended.state, ended.reward, ended.num_calls) == (RolloutState.GRADED, 0.75, 3)


@pytest.mark.anyio
async def test_what_hangs_before_the_agent_is_the_tasks_failure(bench: Bench) -> None:
    hangs = Step(setup="sleep 60", settings="agent.timeout_sec = 1")
    ended = await make(bench, {"first": hangs})
    assert (ended.failure, ended.num_calls) == ("task:setup", 0)
    assert ended.failure_detail.startswith("step first: setup.sh was still running when it was ended (the task's own")


def test_the_linter_goes_through_all_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_PODMAN_HOME", str(podman_home(home())))
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(parent.stat().st_mode | 0o055)
    always = "echo 1 > /logs/verifier/reward.txt"
    forgeable = "cp reward.txt /logs/verifier/ 2>/dev/null || echo 0 > /logs/verifier/reward.txt"
    flaky = "echo 0.$RANDOM > /logs/verifier/reward.txt"
    planted = {
        "sound": {"one": Step(settings="min_reward = 1"), "two": Step(setup="test -f one.txt || exit 1; touch ready")},
        "free": {"one": Step(), "two": Step(grader=always)},
        "impossible": {"one": Step(), "two": Step(solution="echo ho > {name}.txt")},
        "stuck": {"one": Step(), "two": Step(setup="exit 5")},
        "flaky": {"one": Step(), "two": Step(grader=flaky)},
        "forgeable": {"one": Step(), "two": Step(grader=forgeable, solution="echo 1 > reward.txt")},
    }
    for name, steps in planted.items():
        write_task(tmp_path / "pack" / name, steps)
    (tmp_path / "pack" / "sound" / "steps" / "two" / "solution" / "solve.sh").write_text(
        "test -f ready && echo hi > two.txt\n"
    )
    found = anyio.run(lint_pack, tmp_path / "home", load_pack(tmp_path / "pack"), base_ref(), 2, lambda *_: None)
    problems = {one.task: one.problems for one in found}
    print(problems)
    sound = next(one for one in found if one.task == "sound")
    assert (sound.null, sound.oracle, sound.problems) == (0.0, 1.0, {})
    assert problems["free"] == {"free": "doing nothing earns 0.5"}
    assert problems["impossible"] == {"impossible": "its own solution earns one 1, two 0"}
    why = "its own solution gets no reward: step two: setup.sh ended with code 5"
    assert problems["stuck"] == {"impossible": why}
    assert problems["flaky"]["flaky"].startswith("step two: the oracle's workspace was graded 0.")
    assert problems["forgeable"] == {"forgeable": "files left by an agent that did no work earn 0.5"}
    assert not list((tmp_path / "home" / "lint").iterdir())
