"""Evaluations: policies × packs × harnesses, their comparison, and the transfer matrix. All from the record.

An evaluation is rollouts of purpose `eval` of the policy's own run; asked for twice, only what is missing is made.
Tasks of another pack than the run's carry their pack's name, `pack/task`.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from appliance.config.runconfig import RunConfig, from_record, resolve
from appliance.errors import ApplianceError
from appliance.harness.fit import check_fit, chosen_harnesses
from appliance.record.access import reading, writing
from appliance.record.store import Store
from appliance.report.intervals import Estimate, mean_reward, paired_gain, pass_at_1, pass_at_k, pass_hat_k
from appliance.report.report import outcomes
from appliance.runs.lifecycle import Emit, create, following, run_to_its_end, supervise
from appliance.runs.schedule import some
from appliance.runs.supervisor import Supervisor
from appliance.system.files import new_file
from appliance.tasks.pack import Pack, load_pack
from appliance.types import Purpose, Rollout, RunState


@dataclass(frozen=True, slots=True)
class Policy:
    """A version of a run's policy; `version` None is the newest."""

    run: str
    version: int | None = None

    @classmethod
    def parse(cls, text: str) -> Policy:
        """RUN or RUN@VERSION."""
        run, at, version = text.rpartition("@")
        if not at:
            return cls(text)
        if not version.isdigit():
            raise ApplianceError(f"{text}: {version!r} is no policy version", f"write {run}@0, {run}@1, …")
        return cls(run, int(version))


@dataclass(frozen=True, slots=True)
class Asked:
    """What to evaluate on. Empty `packs`, `harnesses` or `split`, or 0 `attempts` or `max_tasks`: as the run says.

    Empty `families`: the run's own in its own pack, all of another's.
    """

    packs: tuple[str, ...] = ()
    harnesses: tuple[str, ...] = ()
    attempts: int = 0
    split: str = ""
    max_tasks: int = 0
    families: tuple[str, ...] = ()


def evaluate(home: Path, policies: Sequence[Policy], asked: Asked, emit: Emit) -> dict[str, Any]:
    """Makes what is missing and returns {"rows": …, "comparisons": …}.

    A row is one pack × harness × policy. With several policies each is compared with the first, paired by task.
    """
    rows: list[dict[str, Any]] = []
    labels: list[str] = []
    kept: dict[tuple[str, str, int], dict[str, list[float]]] = {}
    for number, policy in enumerate(policies):
        for pack, config in _configs(home, policy, asked):
            version, found = _make(home, policy, pack, config, emit)
            labels[number:] = [f"{policy.run}@{version}"]
            for harness in config.harnesses:
                own = [r for r in found if r.plan.harness == harness]
                rows.append(_row(pack.name, harness, labels[number], own, config.evaluation.attempts))
                kept[pack.name, harness, number] = outcomes(own)
    return {"rows": rows, "comparisons": _comparisons(kept, labels)}


def _configs(home: Path, policy: Policy, asked: Asked) -> list[tuple[Pack, RunConfig]]:
    """(pack, configuration of the run with what was asked for laid over it), one a pack."""
    with reading(home) as store:
        config = from_record(store.run(policy.run).config)
    found = [_laid_over(config, asked, name) for name in asked.packs or (config.tasks.pack,)]
    for pack, changed in found:
        names = held_out(pack, changed)
        check_fit((t for t in pack.tasks if t.name in names), chosen_harnesses(changed, home).values())
    return found


def _laid_over(config: RunConfig, asked: Asked, pack_name: str) -> tuple[Pack, RunConfig]:
    """One pack, and the run's configuration as it is evaluated on it."""
    tasks = config.tasks.model_copy(
        update={"pack": pack_name} | ({"held_out_split": asked.split} if asked.split else {})
    )
    is_own = config.model_copy(update={"tasks": tasks}).pack_path.resolve() == config.pack_path.resolve()
    tasks = tasks.model_copy(update={"families": asked.families or (config.tasks.families if is_own else ())})
    evaluation = {
        "attempts": asked.attempts or config.evaluation.attempts,
        "max_tasks": asked.max_tasks or config.evaluation.max_tasks,
    }
    changed = config.model_copy(
        update={
            "tasks": tasks,
            "harnesses": list(asked.harnesses or config.harnesses),
            "evaluation": config.evaluation.model_copy(update=evaluation),
        }
    )
    pack = load_pack(changed.pack_path, tasks.families)
    if not is_own:
        pack = replace(pack, tasks=tuple(replace(t, name=f"{pack.name}/{t.name}") for t in pack.tasks))
    if not pack.split(tasks.held_out_split):
        raise ApplianceError(f"{pack.path}: no task has split {tasks.held_out_split!r}", "name another with --split")
    return pack, changed


def held_out(pack: Pack, config: RunConfig) -> set[str]:
    """The tasks that an evaluation under this configuration is about: the very ones that the supervisor plans."""
    tasks = [t.name for t in pack.split(config.tasks.held_out_split)]
    return set(some(tasks, config.evaluation.max_tasks, config.seed))


