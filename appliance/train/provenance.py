"""What each step was trained on, kept on the record: a digest a rollout, and what was found of each of its calls.

`corral replay` compares with the digests. The verdicts on calls (branch, reason for leaving it out) come from what was
said; kept here, they outlive bodies that retention took out.
"""

from __future__ import annotations

from collections.abc import Mapping

from appliance.config.sections import BranchesSection
from appliance.record.conversation import said
from appliance.record.store import Store
from appliance.trees.recovery import Recovered, Verdict, recovered
from appliance.types import Branch, Call, Said


def tree_of(
    store: Store, rollout_id: int, settings: BranchesSection, calls: list[Call] | None = None
) -> tuple[list[Said], Recovered]:
    """The calls of a rollout's latest attempt and all that is found of them; `calls` when they were read already."""
    read = store.calls(rollout_id) if calls is None else calls
    texts = store.conversations(rollout_id)
    own = said(read, texts)
    return own, recovered(own, settings, None if all(texts) else verdicts(store, rollout_id))


def note(
    store: Store,
    run_id: str,
    step: int,
    digests: Mapping[int, str],
    judged: Mapping[int, Mapping[int, Verdict]],
) -> None:
    """Records a step's digests (rollout → digest) and verdicts (rollout → sequence → verdict).

    A step taken again after a kill replaces its own.
    """
    with store.write() as db:
        db.execute("DELETE FROM loss_inputs WHERE run_id=? AND step=?", (run_id, step))
        db.executemany(
            "INSERT INTO loss_inputs(run_id, step, rollout_id, digest) VALUES(?,?,?,?)",
            [(run_id, step, rollout, digest) for rollout, digest in digests.items()],
        )
        db.executemany(
            "INSERT OR REPLACE INTO verdicts(rollout_id, sequence, branch, parent, reentered, kept, left_out)"
            " VALUES(?,?,?,?,?,?,?)",
            [
                (rollout, sequence, v.branch, v.parent, v.reentered, v.kept, v.left_out)
                for rollout, own in judged.items()
                for sequence, v in own.items()
            ],
        )


def noted(store: Store, run_id: str) -> dict[int, dict[int, str]]:
    """Step → rollout → digest. Steps of an older Corral, and steps that trained on nothing, are missing."""
    found: dict[int, dict[int, str]] = {}
    for row in store.rows("SELECT * FROM loss_inputs WHERE run_id=? ORDER BY step, rollout_id", run_id):
        found.setdefault(row["step"], {})[row["rollout_id"]] = row["digest"]
    return found


def verdicts(store: Store, rollout_id: int) -> dict[int, Verdict]:
    """Sequence → verdict of a rollout's calls when it was trained on; {} when it never was."""
    return {
        row["sequence"]: Verdict(Branch(row["branch"]), row["parent"], row["reentered"], row["kept"], row["left_out"])
        for row in store.rows("SELECT * FROM verdicts WHERE rollout_id=? ORDER BY sequence", rollout_id)
    }
