"""Recovery and the record at size: rebuilding trees, bytes a token, and a record of a million calls.

Rebuild: 10,000 calls of 24,000 to 40,000 tokens, a hundred a rollout, each going on where the one before ended; CPU
seconds of this process. The curve: one forest of more and more such conversations under a common beginning, so that
unique tokens grow with the calls. The record: rows of the real schema, put there in bulk, asked as the screens ask.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

TEXT = "rebuilding trees, bytes a stored token, and how fast a record of a million calls opens, lists and shows"
CALLS_A_ROLLOUT = 100
FIRST_TOKENS, NEW_PROMPT, NEW_SAMPLED = 24_000, 100, 60
SHARED = 8_000
CURVE = (1, 2, 4, 8, 16)
RECORD_CALLS_A_ROLLOUT = 10
ROLLOUTS_A_RUN = 10_000
PROMPT_A_CALL, SAMPLED_A_CALL = 60, 40
TRIES = 5
OF_TOKENS = ("nodes", "nodes_by_rollout", "calls", "sqlite_autoindex_calls_1")
"""What the record keeps of tokens: all but the raw bodies and what does not grow with them."""


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the sizes, for a quick look."""
    parser.add_argument("--calls", type=int, default=10_000, help="calls rebuilt; default 10000")
    parser.add_argument("--record-calls", type=int, default=1_000_000, help="calls in the record; default 1000000")


def measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """The promised object and the table that says the same."""
    found = _rebuild(max(1, arguments.calls // CALLS_A_ROLLOUT))
    found["curve"] = _curve()
    with tempfile.TemporaryDirectory(prefix="corral-bench-") as folder:
        found |= _record(Path(folder), arguments.record_calls)
    return found, _text(found)


def _text(found: dict[str, Any]) -> str:
    lines = [
        f"rebuild      {found['flat_tokens_per_s'] / 1e6:.1f} M flat tokens a CPU second "
        f"({found['calls']} calls, {found['flat_tokens'] / 1e6:.0f} M flat, "
        f"{found['unique_tokens'] / 1e6:.2f} M unique)",
        "curve        " + "  ".join(f"{unique / 1e3:.0f} K: {s:.2f} s" for unique, s in found["curve"]),
        f"record       {found['record_calls']} calls, {found['record_bytes'] / 2**20:.0f} MiB, "
        f"{found['bytes_per_unique_token']:.2f} bytes a unique token (raw bodies apart)",
        f"open a run   {found['open_ms']:.1f} ms",
        f"list         {found['list_ms']:.1f} ms",
        f"show a tree  {found['show_ms']:.1f} ms",
    ]
    return "\n".join(lines)


# ------------------------------------------------------------------ rebuilding


def _conversation(draw: Any, first: Any, calls: int) -> list[Any]:
    """Samples of one conversation that goes on: each prompt is the path before, and what is new."""
    import numpy as np

    from appliance.types import Sample, StopReason

    added = NEW_PROMPT + NEW_SAMPLED
    whole = np.concatenate([first, draw.integers(0, 150_000, calls * added, dtype=np.int32)])
    logprobs = np.full(NEW_SAMPLED, -0.5, np.float32)
    samples = []
    for n in range(calls):
        end = len(first) + n * added + NEW_PROMPT
        samples.append(Sample(whole[:end], whole[end : end + NEW_SAMPLED], logprobs, StopReason.STOP, 0))
    return samples


def _rebuild(rollouts: int) -> dict[str, Any]:
    import numpy as np

    from appliance.trees.tree import recover

    draw = np.random.default_rng(0)
    seconds, flat, unique = 0.0, 0, 0
    for _ in range(rollouts):
        samples = _conversation(draw, draw.integers(0, 150_000, FIRST_TOKENS, dtype=np.int32), CALLS_A_ROLLOUT)
        flat += sum(len(s.prompt_ids) + len(s.sampled_ids) for s in samples)
        began = time.process_time()
        tree = recover(samples)
        seconds += time.process_time() - began
        unique += tree.num_unique_tokens
    calls = rollouts * CALLS_A_ROLLOUT
    return {"calls": calls, "flat_tokens": flat, "flat_tokens_per_s": flat / seconds, "unique_tokens": unique}


def _curve() -> list[list[float]]:
    """(unique tokens, CPU seconds) of one forest; the best of three, as other work on the machine only adds."""
    import numpy as np

    from appliance.trees.tree import recover

    draw = np.random.default_rng(1)
    common = draw.integers(0, 150_000, SHARED, dtype=np.int32)
    samples: list[Any] = []
    points: list[list[float]] = []
    for conversations in CURVE:
        while len(samples) < conversations * CALLS_A_ROLLOUT:
            rest = draw.integers(0, 150_000, FIRST_TOKENS - SHARED, dtype=np.int32)
            samples += _conversation(draw, np.concatenate([common, rest]), CALLS_A_ROLLOUT)
        seconds = []
        for _ in range(3):
            began = time.process_time()
            tree = recover(samples)
            seconds.append(time.process_time() - began)
        points.append([tree.num_unique_tokens, min(seconds)])
    return points


# ------------------------------------------------------------------ a large record


def _record(folder: Path, calls: int) -> dict[str, Any]:
    from appliance.record import queries
    from appliance.record.access import record_path
    from appliance.record.store import Store
    from appliance.report.status import status, status_text
    from appliance.report.trace import recollect
    from appliance.report.tree_view import text, view

    run_id, rollout = fill(folder, calls)
    with closing(Store.open(record_path(folder), readonly=True)) as store:
        found: dict[str, Any] = {"record_calls": calls} | _sizes(store)

        def list_rollouts() -> None:
            queries.screenful(store, run_id)
            queries.groups(store, run_id)

        found["open_ms"] = _ms(lambda: status_text(status(folder, run_id)))
        found["list_ms"] = _ms(list_rollouts)
        found["show_ms"] = _ms(lambda: text(view(folder, recollect(store, rollout))))
    return found


def _ms(act: Callable[[], object]) -> float:
    """Wall milliseconds, the median of a few."""
    taken = []
    for _ in range(TRIES):
        began = time.perf_counter()
        act()
        taken.append(1000 * (time.perf_counter() - began))
    return statistics.median(taken)


def _sizes(store: Any) -> dict[str, Any]:
    marks = ",".join("?" * len(OF_TOKENS))
    used = store.rows(f"SELECT sum(pgsize) n FROM dbstat WHERE aggregate=TRUE AND name IN ({marks})", *OF_TOKENS)[0][
        "n"
    ]
    unique = store.rows("SELECT sum(length(ids)) / 4 n FROM nodes")[0]["n"]
    whole = store.rows("SELECT page_count * page_size n FROM pragma_page_count, pragma_page_size")[0]["n"]
    return {"bytes_per_unique_token": used / unique, "record_bytes": whole, "record_unique_tokens": unique}


def fill(home: Path, calls: int) -> tuple[str, int]:
    """Writes a record of so many calls under `home`, in bulk; returns its last run and a rollout of it."""
    from appliance.config.runconfig import RunConfig
    from appliance.record.access import writing
    from appliance.types import RunState

    rollouts = max(1, calls // RECORD_CALLS_A_ROLLOUT)
    with writing(home) as store:
        store.rows("PRAGMA synchronous=OFF")  # a bench's record need not survive a power cut
        config = RunConfig().model_dump(mode="json")
        for first in range(1, rollouts + 1, ROLLOUTS_A_RUN):
            run_id = f"run-{first // ROLLOUTS_A_RUN:03}"
            store.create_run(run_id, "bench", config, 0, "bench")
            store.move_run(run_id, RunState.RUNNING)
            last = min(first + ROLLOUTS_A_RUN - 1, rollouts)
            for begin in range(first, last + 1, 1000):
                _fill_rollouts(store, run_id, range(begin, min(begin + 999, last) + 1), first)
            store.move_run(run_id, RunState.DONE)
        store.rows("PRAGMA optimize")
        store.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    return run_id, last


def _fill_rollouts(store: Any, run_id: str, numbers: range, first: int) -> None:
    """Rollouts 72 a step in groups of 8, each a conversation of ten calls: two nodes and small bodies a call."""
    rollouts, nodes, calls, bodies = [], [], [], []
    for number in numbers:
        place = number - first
        task, harness = f"task-{place // 8 % 5}", ("pi", "codex")[place // 8 % 2]
        key = (place // 72 + 1, harness, task, place)
        sampled = RECORD_CALLS_A_ROLLOUT * SAMPLED_A_CALL
        rollouts.append((number, run_id, *key, place % 2 * 1.0, RECORD_CALLS_A_ROLLOUT, sampled, 1e9 + place))
        for node, call, body in _rows(number):
            nodes += node
            calls.append(call)
            bodies.append(body)
    with store.write() as db:
        db.executemany(
            "INSERT INTO rollouts(id, run_id, purpose, step, harness, task, idx, grp, state, attempt, reward,"
            " num_calls, num_sampled_tokens, created_at, started_at, ended_at) VALUES(?1, ?2, 'train', ?3, ?4, ?5, ?6,"
            " ?3 || '/' || ?5 || '/' || ?4, 'graded', 1, ?7, ?8, ?9, ?10, ?10, ?10 + 5)",
            rollouts,
        )
        db.executemany("INSERT INTO nodes VALUES(?,?,1,?,?,?,?,?)", nodes)
        db.executemany(
            "INSERT INTO calls(id, rollout_id, attempt, sequence, wire, leaf, num_prompt_tokens, num_sampled_tokens,"
            " stop_reason, policy_version, started_at, ended_at, delivered)"
            " VALUES(?,?,1,?,'chat',?,?,?,'stop',1,1.0,2.0,1)",
            calls,
        )
        db.executemany("INSERT INTO bodies VALUES(?, NULL, 2, 2, ?)", bodies)


def _rows(rollout: int) -> Iterator[tuple[list[Any], tuple[Any, ...], tuple[Any, ...]]]:
    """(nodes, call, body) of each call of one rollout; ids as random as a model's are, for an honest size."""
    import numpy as np

    from appliance.record.bodies import compress

    draw = np.random.default_rng(rollout)
    added = PROMPT_A_CALL + SAMPLED_A_CALL
    ids = draw.integers(0, 150_000, RECORD_CALLS_A_ROLLOUT * added, dtype=np.int32).tobytes()
    logprobs = (-draw.random(SAMPLED_A_CALL, dtype=np.float32)).tobytes()
    body = compress(b"{}{}{}", b"")
    parent: int | None = None
    for n in range(RECORD_CALLS_A_ROLLOUT):
        call = (rollout - 1) * RECORD_CALLS_A_ROLLOUT + n + 1
        start, middle = n * added, n * added + PROMPT_A_CALL
        prompt, leaf = 2 * call - 1, 2 * call
        nodes = [
            (prompt, rollout, parent, start, 0, ids[4 * start : 4 * middle], None),
            (leaf, rollout, prompt, middle, 1, ids[4 * middle : 4 * (start + added)], logprobs),
        ]
        parent = leaf
        yield nodes, (call, rollout, n, leaf, middle, SAMPLED_A_CALL), (call, body)
