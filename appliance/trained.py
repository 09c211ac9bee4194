"""What each step was trained on, kept on the record as one digest a rollout; `corral replay` compares with it."""

from __future__ import annotations

from appliance.store import Store


def note(store: Store, run_id: str, step: int, digests: dict[int, str]) -> None:
    """Records a step's digests (rollout → digest). A step taken again after a kill replaces its own."""
    with store.write() as db:
        db.execute("DELETE FROM loss_inputs WHERE run_id=? AND step=?", (run_id, step))
        db.executemany(
            "INSERT INTO loss_inputs(run_id, step, rollout_id, digest) VALUES(?,?,?,?)",
            [(run_id, step, rollout, digest) for rollout, digest in digests.items()],
        )


def noted(store: Store, run_id: str) -> dict[int, dict[int, str]]:
    """Step → rollout → digest. Steps of an older Corral, and steps that trained on nothing, are missing."""
    found: dict[int, dict[int, str]] = {}
    for row in store.rows("SELECT * FROM loss_inputs WHERE run_id=? ORDER BY step, rollout_id", run_id):
        found.setdefault(row["step"], {})[row["rollout_id"]] = row["digest"]
    return found
