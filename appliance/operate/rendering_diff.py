"""`corral compare-rendering`: what a run's calls would have been fed in the other rendering mode. Works offline.

Each recorded conversation is rendered again as `graft` and as `template`, each mode in its own forest, with the ids
that were sampled. A *fork* is a call whose prompt does not go on from the call it continues: in `template` mode the
sampled turn was encoded again and came out as other ids. Logprobs of the sampled ids under the re-rendered prompt
need a model; without one they are left out and said so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from appliance.capture.history import History
from appliance.capture.rendering.renderer import Renderer
from appliance.errors import ModelError, StoreError
from appliance.record.conversation import from_neutral_json
from appliance.record.store import Store
from appliance.trees.tree import recover
from appliance.types import Call, Logprobs, Request, Sample, TokenIds

Score = Callable[[TokenIds, int], Awaitable[Logprobs]]
"""(ids, policy version) → logprobs of ids[1:], each given all before it, at temperature 1."""


@dataclass(slots=True)
class _Mode:
    """What one mode made of the calls: prompts in the order of the calls, and the calls that fork."""

    samples: list[Sample] = field(default_factory=list)
    forks: int = 0

    def numbers(self) -> dict[str, int]:
        prompts = sum(len(sample.prompt_ids) for sample in self.samples)
        return {"forks": self.forks, "prompt_tokens": prompts, "unique_tokens": recover(self.samples).num_unique_tokens}


@dataclass(frozen=True, slots=True)
class _Turn:
    """A call to render: what was asked, what was sampled, and the earlier call that it continues."""

    call: Call
    sample: Sample
    request: Request
    parent: tuple[int, int] | None


async def compare(
    store: Store,
    run_id: str,
    renderer: Renderer,
    score: Score | None,
    told: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """The report of a run, whose `rollouts` have a row each. StoreError when there is nothing to compare.

    `told` hears how many rollouts are done, and of how many.
    """
    rows: list[dict[str, Any]] = []
    differences: list[float] = []
    rollouts = store.rollouts(run_id)
    for done, rollout in enumerate(rollouts):
        if told is not None:
            told(done, len(rollouts))
        turns = _turns(store, rollout.id)
        if not turns:
            continue
        modes = {name: _render(turns, renderer, name == "graft") for name in ("graft", "template")}
        gaps = await _gaps(turns, modes["template"], score) if score is not None else []
        differences += gaps
        recorded = _as_recorded(turns, modes)
        row: dict[str, Any] = {"rollout": rollout.id, "calls": len(turns), "recorded_as": recorded}
        row |= {name: mode.numbers() for name, mode in modes.items()}
        rows.append(row | {"logprob_difference": _summary(gaps)})
    if not rows:
        raise StoreError(f"run {run_id} has no call with token ids", "teachers' calls have none; name another run")
    total = {
        name: {key: sum(row[name][key] for row in rows) for key in ("forks", "prompt_tokens", "unique_tokens")}
        for name in ("graft", "template")
    }
    missing = [] if score is not None else ["logprob_difference: needs the run's model, --engine URL or --score"]
    return {
        "run": run_id,
        "calls": sum(row["calls"] for row in rows),
        **total,
        "logprob_difference": _summary(differences),
        "needs_engine": missing,
        "rollouts": rows,
    }


def _turns(store: Store, rollout_id: int) -> list[_Turn]:
    """The calls of a rollout that have ids, each with the earlier one that it continues."""
    history: History[int] = History()
    turns: list[_Turn] = []
    for call, text in zip(store.calls(rollout_id), store.conversations(rollout_id), strict=True):
        if call.sample is None or not text:
            continue
        messages, tools, answer = from_neutral_json(text)
        request = Request(call.wire, "", messages, tools)
        place = history.look(request)
        parent = (place.call, place.n) if place.call is not None else None
        history.add(request, place.history, answer, len(turns))
        turns.append(_Turn(call, call.sample, request, parent))
    return turns


def _render(turns: Sequence[_Turn], renderer: Renderer, grafts: bool) -> _Mode:
    mode = _Mode()
    for turn in turns:
        request = turn.request
        before = mode.samples[turn.parent[0]] if turn.parent is not None else None
        try:
            if before is not None and grafts and turn.parent is not None:
                new = request.messages[turn.parent[1] :]
                ids = renderer.graft(before.prompt_ids, before.sampled_ids, new, request.tools)
            else:
                ids = renderer.render(request.messages, request.tools)
        except ModelError as e:
            raise ModelError(f"call {turn.call.id}: {e.message}", e.remedy) from e
        if before is not None:
            path = np.concatenate([before.prompt_ids, before.sampled_ids])
            mode.forks += not np.array_equal(ids[: len(path)], path)
        sample = turn.sample
        mode.samples.append(Sample(ids, sample.sampled_ids, sample.logprobs, sample.stop_reason, sample.policy_version))
    return mode


def _as_recorded(turns: Sequence[_Turn], modes: dict[str, _Mode]) -> str:
    """The mode whose prompts are those that were fed; `neither` when the model's template changed since."""
    for name, mode in modes.items():
        if all(np.array_equal(t.sample.prompt_ids, s.prompt_ids) for t, s in zip(turns, mode.samples, strict=True)):
            return name
    return "neither"


async def _gaps(turns: Sequence[_Turn], template: _Mode, score: Score) -> list[float]:
    """|logprob under the template's prompt − under the recorded prompt| of each sampled token."""
    gaps: list[float] = []
    for turn, other in zip(turns, template.samples, strict=True):
        size = len(turn.sample.sampled_ids)
        if not size or np.array_equal(turn.sample.prompt_ids, other.prompt_ids):
            gaps += [0.0] * size
            continue
        here, there = [
            (await score(np.concatenate([s.prompt_ids, s.sampled_ids]), s.policy_version))[-size:]
            for s in (turn.sample, other)
        ]
        gaps += [float(gap) for gap in np.abs(here - there)]
    return gaps


def _summary(gaps: Sequence[float]) -> dict[str, float] | None:
    if not gaps:
        return None
    return {"tokens": len(gaps), "mean": float(np.mean(gaps)), "max": float(np.max(gaps))}


def compare_text(found: dict[str, Any]) -> str:
    """The report for a terminal."""
    lines = [
        f"{found['calls']} calls of run {found['run']}",
        f"{'':<10}{'forks':>8}{'prompt tokens':>15}{'stored':>10}",
    ]
    for name in ("graft", "template"):
        row = found[name]
        lines.append(f"{name:<10}{row['forks']:>8}{row['prompt_tokens']:>15}{row['unique_tokens']:>10}")
    gap = found["logprob_difference"]
    if gap:
        lines.append(
            f"logprobs of {gap['tokens']} sampled tokens differ by {gap['mean']:.4f} (mean), {gap['max']:.4f} (max)"
        )
    return "\n".join([*lines, *found["needs_engine"]])
