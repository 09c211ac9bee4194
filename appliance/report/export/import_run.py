"""`corral import`: conversations from elsewhere become a run's lessons, for its cold start. They have no token ids.

Each becomes a rollout of purpose `teach` with one call of wire `imported`: text only, never trained by reinforcement.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from appliance.errors import ExportError
from appliance.record.calls import CallDraft
from appliance.record.conversation import neutral_json
from appliance.record.store import Store
from appliance.report.export import atif, messages
from appliance.types import Message, Purpose, Request, Reward, RolloutPlan, RunState, Tool

Conversation = tuple[str, tuple[Message, ...], tuple[Tool, ...]]
MAX_BYTES = 256 * 2**20


def bring_in(store: Store, run_id: str, source: Path, harness: str) -> list[int]:
    """Adds every conversation of a file, all or none; returns the numbers of the new rollouts. Reward 1: a lesson.

    `harness` is whose lessons they are where the file does not say. A conversation is known again by its file's name
    and its content, so a file that grew brings in what is new. Raises ExportError for what cannot be read.
    """
    run = store.run(run_id)
    if run.state is RunState.DONE or store.versions(run.id):
        raise ExportError(f"run {run.id} has its first policy already", "import before the cold start")
    found = list(read(source))
    if not found:
        raise ExportError(f"{source}: holds no conversation", "import an ATIF trajectory or JSONL of OpenAI messages")
    bodies = [neutral_json(Request("imported", "", said[:-1], tools), said[-1]) for _, said, tools in found]
    plans, seen = [], Counter[tuple[str, str]]()
    for (name, _, _), body in zip(found, bodies, strict=True):
        lesson = (name or harness, f"imported/{source.stem}/{hashlib.sha256(body).hexdigest()[:12]}")
        plans.append(RolloutPlan(run.id, Purpose.TEACH, 0, *lesson, seen[lesson]))
        seen[lesson] += 1
    rollouts = store.plan(plans)
    new = [(r, body) for r, body in zip(rollouts, bodies, strict=True) if r.reward is None]
    for rollout, body in new:
        store.begin(rollout.id, 0)
        now = time.time()
        store.add_call(rollout.id, CallDraft(0, "imported", body, b"{}", body, None, "stop", now, now))
        store.grade(rollout.id, Reward(1.0), f"imported from {source.name}", {})
    return [rollout.id for rollout, _ in new]


def read(source: Path) -> Iterator[Conversation]:
    """The conversations of a file: one ATIF trajectory, or a line each of OpenAI messages or ATIF."""
    try:
        if source.stat().st_size > MAX_BYTES:
            raise ExportError(f"{source}: larger than {MAX_BYTES // 2**20} MiB", "import it in parts")
        text = source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ExportError(f"{source}: cannot be read ({error})", "name a UTF-8 text file") from error
    whole = _json(text)
    documents = [(str(source), whole)] if isinstance(whole, dict) else _lines(source, text)
    for place, document in documents:
        name, said, tools = (atif if "schema_version" in document else messages).conversation(document, place)
        end = next((n for n in range(len(said), 0, -1) if said[n - 1].role == "assistant"), 0)
        if end < 2:
            raise ExportError(f"{place}: no answer of an assistant to learn from", "import whole conversations")
        yield name, said[:end], tools


def _lines(source: Path, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        document = _json(line)
        if not isinstance(document, dict):
            raise ExportError(f"{source}:{number}: not a JSON object", "one conversation a line")
        yield f"{source}:{number}", document


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
