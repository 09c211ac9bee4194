"""How the terminal UI feels on a large record: time to the first screen, answer to a key, processor time when idle.

    python tests/bench/bench_tui.py [--calls 1000000] [--rollouts 10000] [--events 100000] [--writes 64]

The calls lie in ten older runs, each of rollouts with ten calls. Keys are pressed while a thread writes `--writes`
rollout updates and events a second into the same record.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from textual import events

from appliance.record import queries
from appliance.record.store import Store
from appliance.types import Purpose, RolloutState, RunState
from tests.support.tui_record import a_busy_record
from tui.app import CorralApp

LIVE = 64 - 5
"""Rollouts under way besides those of the busy record."""
STARTS = 3
"""Of these the best and the median are told."""
KEYS = [*"jjkGg2jjjGg3j4kk7j2jk81j"] * 4


def fill(home: Path, rollouts: int, events: int) -> None:
    """A run of that many graded rollouts and events beside a busy one."""
    builder = a_busy_record(home)
    with builder.store.write() as db:
        now = time.time()
        db.executemany(
            "INSERT INTO rollouts(run_id, purpose, step, harness, task, idx, grp, state, reward, attempt, created_at,"
            " started_at, ended_at, last_event_at, num_calls) VALUES('demo-1a2b','train',?,'pi',?,?,'g','graded',?,1,"
            "?,?,?,?,5)",
            ((100 + n // 64, f"task-{n % 64}", n, n % 3 / 2, now, now, now + 9, now + 9) for n in range(rollouts)),
        )
        db.executemany(
            "INSERT INTO events(run_id, at, level, part, message) VALUES('demo-1a2b',?,'info','supervisor',?)",
            ((now, f"event {n} of many, with a message of usual length") for n in range(events)),
        )
    for rollout in builder.rollouts("demo-1a2b", Purpose.TRAIN, 9, "task-live", LIVE):
        builder.begin(rollout)
    builder.close()


def fill_calls(home: Path, calls: int) -> None:
    """That many calls with their nodes and bodies in ten runs that have ended; bytes as random as a model's ids are."""
    store = Store.open(home / "record.db")
    store.rows("PRAGMA synchronous=OFF")  # a bench's record need not survive a power cut
    numbers = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < ?1 - 1)"
    rollout = "(SELECT max(id) FROM rollouts WHERE idx < 1000000) + 1"
    rollouts = max(1, calls // 10)
    config = {"harnesses": ["pi", "codex"], "tasks": {"pack": "pocket"}, "train": {"steps": 139}}
    for run in range(10):
        store.create_run(f"run-{run}", "large", config, 0, "bench")
        store.move_run(f"run-{run}", RunState.RUNNING)
        store.move_run(f"run-{run}", RunState.DONE)
    with store.write() as db:
        first = db.execute(f"SELECT {rollout}").fetchone()[0]
        db.execute(
            f"{numbers} INSERT INTO rollouts(id, run_id, purpose, step, harness, task, idx, grp, state, attempt,"
            " reward, num_calls, num_sampled_tokens, created_at, started_at, ended_at)"
            " SELECT ?2 + i, 'run-' || (i * 10 / ?1),"
            " 'train', i % (?1 / 10) / 72 + 1, CASE i / 8 % 2 WHEN 0 THEN 'pi' ELSE 'codex' END,"
            " 'task-' || (i / 8 % 5), 1000000 + i, 'g', 'graded', 1, i % 2 * 1.0, 10, 400,"
            " 1e9 + i, 1e9 + i, 1e9 + i + 5 FROM n",
            (rollouts, first),
        )
        base = db.execute("SELECT max(id) FROM nodes").fetchone()[0] + 1
        db.execute(
            f"{numbers} INSERT INTO nodes(id, rollout_id, attempt, parent, start, sampled, ids, logprobs)"
            " SELECT ?2 + i, ?3 + i / 20, 1, CASE i % 20 WHEN 0 THEN NULL ELSE ?2 + i - 1 END,"
            " i % 20 / 2 * 100 + i % 2 * 60, i % 2, randomblob(240 - i % 2 * 80),"
            " CASE i % 2 WHEN 1 THEN randomblob(160) END FROM n",
            (2 * calls, base, first),
        )
        call = db.execute("SELECT max(id) FROM calls").fetchone()[0] + 1
        db.execute(
            f"{numbers} INSERT INTO calls(id, rollout_id, attempt, sequence, wire, leaf, num_prompt_tokens,"
            " num_sampled_tokens, stop_reason, policy_version, started_at, ended_at, delivered)"
            " SELECT ?2 + i, ?3 + i / 10, 1, i % 10, 'chat', ?4 + 2 * i + 1, i % 10 * 100 + 60, 40,"
            " 'stop', 1, 1e9, 1e9, 1 FROM n",
            (calls, call, first, base),
        )
        db.execute(
            f"{numbers} INSERT INTO bodies(call_id, base, request_bytes, messages_bytes, data)"
            " SELECT ?2 + i, NULL, 2, 2, randomblob(24) FROM n",
            (calls, call),
        )
    store.rows("PRAGMA optimize")
    store.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    store.close()


def first_screen_s(home: Path) -> float:
    """A new interpreter until the first screen is drawn, in seconds."""
    code = (
        "import asyncio, sys, appliance.cli; from pathlib import Path; from tui.app import CorralApp\n"
        "async def go():\n"
        "    app = CorralApp(Path(sys.argv[1]))\n"
        "    async with app.run_test(size=(120, 40)) as pilot:\n"
        "        while not app.has_record: await asyncio.sleep(0.005)\n"
        "        await pilot.pause(); app.exit()\n"
        "    app.close()\n"
        "asyncio.run(go())"
    )
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code, str(home)], check=True, cwd=Path(__file__).resolve().parents[2])
    return time.perf_counter() - began


