"""Pause, end one, make one again: told with rollouts that wait for the test instead of for a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest

from appliance.record.lock import lock
from appliance.report.status import status, status_text
from appliance.runs.control import KILLED, Steering
from appliance.types import Purpose, Reward, Rollout, RolloutState
from tests.support.tui_record import Builder


@pytest.fixture
def builder(tmp_path: Path) -> Iterator[Builder]:
    made = Builder(tmp_path)
    made.run("r1")
    yield made
    made.close()


class Rollouts:
    """Rollouts that end when the test says so; `begun` counts attempts."""

    def __init__(self, builder: Builder, count: int) -> None:
        self.store = builder.store
        builder.rollouts("r1", Purpose.TRAIN, 1, "count-1", count)
        self.all = self.store.rollouts("r1")
        self.begun: list[int] = []
        self.may_end = {rollout.id: anyio.Event() for rollout in self.all}
        self.said: list[str] = []
        self.steering = Steering(self.store, lambda level, part, message: self.said.append(message))
        self.draining = anyio.Event()

    async def make(self, rollout: Rollout) -> None:
        self.store.begin(rollout.id, 0)
        self.begun.append(rollout.id)
        await self.may_end[rollout.id].wait()
        self.store.grade(rollout.id, Reward(1.0), "", {})

    async def steered(self, steps: Callable[[], object], parallel: int = 1) -> None:
        """Works through all of them while `steps` happens."""
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(self.steering.work, self.all, parallel, self.draining, self.make)
                await steps()  # type: ignore[misc]

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await anyio.sleep(0.005)

    def states(self) -> list[str]:
        return [f"{r.state} {r.failure}".strip() for r in self.store.rollouts("r1")]


def test_every_rollout_that_ended_is_counted_however_many_are_made_at_once(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.runs.control.PROGRESS_S", 0.0)
    rollouts = Rollouts(builder, 6)

    async def end_one_by_one() -> None:
        await rollouts.until(lambda: len(rollouts.begun) == 3)
        for number in [r.id for r in rollouts.all]:
            said = len(rollouts.said)
            rollouts.may_end[number].set()
            await rollouts.until(lambda said=said: len(rollouts.said) > said)  # type: ignore[misc]

    anyio.run(rollouts.steered, end_one_by_one, 3)
    assert [text.split(" ")[0] for text in rollouts.said] == [f"{n}/6" for n in range(1, 7)]


def test_a_pause_holds_back_what_has_not_begun(builder: Builder) -> None:
    async def whole() -> None:
        r = Rollouts(builder, 2)
        first, second = r.all

        async def steps() -> None:
            await r.until(lambda: r.begun == [first.id])
            r.steering.take("pause", "")
            r.may_end[first.id].set()
            await r.until(lambda: r.states()[0] == "graded")
            await anyio.sleep(0.05)
            assert r.begun == [first.id]
            r.steering.take("unpause", "")
            r.may_end[second.id].set()

        await r.steered(steps)
        assert r.states() == ["graded", "graded"]

    anyio.run(whole)


def test_a_paused_run_can_still_be_drained(builder: Builder) -> None:
    async def whole() -> None:
        r = Rollouts(builder, 1)
        r.steering.take("pause", "")

        async def steps() -> None:
            r.draining.set()

        await r.steered(steps)
        assert r.begun == []

    anyio.run(whole)


def test_a_killed_rollout_has_failed_by_name_and_the_others_go_on(builder: Builder) -> None:
    async def whole() -> None:
        r = Rollouts(builder, 2)
        first, second = r.all

        async def steps() -> None:
            await r.until(lambda: first.id in r.begun)
            r.steering.take("kill", str(first.id))
            r.may_end[second.id].set()

        await r.steered(steps)
        assert r.states() == [f"failed {KILLED}", "graded"]
        assert r.store.rollouts("r1")[0].reward is None

    anyio.run(whole)


def test_a_rollout_under_way_is_made_again_as_a_new_attempt(builder: Builder) -> None:
    async def whole() -> None:
        r = Rollouts(builder, 1)
        (only,) = r.all

        async def steps() -> None:
            await r.until(lambda: r.begun == [only.id])
            r.steering.take("retry", str(only.id))
            await r.until(lambda: r.begun == [only.id, only.id])
            r.may_end[only.id].set()

        await r.steered(steps)
        assert r.states() == ["graded"] and r.store.rollouts("r1")[0].attempt == 2

    anyio.run(whole)


def test_a_failed_rollout_is_made_again_while_its_batch_goes_on_and_a_graded_one_never(builder: Builder) -> None:
    async def whole() -> None:
        r = Rollouts(builder, 3)
        graded, failed, last = r.all

        async def steps() -> None:
            r.may_end[graded.id].set()
            await r.until(lambda: failed.id in r.begun)
            r.steering.take("kill", str(failed.id))
            await r.until(lambda: last.id in r.begun)
            r.steering.take("retry", str(failed.id))
            r.steering.take("retry", str(graded.id))
            for rollout in (failed, last):
                r.may_end[rollout.id].set()

        await r.steered(steps)
        assert r.states() == ["graded"] * 3
        assert r.begun == [graded.id, failed.id, last.id, failed.id]
        assert any(f"rollout={graded.id} cannot be made again" in line for line in r.said)
        r.steering.take("retry", str(failed.id))
        assert "cannot be made again" in r.said[-1]  # the batch is over

    anyio.run(whole)


def test_commands_that_make_no_sense_are_said_and_do_nothing(builder: Builder) -> None:
    r = Rollouts(builder, 1)
    for kind, argument in (("dance", ""), ("kill", "x"), ("kill", "1")):
        r.steering.take(kind, argument)
    assert "'dance'" in r.said[0] and "'x'" in r.said[1] and "not under way" in r.said[2]
    assert r.states() == [RolloutState.PLANNED]


def test_the_commands_ask_the_supervisor_that_is_alive_and_only_that(
    builder: Builder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from appliance.cli import main

    monkeypatch.setenv("CORRAL_HOME", str(builder.home))
    assert main(["kill", "7"]) == 1 and "nothing to kill" in capsys.readouterr().err
    with lock(builder.home, "r1"):
        for words in (["pause"], ["unpause", "--json"], ["kill", "7"], ["retry", "8"]):
            assert main(words) == 0
    assert '"command": "unpause"' in capsys.readouterr().out
    assert builder.store.take_commands("r1") == [("pause", ""), ("unpause", ""), ("kill", "7"), ("retry", "8")]


def test_status_says_that_a_run_is_paused_until_it_goes_on_or_a_new_supervisor_starts(builder: Builder) -> None:
    def is_paused() -> bool:
        found = status(builder.home, "r1")
        assert ("running, paused" in status_text(found)) == found["paused"]
        return bool(found["paused"])

    with lock(builder.home, "r1"):
        builder.store.command("r1", "kill", "7")
        assert not is_paused()
        builder.store.command("r1", "pause")
        builder.store.take_commands("r1")
        builder.store.command("r1", "retry", "7")
        assert is_paused()
        builder.store.command("r1", "unpause")
        assert not is_paused()
        builder.store.command("r1", "pause")
        assert is_paused()
    assert not is_paused()  # nobody is there to hold back
    with lock(builder.home, "r1"):
        builder.store.drop_commands("r1")  # as a supervisor does that begins
        assert not is_paused() and builder.store.take_commands("r1") == [("unpause", "")]
