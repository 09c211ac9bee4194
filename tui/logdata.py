"""What the parts of Corral said, as the log view draws it. No Textual."""

from __future__ import annotations

from appliance.store import Store
from tui.state import EventLine
from tui.text import plain, plain_line

MAX_EVENTS = 5000


def read_events(store: Store, run_id: str, last: tuple[EventLine, ...]) -> tuple[EventLine, ...]:
    """The newest events of the run and of no run, oldest first; only what came after `last` is read."""
    after = last[-1].id if last else 0
    newest = "SELECT * FROM (SELECT id, at, level, part, message, rollout_id FROM events WHERE run_id {} AND id>?3"
    newest += " ORDER BY id DESC LIMIT ?2)"  # each half by the index; an OR would sort every event there is
    sql = f"{newest.format('= ?1')} UNION ALL {newest.format('IS NULL')} ORDER BY id DESC LIMIT ?2"
    found = store.rows(sql, run_id, MAX_EVENTS, after)
    more = tuple(
        EventLine(
            row["id"], row["at"], plain_line(row["level"]), plain_line(row["part"]), plain(row["message"]),
            row["rollout_id"],
        )
        for row in reversed(found)
    )  # fmt: skip
    return (*last, *more)[-MAX_EVENTS:]