def _make(home: Path, policy: Policy, pack: Pack, config: RunConfig, emit: Emit) -> tuple[int, list[Rollout]]:
    async def act() -> tuple[int, list[Rollout]]:
        with writing(home) as store:
            run = store.run(policy.run)
            version = _version(store, Policy(run.id, policy.version))
            store.note_tasks(pack.name, [(t.name, t.family, t.split, t.instruction) for t in pack.tasks])
            supervisor = Supervisor(home, store, run)
            supervisor.config = config
            await following(store, run.id, emit, lambda: supervisor.evaluate_only(version, pack))
            names = held_out(pack, config)
            return version, [r for r in store.rollouts(run.id, Purpose.EVAL, version) if r.plan.task in names]

    return run_to_its_end(act)


def _version(store: Store, policy: Policy) -> int:
    versions = [number for number, _, _ in store.versions(policy.run)]
    if not versions:
        raise ApplianceError(f"run {policy.run} has no policy yet", f"corral resume {policy.run}")
    if policy.version is not None and policy.version not in versions:
        raise ApplianceError(
            f"run {policy.run} has no policy version {policy.version}", f"it has {versions[0]} to {versions[-1]}"
        )
    return versions[-1] if policy.version is None else policy.version


def _row(pack: str, harness: str, policy: str, rollouts: Sequence[Rollout], attempts: int) -> dict[str, Any]:
    graded = outcomes(rollouts)
    first, mean = pass_at_1(graded), mean_reward(graded)
    timed = [(r.ended_at or 0.0) - (r.started_at or 0.0) for r in rollouts if r.ended_at and r.started_at]
    return {
        "pack": pack,
        "harness": harness,
        "policy": policy,
        "n": first.n if first else 0,
        "tasks": first.tasks if first else 0,
        "pass_at_1": first.value if first else None,
        "interval": first.interval if first else None,
        "pass_at_k": {k: e.value for k in range(2, attempts + 1) if (e := pass_at_k(graded, k))},
        "pass_hat_k": {k: e.value for k in range(2, attempts + 1) if (e := pass_hat_k(graded, k))},
        "mean_reward": mean.value if mean else None,
        "mean_interval": mean.interval if mean else None,
        "sampled_tokens": sum(r.num_sampled_tokens for r in rollouts),
        "seconds": round(sum(timed), 1),
        "failures": dict(Counter(r.failure for r in rollouts if r.failure)),
    }


def _comparisons(
    kept: Mapping[tuple[str, str, int], dict[str, list[float]]], names: Sequence[str]
) -> list[dict[str, Any]]:
    """Each later policy against the first on the tasks both were graded on."""
    found = []
    for (pack, harness, number), after in kept.items():
        gain = paired_gain(kept.get((pack, harness, 0), {}), after) if number else None
        if number:
            found.append(
                {
                    "pack": pack,
                    "harness": harness,
                    "policy": names[number],
                    "against": names[0],
                    "tasks": gain.tasks if gain else 0,
                    "gain": gain.value if gain else None,
                    "interval": gain.interval if gain else None,
                }
            )
    return found


# ------------------------------------------------------------------ transfer


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """Train in each of `mixes` (a mix is one or more harnesses) with each seed; test every policy in every harness."""

    toml: Path
    overrides: Mapping[str, str]
    mixes: tuple[tuple[str, ...], ...]
    seeds: tuple[int, ...]

    @property
    def harnesses(self) -> tuple[str, ...]:
        """Every harness that occurs, in the order of first mention: the columns of the matrix."""
        return tuple(dict.fromkeys(h for mix in self.mixes for h in mix))


def transfer(home: Path, plan: TransferPlan, emit: Emit) -> dict[str, dict[str, dict[str, Any]]]:
    """{"trained_in": {"tested_in": {"pass_at_1", "interval", "n", "runs"}}}; goes on where an earlier one ended.

    Seeds are pooled: a cell's interval is over (seed, task), so it holds the spread between tasks and trainings.
    The row "untrained" is each seed's first policy, before any reward.
    """
    cells: dict[str, dict[str, dict[str, list[float]]]] = {}
    runs: dict[str, list[str]] = {}
    started, done, number = time.monotonic(), 0, len(plan.seeds) * len(plan.mixes)
    for seed in plan.seeds:
        for mix in plan.mixes:
            name = "+".join(mix)
            run_id = _trained(home, plan, mix, seed, emit)
            runs.setdefault(name, []).append(run_id)
            for row, version in (("untrained", 0), (name, None)):
                if row == "untrained" and mix != plan.mixes[-1]:
                    continue
                _test(home, Policy(run_id, version), plan, f"{seed}", cells.setdefault(row, {}), emit)
            done += 1
            left = (time.monotonic() - started) / done * (number - done)
            told = f"{done} of {number} trainings are made and tested, about {left / 60:.0f} min left"
            emit({"part": "transfer", "message": told})
    return {
        row: {h: _cell(pass_at_1(graded), runs.get(row, [])) for h, graded in columns.items()}
        for row, columns in cells.items()
    }


