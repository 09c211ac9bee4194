"""Credit of a step's rollouts: by group or by token, by branch, in time; and what is said when none of it teaches."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from appliance.config.runconfig import RunConfig, resolve
from appliance.errors import TrainingError
from appliance.record.conversation import neutral_json
from appliance.record.store import CallDraft, Store
from appliance.train.flat import flat_in_a_row, likely_causes
from appliance.train.gae import GaeSettings, credit
from appliance.train.step_rows import StepRows, step_rows
from appliance.types import Message, Purpose, Request, Reward, RolloutPlan, Sample, StopReason, Tool

BASH = Tool("bash", "Execute a command.", "{}")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    opened = Store.open(tmp_path / "record.db")
    opened.create_run("r", "demo", {}, 0, "test")
    return opened


def config(**keys: object) -> RunConfig:
    return resolve(None, {key.replace("__", "."): str(value) for key, value in keys.items()})


class ARollout:
    """A rollout that records calls, one second after another."""

    def __init__(self, store: Store, index: int = 0, task: str = "a") -> None:
        (rollout,) = store.plan([RolloutPlan("r", Purpose.TRAIN, 1, "pi", task, index)])
        self.id, self._store, self._count = rollout.id, store, 0
        store.begin(rollout.id, 0)

    def call(
        self,
        prompt: list[int],
        sampled: list[int],
        said: str = "",
        version: int = 0,
        lineage: str = "",
        template: str = "",
    ) -> None:
        n = self._count
        sample = Sample(
            np.array(prompt, np.int32), np.array(sampled, np.int32), np.full(len(sampled), -0.5, np.float32),
            StopReason.STOP, version,
        )  # fmt: skip
        messages = (Message("system", said or "You are an agent."), Message("user", f"{said or 'count the files'}"))
        body = neutral_json(Request("chat", "m", messages, (BASH,)), Message("assistant", f"answer number {n}"))
        draft = CallDraft(
            n, "chat", b"", b"", body, sample, "stop", 10.0 + n, 10.5 + n, lineage=lineage, template=template
        )
        self._store.add_call(self.id, draft)
        self._count += 1

    def grade(self, reward: float) -> None:
        self._store.grade(self.id, Reward(reward), "", {})


def helped(store: Store) -> ARollout:
    """Main call, two calls of a sub-agent, the main call that goes on; 2 + 1 + 2 + 3 sampled tokens."""
    rollout = ARollout(store)
    marked = json.dumps({"x-openai-subagent": "review"})
    rollout.call([1, 2], [3, 4])
    rollout.call([7, 8], [9], "You review what others did.", lineage=marked)
    rollout.call([7, 8, 9, 5], [6, 6], "You review what others did.", lineage=marked)
    rollout.call([1, 2, 3, 4, 5], [6, 7, 8])
    rollout.grade(1.0)
    return rollout


def by_time(made: StepRows) -> list[int]:
    """The trained token ids in the order of their times."""
    found = {int(t): int(i) for r in made.rows for t, i in zip(r.times[r.mask], r.ids[r.mask], strict=True)}
    assert sorted(found) == list(range(len(found)))
    return [found[t] for t in range(len(found))]


def test_sampled_tokens_stand_in_the_order_of_their_calls_whatever_branch_they_are_on(store: Store) -> None:
    rollout = helped(store)
    made = step_rows(store, store.rollouts("r"), config(train__algorithm="ppo"))
    assert by_time(made) == [3, 4, 9, 6, 6, 6, 7, 8]
    trajectory = made.trajectories[rollout.id]
    assert trajectory.reward == 1.0 and trajectory.chained.all()
    assert sorted(path.tolist() for path in trajectory.paths) == [[0, 1, 5, 6, 7], [2, 3, 4]]
    assert made.metrics["trained_tokens/sub_agent"] == 3 and made.metrics["trained_tokens/continuation"] == 5


def test_a_branch_is_included_broadcast_or_left_out(store: Store) -> None:
    rollout = helped(store)
    values = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8])
    one_step = GaeSettings(1.0, 0.0)

    def advantages(credit_of_helpers: str) -> list[float]:
        made = step_rows(
            store, store.rollouts("r"), config(train__algorithm="ppo", branches__sub_agent=credit_of_helpers)
        )
        trajectory = made.trajectories[rollout.id]
        assert len(by_time(made)) == len(trajectory.chained)
        kept = values if len(trajectory.chained) == 8 else np.delete(values, [2, 3, 4])
        return credit(trajectory, kept, one_step)[0].tolist()

    assert advantages("include") == pytest.approx([0.1] * 7 + [0.2])
    # the chain jumps over the helper, from 0.2 to 0.6; its three tokens take the credit of the token that called it
    assert advantages("broadcast") == pytest.approx([0.1, 0.4, 0.4, 0.4, 0.4, 0.1, 0.1, 0.2])
    assert advantages("leave_out") == pytest.approx([0.1, 0.4, 0.1, 0.1, 0.2])


@pytest.mark.parametrize(("kind", "tokens"), [("include", 8), ("broadcast", 8), ("leave_out", 5)])
def test_by_group_a_branch_has_its_rollouts_advantage_or_none(store: Store, kind: str, tokens: int) -> None:
    helped(store)
    other = ARollout(store, 1)
    other.call([1, 2], [3])
    other.grade(0.0)
    made = step_rows(store, store.rollouts("r"), config(branches__sub_agent=kind))
    own = [r for r in made.rows if r.advantage > 0]
    assert sum(int(r.mask.sum()) for r in own) == tokens
    assert [r.advantage for r in own] == pytest.approx([0.707106] * len(own), abs=2e-6)


@pytest.mark.parametrize(("algorithm", "expected"), [("grpo", 0.707106), ("dr_grpo", 0.5), ("rloo", 1.0)])
def test_the_group_gives_the_advantage_that_the_configuration_names(
    store: Store, algorithm: str, expected: float
) -> None:
    for n, reward in enumerate((1.0, 0.0)):
        rollout = ARollout(store, n)
        rollout.call([1, 2], [3])
        rollout.grade(reward)
    made = step_rows(store, store.rollouts("r"), config(train__algorithm=algorithm))
    assert [r.advantage for r in made.rows] == pytest.approx([expected, -expected], abs=2e-6)


def test_ppo_learns_from_groups_of_equal_rewards_too(store: Store) -> None:
    for n in range(2):
        rollout = ARollout(store, n)
        rollout.call([1, 2], [3])
        rollout.grade(0.5)
    assert step_rows(store, store.rollouts("r"), config()).rows == []
    made = step_rows(store, store.rollouts("r"), config(train__algorithm="ppo"))
    assert [r.advantage for r in made.rows] == [0.5, 0.5] and len(made.trajectories) == 2


def test_E5_however_a_rollout_is_cut_into_calls_its_tokens_have_the_same_advantage(store: Store) -> None:
    whole, cut, bad = ARollout(store, 0), ARollout(store, 1), ARollout(store, 2)
    whole.call([1, 2], [3, 4, 5, 6])
    cut.call([1, 2], [3, 4])
    cut.call([1, 2, 3, 4], [5, 6])
    bad.call([1, 2], [9])
    for rollout, reward in ((whole, 1.0), (cut, 1.0), (bad, 0.0)):
        rollout.grade(reward)
    made = step_rows(store, store.rollouts("r"), config())
    of = {r.id: [x for x in made.rows if x.rollout == r.id] for r in (whole, cut)}
    assert {x.advantage for x in of[whole.id]} == {x.advantage for x in of[cut.id]}
    assert sum(int(x.mask.sum()) for x in of[cut.id]) == sum(int(x.mask.sum()) for x in of[whole.id]) == 4


def test_long_rollouts_earn_less_where_the_run_says_so(store: Store) -> None:
    for n, length in enumerate((2, 6)):
        rollout = ARollout(store, n)
        rollout.call([1, 2], [3] * length)
        rollout.grade(1.0)
    keys = {"train__overlong_soft": 2, "train__overlong_hard": 10, "train__algorithm": "dr_grpo"}
    made = step_rows(store, store.rollouts("r"), config(**keys))
    assert [r.advantage for r in made.rows] == pytest.approx([0.25, -0.25]) and made.metrics["reward"] == 1.0


def test_only_rollouts_of_the_version_that_is_trained_are_judged_for_parity(store: Store) -> None:
    for n, version in enumerate((0, -1)):
        rollout = ARollout(store, n)
        rollout.call([1, 2], [3], version=version)
        rollout.grade(float(n))
    made = step_rows(store, store.rollouts("r"), config())
    assert list(made.on_policy.values()) == ["pi"] and made.metrics["version_lag"] == 0.5


def test_prompts_made_by_two_templates_are_told_of(store: Store) -> None:
    for n, template in enumerate(("abc", "abd")):
        rollout = ARollout(store, n)
        rollout.call([1, 2], [3], template=template)
        rollout.grade(float(n))
    made = step_rows(store, store.rollouts("r"), config())
    assert (None, "pi: its prompts were made by 2 templates (abc, abd)") in made.told


def test_a_record_without_token_ids_is_refused(store: Store) -> None:
    (rollout,) = store.plan([RolloutPlan("r", Purpose.TRAIN, 1, "pi", "a", 0)])
    store.begin(rollout.id, 0)
    body = neutral_json(Request("chat", "m", (Message("user", "hello"),)), Message("assistant", "done"))
    store.add_call(rollout.id, CallDraft(0, "chat", b"", b"", body, None, "stop", 1.0, 2.0))
    store.grade(rollout.id, Reward(1.0), "", {})
    with pytest.raises(TrainingError, match=r"none of the 1 calls .* has token ids"):
        step_rows(store, store.rollouts("r"), config())


def test_steps_that_teach_nothing_are_counted_and_their_likely_causes_told(store: Store) -> None:
    flat, useful = {"frac_reward_zero_std": 1.0}, {"frac_reward_zero_std": 0.5}
    assert [flat_in_a_row(e, flat) for e in ([], [useful, flat, flat], [flat, useful])] == [1, 3, 1]
    assert flat_in_a_row([flat], useful) == 0

    def causes(task: str, grade: Callable[[int], float | None]) -> str:
        rollouts = []
        for n in range(4):
            rollout = ARollout(store, n, task)
            reward = grade(n)
            if reward is None:
                store.fail(rollout.id, "sandbox:lost", "gone")
            else:
                rollout.grade(reward)
            rollouts += [r for r in store.rollouts("r") if r.id == rollout.id]
        return likely_causes(rollouts)

    assert causes("a", lambda n: 0.0).startswith("no rollout earns anything")
    assert causes("b", lambda n: 1.0).startswith("every rollout earns the same")
    assert causes("c", lambda n: n // 2 * 1.0).startswith("tasks are either always or never solved")
    assert causes("d", lambda n: None).startswith("most rollouts fail (sandbox:lost)")
