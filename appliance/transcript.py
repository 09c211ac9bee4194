"""What was said in one rollout, call by call, as plain data and as text that is safe to print."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from appliance.store import Store


def calls(store: Store, rollout_id: int) -> list[dict[str, Any]]:
    """The calls of a rollout: what was asked, what was answered, and how many tokens of each."""
    recorded = store.calls(rollout_id)
    texts = store.conversations(rollout_id)
    found: list[dict[str, Any]] = []
    for call, text in zip(recorded, texts, strict=True):
        conversation = json.loads(text) if text else None
        found.append(
            {
                "sequence": call.sequence,
                "wire": call.wire,
                "delivered": call.delivered,
                "lineage": call.lineage,
                "policy_version": call.sample.policy_version if call.sample else None,
                "prompt_tokens": len(call.sample.prompt_ids) if call.sample else None,
                "sampled_tokens": len(call.sample.sampled_ids) if call.sample else None,
                "logprob": float(call.sample.logprobs.sum()) if call.sample else None,
                "seconds": round(call.ended_at - call.started_at, 3),
                "conversation": conversation,
            }
        )
    return found


def calls_text(found: Sequence[dict[str, Any]]) -> str:
    """Calls for a terminal; each shows only the messages that are new in it."""
    lines: list[str] = []
    shown = 0
    for call in found:
        tokens = (
            f"{call['prompt_tokens']} + {call['sampled_tokens']} tokens"
            if call["prompt_tokens"] is not None
            else "no ids"
        )
        lines.append(f"── call {call['sequence']}  {call['wire']}  {tokens}  {call['seconds']} s")
        if call["conversation"] is None:
            lines.append("   (the bodies were pruned: `corral db prune`)")
            continue
        messages = call["conversation"]["messages"]
        lines += [_message(m) for m in messages[shown:]]
        lines.append(_message(call["conversation"]["answer"]))
        shown = len(messages) + 1
    return "\n".join(lines)


def _message(message: dict[str, Any]) -> str:
    """One message on one line. JSON quoting keeps control characters of untrusted text out of the terminal."""
    said = json.dumps(message.get("content", ""), ensure_ascii=True)
    tools = "".join(
        f"  → {c['name']} {json.dumps(c['arguments'], ensure_ascii=True)}" for c in message.get("tool_calls", ())
    )
    return f"   {message['role']:<9} {said[:1000]}{tools}"
