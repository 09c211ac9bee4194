"""A run as a Harbor job folder: a trial a rollout, with its result, its reward and its ATIF trajectory.

    JOB/{config,result}.json · JOB/<trial>/{config,result,agent/trajectory,verifier/reward}.json

Seen with Harbor 0.25: its scanner lists the job and its models read every file.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from appliance.report.export.atif import trajectory
from appliance.report.trace import Recollection
from appliance.system.redact import value_without_secrets

SPACE = uuid.UUID("6f2b7f0e-6d1b-5c0e-9a43-0f3f1f7a52c1")
"""Names within Corral; a rollout has the same id in every export."""


def write_job(told: Iterable[Recollection], folder: Path, job: str, agent_version: str) -> int:
    """Writes the job of the rollouts into `folder`, which is empty, and returns how many trials it has."""
    trials, agents, started, ended = 0, set(), [], []
    errors = 0
    for each in told:
        result = _trial(each, folder, job, agent_version)
        trials += 1
        errors += result["exception_info"] is not None
        agents.add(each.rollout.plan.harness)
        started.append(each.rollout.started_at or each.rollout.created_at)
        ended.append(each.rollout.ended_at or each.rollout.created_at)
    config = {"job_name": job, "agents": [{"name": name, "model_name": "corral"} for name in sorted(agents)]}
    stats = {"n_completed_trials": trials, "n_errored_trials": errors}
    result = {
        "id": str(uuid.uuid5(SPACE, job)),
        "started_at": _time(min(started, default=0.0)),
        "finished_at": _time(max(ended, default=0.0)),
        "n_total_trials": trials,
        "stats": stats,
    }
    _write(folder / "config.json", config)
    _write(folder / "result.json", result)
    return trials


def _trial(told: Recollection, folder: Path, job: str, agent_version: str) -> dict[str, Any]:
    plan, rollout = told.rollout.plan, told.rollout
    name = f"{_safe(plan.task)}__{_safe(plan.harness)}__{rollout.id}"
    task = {"path": f"{_safe(plan.task)}"}
    config = {"task": task, "trial_name": name, "agent": {"name": plan.harness, "model_name": "corral"}}
    samples = [c.call.sample for c in told.calls if c.call.sample is not None]
    rewards = None if rollout.reward is None else rollout.reward_parts | {"reward": rollout.reward}
    result: dict[str, Any] = {
        "id": str(uuid.uuid5(SPACE, f"{told.run.id}/{rollout.id}")),
        "task_name": plan.task,
        "trial_name": name,
        "trial_uri": f"{job}/{name}",
        "task_id": task,
        "task_checksum": hashlib.sha256(plan.task.encode()).hexdigest(),
        "config": config,
        "agent_info": {"name": plan.harness, "version": agent_version, "model_info": {"name": "corral"}},
        "agent_result": {
            "n_input_tokens": sum(len(s.prompt_ids) for s in samples),
            "n_output_tokens": sum(len(s.sampled_ids) for s in samples),
            "metadata": {"run": told.run.id, "rollout": rollout.id, "purpose": str(plan.purpose), "step": plan.step},
        },
        "verifier_result": {"rewards": rewards},
        "exception_info": _failure(told),
        "started_at": _time(rollout.started_at or rollout.created_at),
        "finished_at": _time(rollout.ended_at or rollout.created_at),
    }
    trial = folder / name
    (trial / "agent").mkdir(parents=True)
    (trial / "verifier").mkdir()
    _write(trial / "config.json", config)
    _write(trial / "result.json", value_without_secrets(result, told.secrets))
    if told.calls:
        found = value_without_secrets(trajectory(told, agent_version), told.secrets)
        _write(trial / "agent" / "trajectory.json", found)
    if rewards is not None:
        _write(trial / "verifier" / "reward.json", rewards)
    return result


def _failure(told: Recollection) -> dict[str, Any] | None:
    if not told.rollout.failure:
        return None
    at = _time(told.rollout.ended_at or told.rollout.created_at)
    detail = told.rollout.failure_detail
    kind = told.rollout.failure
    return {"exception_type": kind, "exception_message": detail, "exception_traceback": "", "occurred_at": at}


def _safe(name: str) -> str:
    """A name that is one part of a path on every system."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name).strip(".")[:80] or "task"


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()


def _write(path: Path, found: object) -> None:
    path.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8", errors="backslashreplace")
