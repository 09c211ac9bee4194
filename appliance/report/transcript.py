"""What was said in one rollout, call by call, as plain data and as text that is safe to print."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from appliance.config.runconfig import from_record
from appliance.config.sections import BranchesSection
from appliance.errors import StoreError
from appliance.record.store import Store
from appliance.train.provenance import tree_of
from appliance.types import Call


def calls(store: Store, rollout_id: int) -> list[dict[str, Any]]:
    """The calls of a rollout: what was asked, what was answered, and how many tokens of each."""
    recorded = store.calls(rollout_id)
    texts = store.conversations(rollout_id)
    _, tree = tree_of(store, rollout_id, _settings(store, rollout_id), recorded)
    found: list[dict[str, Any]] = []
    for n, (call, text) in enumerate(zip(recorded, texts, strict=True)):
        conversation = json.loads(text) if text else None
        found.append(
            {
                "call": call.id,
                "sequence": call.sequence,
                "wire": call.wire,
                "delivered": call.delivered,
                "lineage": call.lineage,
                "template": call.template,
                "branch": str(tree.roles[n].branch),
                "left_out": tree.left_out.get(n, ""),
                "policy_version": call.sample.policy_version if call.sample else None,
                "prompt_tokens": len(call.sample.prompt_ids) if call.sample else None,
                "sampled_tokens": len(call.sample.sampled_ids) if call.sample else None,
                "logprob": float(call.sample.logprobs.sum()) if call.sample else None,
                "seconds": round(call.ended_at - call.started_at, 3),
                "task_step": call.step,
                "conversation": conversation,
            }
        )
    return found


def _settings(store: Store, rollout_id: int) -> BranchesSection:
    (row,) = store.rows("SELECT config FROM runs r JOIN rollouts o ON o.run_id = r.id WHERE o.id=?", rollout_id)
    return from_record(json.loads(row["config"])).branches


def one_call(store: Store, call_id: int) -> tuple[Call, Any]:
    """A call by its number in the record, and its conversation; StoreError when there is none."""
    found = store.rows("SELECT rollout_id FROM calls WHERE id=?", call_id)
    recorded = store.calls(found[0]["rollout_id"]) if found else []
    for call, text in zip(recorded, store.conversations(found[0]["rollout_id"]) if found else [], strict=True):
        if call.id == call_id:
            return call, json.loads(text) if text else None
    raise StoreError(f"the record holds no call {call_id}", "`corral calls ROLLOUT --json` shows their numbers")


def calls_text(found: Sequence[dict[str, Any]]) -> str:
    """Calls for a terminal; each shows only the messages that are new in it."""
    lines: list[str] = []
    before: list[Any] = []
    for call in found:
        tokens = (
            f"{call['prompt_tokens']} + {call['sampled_tokens']} tokens"
            if call["prompt_tokens"] is not None
            else "no ids"
        )
        step = f"  step {call['task_step'] + 1}" if call.get("task_step") else ""
        lines.append(f"── call {call['sequence']}{step}  {call['wire']}  {tokens}  {call['seconds']} s{_branch(call)}")
        if call["conversation"] is None:
            lines.append("   (the bodies were pruned: `corral db prune`)")
            continue
        messages = call["conversation"]["messages"]
        lines += [_message(m) for m in messages[_first_new(before, messages) :]]
        lines.append(_message(call["conversation"]["answer"]))
        before = messages
    return "\n".join(lines)


def _first_new(before: Sequence[Any], messages: Sequence[Any]) -> int:
    """Where the news begin after a call that held `before`: past the answer to it, or where another story begins."""
    alike = next((n for n, (a, b) in enumerate(zip(before, messages, strict=False)) if a != b), len(before))
    return alike + 1 if alike == len(before) > 0 else alike


def _branch(call: dict[str, Any]) -> str:
    label = "" if call["branch"] == "continuation" else f"  {call['branch']}"
    return label + (f"  not trained: {call['left_out']}" if call["left_out"] and call["prompt_tokens"] else "")


def _message(message: dict[str, Any]) -> str:
    """One message on one line. JSON quoting keeps control characters of untrusted text out of the terminal."""
    said = json.dumps(message.get("content", ""), ensure_ascii=True)
    tools = "".join(
        f"  → {c['name']} {json.dumps(c['arguments'], ensure_ascii=True)}" for c in message.get("tool_calls", ())
    )
    return f"   {message['role']:<9} {said[:1000]}{tools}"