def _trained(home: Path, plan: TransferPlan, mix: tuple[str, ...], seed: int, emit: Emit) -> str:
    """The finished run of this mix and seed, trained now as far as it is not."""
    name = f"transfer-{'+'.join(mix)}-s{seed}"
    changes = {"name": name, "seed": str(seed), "harnesses": ",".join(mix), "evaluation.enabled": "false"}
    config = resolve(plan.toml, dict(plan.overrides) | changes)
    run_id = None
    if (home / "record.db").exists():
        with reading(home) as store:
            same = [r for r in store.runs() if r.name == name and _is_same(from_record(r.config), config)]
            run_id = same[0].id if same else None
            if same and same[0].state is RunState.DONE:
                return same[0].id
    run_id = run_id or create(home, config)
    state = supervise(home, run_id, emit)
    if state != RunState.DONE:
        raise ApplianceError(f"run {run_id} {state} before its end", "the same command goes on with it")
    return run_id


def _is_same(a: RunConfig, b: RunConfig) -> bool:
    """Whether an earlier run `a` asked for the same training (paths may be written differently).

    What an old record does not say of its tasks is taken to be the same.
    """
    parts = ("seed", "harnesses", "coldstart", "train", "rollout")
    said = a.tasks.model_fields_set & {"families", "lesson_split", "train_split"}
    return all(getattr(a, part) == getattr(b, part) for part in parts) and all(
        getattr(a.tasks, key) == getattr(b.tasks, key) for key in said
    )


def _test(
    home: Path, policy: Policy, plan: TransferPlan, seed: str, columns: dict[str, dict[str, list[float]]], emit: Emit
) -> None:
    families = resolve(plan.toml, plan.overrides).tasks.families
    for pack, config in _configs(home, policy, Asked(harnesses=plan.harnesses, families=families)):
        _, found = _make(home, policy, pack, config, emit)
        for harness in plan.harnesses:
            graded = outcomes([r for r in found if r.plan.harness == harness])
            columns.setdefault(harness, {}).update({f"{seed}/{task}": rewards for task, rewards in graded.items()})


def _cell(found: Estimate | None, runs: list[str]) -> dict[str, Any]:
    return {
        "pass_at_1": found.value if found else None,
        "interval": found.interval if found else None,
        "n": found.n if found else 0,
        "runs": runs,
    }


# ------------------------------------------------------------------ what people read


def evaluation_markdown(found: Mapping[str, Any]) -> str:
    """The rows and comparisons as two Markdown tables."""
    titles = ["pack", "harness", "policy", "Pass@1 [95 %]", "pass@k", "pass^k", "mean reward", "n", "failed"]
    titles += ["tokens", "seconds"]
    lines = ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]
    for r in found["rows"]:
        failed = ", ".join(f"{k} {v}" for k, v in r["failures"].items()) or "0"
        mean = "–" if r["mean_reward"] is None else f"{r['mean_reward']:.2f}"
        share = shown(r["pass_at_1"], r["interval"])
        most = [_most(r["pass_at_k"], "@"), _most(r["pass_hat_k"], "^")]
        cells = [r["pack"], r["harness"], r["policy"], share, *most, mean, r["n"], failed]
        lines.append("| " + " | ".join(map(str, [*cells, r["sampled_tokens"], f"{r['seconds']:.0f}"])) + " |")
    if found["comparisons"]:
        lines += ["", "| pack | harness | policy | against | gain [95 %] | tasks |", "|---|---|---|---|---|---|"]
        for c in found["comparisons"]:
            gain = shown(c["gain"], c["interval"], "+")
            lines.append(f"| {c['pack']} | {c['harness']} | {c['policy']} | {c['against']} | {gain} | {c['tasks']} |")
    return "\n".join(lines) + "\n"


def _most(found: Mapping[int, float], sign: str) -> str:
    """The value at the largest k, with that k."""
    return f"{sign}{max(found)}: {100 * found[max(found)]:.1f}" if found else "–"


def transfer_markdown(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """The matrix: a row a training, a column a harness tested in."""
    columns = list(dict.fromkeys(h for row in found.values() for h in row))
    lines = [
        "| trained in | " + " | ".join(f"tested in {h}" for h in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for name, row in found.items():
        lines.append(
            f"| {name} | " + " | ".join(shown(row[h]["pass_at_1"], row[h]["interval"]) for h in columns) + " |"
        )
    return "\n".join(lines) + "\n"


def shown(value: float | None, interval: Sequence[float] | None, sign: str = "") -> str:
    """A share in percent with its interval."""
    if value is None:
        return "–"
    return f"{100 * value:{sign}.1f}" + (f" [{100 * interval[0]:.0f}, {100 * interval[1]:.0f}]" if interval else "")


def write_all(folder: Path, name: str, found: Mapping[str, Any], markdown: str, picture: str) -> list[Path]:
    """Writes NAME.json, NAME.md and NAME.svg under `folder`, each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for suffix, text in (("json", json.dumps(found, indent=1) + "\n"), ("md", markdown), ("svg", picture)):
        path = folder / f"{name}.{suffix}"
        with new_file(path) as draft:
            draft.write_text(text, encoding="utf-8")
        written.append(path)
    return written