def writing(home: Path, per_s: int, end: threading.Event) -> None:
    """Signs of life of the 64 rollouts under way and events, `per_s` a second each."""
    store, number = Store.open(home / "record.db"), 0
    under_way = [r.id for r in queries.live(store, "demo-1a2b")]
    while not end.wait(1 / per_s):
        number += 1
        store.move_rollout(under_way[number % len(under_way)], RolloutState.RUNNING)
        store.log("info", "proxy", f"call {number}", "demo-1a2b")
    store.close()


async def measure(home: Path, per_s: int) -> dict[str, float]:
    """Milliseconds from a key to the drawn screen (clock, drawing thread's CPU); an idle UI's share of a core."""
    app, end, waits = CorralApp(home), threading.Event(), []
    works: list[float] = []
    async with app.run_test(size=(120, 40)) as pilot:
        while not app.has_record:
            await asyncio.sleep(0.01)
        began, cpu = time.monotonic(), time.process_time()
        await asyncio.sleep(10)
        idle = (time.process_time() - cpu) / (time.monotonic() - began)
        writer = threading.Thread(target=writing, args=(home, per_s, end))
        writer.start()
        for key in KEYS:
            began, cpu, drawn = time.perf_counter(), time.thread_time(), asyncio.Event()
            app.screen.post_message(events.Key(key, key if len(key) == 1 else None))
            await pilot._wait_for_screen()
            app.screen.call_after_refresh(drawn.set)
            await drawn.wait()
            app.screen._compositor.render_strips()
            waits.append(1000 * (time.perf_counter() - began))
            works.append(1000 * (time.thread_time() - cpu))
            await asyncio.sleep(0.15)
        end.set()
        writer.join()
        app.exit()
    app.close()
    waits.sort()
    works.sort()
    return {
        "key_p50_ms": statistics.median(waits),
        "key_p95_ms": waits[int(0.95 * len(waits))],
        "key_max_ms": waits[-1],
        "key_p50_cpu_ms": statistics.median(works),
        "key_p95_cpu_ms": works[int(0.95 * len(works))],
        "idle_core_share": idle,
    }


def main() -> None:
    """Builds the record, measures, prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=0)
    parser.add_argument("--rollouts", type=int, default=10_000)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--writes", type=int, default=64)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder), arguments.rollouts, arguments.events)
        if arguments.calls:
            fill_calls(Path(folder), arguments.calls)
        before = os.times()
        starts = sorted(first_screen_s(Path(folder)) for _ in range(STARTS))
        found = {"first_screen_s": starts[0], "first_screen_p50_s": statistics.median(starts)}
        after = os.times()
        cpu_s = after.children_user - before.children_user + after.children_system - before.children_system
        found["first_screen_cpu_s"] = cpu_s / STARTS
        found |= asyncio.run(measure(Path(folder), arguments.writes))
        found["record_mib"] = (Path(folder) / "record.db").stat().st_size / 2**20
    found["load"] = os.getloadavg()[0]
    print(json.dumps({key: round(value, 4) for key, value in found.items()}))


if __name__ == "__main__":
    main()
