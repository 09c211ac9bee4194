"""What the parts of Corral said, as the log view draws it. No Textual."""

from __future__ import annotations

import re
import time
from datetime import datetime

from appliance.record.store import Store
from tui.pages.snapshot import EventLine
from tui.text import plain, plain_line

MAX_EVENTS = 5000
BEFORE = 1000
"""Events before a moment that are read with those after it."""
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
_AGO = re.compile(r"-?(\d+(?:\.\d+)?)\s*([smhd])")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_COLUMNS = "id, at, level, part, message, rollout_id"


def read_events(store: Store, run_id: str, last: tuple[EventLine, ...] = ()) -> tuple[EventLine, ...]:
    """The newest events of the run and of no run, oldest first; only what came after `last` is read."""
    after = last[-1].id if last else 0
    return (*last, *_events(store, run_id, "id>?3 ORDER BY id DESC", after, MAX_EVENTS)[::-1])[-MAX_EVENTS:]


def events_around(store: Store, run_id: str, at: float) -> tuple[EventLine, ...]:
    """Events from a moment on, and those shortly before it, oldest first."""
    first = _first_from(store, at)
    before = _events(store, run_id, "id<?3 ORDER BY id DESC", first, BEFORE)[::-1]
    return (*before, *_events(store, run_id, "id>=?3 ORDER BY id", first, MAX_EVENTS - BEFORE))


def _events(store: Store, run_id: str, where: str, place: int, limit: int) -> list[EventLine]:
    half = f"SELECT * FROM (SELECT {_COLUMNS} FROM events WHERE run_id {{}} AND {where} LIMIT ?2)"
    order = where.partition("ORDER BY")[2]  # each half by the index; an OR would sort every event there is
    sql = f"{half.format('= ?1')} UNION ALL {half.format('IS NULL')} ORDER BY {order} LIMIT ?2"
    return [
        EventLine(
            row["id"], row["at"], plain_line(row["level"]), plain_line(row["part"]), plain(row["message"]),
            row["rollout_id"],
        )
        for row in store.rows(sql, run_id, limit, place)
    ]  # fmt: skip


def _first_from(store: Store, at: float) -> int:
    """Number of the first event from that moment on; found by halving, as events are numbered in order of time."""
    low, high = 0, int(store.rows("SELECT coalesce(max(id), 0) + 1 n FROM events")[0]["n"])
    while low < high:
        middle = (low + high) // 2
        row = store.rows("SELECT id, at FROM events WHERE id>=? ORDER BY id LIMIT 1", middle)
        if row and row[0]["at"] < at:
            low = int(row[0]["id"]) + 1
        else:
            high = middle
    return low


def moment(text: str, now: float) -> float:
    """Unix seconds of `14:05`, `14:05:30` (the last time it was so late), `10m` or `-10m` (so long ago), or a date and
    time; ValueError for anything else.
    """
    text = text.strip()
    if found := _AGO.fullmatch(text):
        return now - float(found[1]) * _SECONDS[found[2]]
    if found := _CLOCK.fullmatch(text):
        parts = time.localtime(now)
        clock = (int(found[1]), int(found[2]), int(found[3] or 0))
        today = datetime(parts.tm_year, parts.tm_mon, parts.tm_mday, *clock).timestamp()
        return today if today <= now else today - 86400
    return datetime.fromisoformat(text).timestamp()
