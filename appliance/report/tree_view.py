"""`corral tree ROLLOUT`: where a rollout's calls part, what each piece is and whether it trains; data and text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from appliance.report.fork_report import decoder
from appliance.report.trace import Recollection
from appliance.trees.forks import Fork, forks
from appliance.trees.tree import Node
from appliance.types import Message

SHOWN_CHARS = 60


def view(home: Path, told: Recollection) -> dict[str, Any]:
    """The promised object: counts, nodes, calls and forks of one rollout."""
    tree, rollout = told.found.tree, told.rollout
    found = forks(told.calls, told.found, decoder(home, told.run))
    return {
        "rollout": rollout.id,
        "run": told.run.id,
        "harness": rollout.plan.harness,
        "task": rollout.plan.task,
        "state": str(rollout.state),
        "reward": rollout.reward,
        "reward_parts": rollout.reward_parts,
        "failure": rollout.failure,
        "advantage": told.advantage,
        "unique_tokens": tree.num_unique_tokens,
        "flat_tokens": told.num_flat_tokens,
        "rows": len(told.found.rows),
        "branch_points": sum(len(node.children) > 1 for node in tree.nodes) + (_num_roots(told) > 1),
        "nodes": [_node(told, number, node) for number, node in enumerate(tree.nodes)],
        "calls": [_call(told, number, found) for number in range(len(told.calls))],
        "forks": [asdict(fork) | {"cause": str(fork.cause), "remedy": fork.remedy} for fork in found],
    }


def _num_roots(told: Recollection) -> int:
    return sum(node.parent < 0 for node in told.found.tree.nodes)


def _node(told: Recollection, number: int, node: Node) -> dict[str, Any]:
    call = told.found.numbers[node.call] if node.call >= 0 else None
    sample = told.calls[call].call.sample if call is not None else None
    return {
        "node": number,
        "parent": node.parent if node.parent >= 0 else None,
        "depth": node.depth,
        "tokens": len(node.ids),
        "call": told.calls[call].call.sequence if call is not None else None,
        "logprob": float(sample.logprobs[node.offset : node.offset + len(node.ids)].sum()) if sample else None,
    }


def _call(told: Recollection, number: int, found: list[Fork]) -> dict[str, Any]:
    call, role = told.calls[number], told.found.roles[number]
    fork = next((f for f in found if f.call == call.call.sequence), None)
    sample = call.call.sample
    return {
        "call": call.call.sequence,
        "branch": str(role.branch),
        "parent": told.calls[role.parent].call.sequence if role.parent is not None else None,
        "reentered": told.calls[role.reentered].call.sequence if role.reentered is not None else None,
        "prompt_tokens": len(sample.prompt_ids) if sample else None,
        "sampled_tokens": len(sample.sampled_ids) if sample else None,
        "left_out": told.found.left_out.get(number),
        "cause": str(fork.cause) if fork else None,
        "answer": _said(call.answer),
    }


def _said(message: Message) -> str:
    calls = [f"→ {c.full_name} {c.arguments}" for c in message.tool_calls]
    return " ".join([text for text in (message.content.strip(), *calls) if text])


# ------------------------------------------------------------------ for a terminal


def text(found: dict[str, Any]) -> str:
    """The view for a terminal; JSON quoting keeps control characters of untrusted text out of it."""
    ended = found["failure"] or (f"reward {found['reward']:.3g}" if found["reward"] is not None else "no reward")
    parts = "  ".join(f"{name} {value:.3g}" for name, value in found["reward_parts"].items())
    advantage = f"  advantage {found['advantage']:+.3f}" if found["advantage"] is not None else ""
    flat = found["flat_tokens"]
    share = f", {100 * found['unique_tokens'] / flat:.0f} %" if flat else ""
    lines = [
        f"rollout {found['rollout']}  {found['harness']}  {found['task']}  {found['state']}  "
        f"{ended}{advantage}  {parts}",
        f"{len(found['calls'])} calls  {found['rows']} rows trained  {found['branch_points']} branch points  "
        f"{found['unique_tokens']} unique of {flat} tokens{share}",
    ]
    lines += _drawn(found)
    lines += [f"call {c['call']}  no ids  {_short(c['answer'])}" for c in found["calls"] if c["prompt_tokens"] is None]
    for fork in found["forks"]:
        lines.append(f"⑂ call {fork['call']} left call {fork['reference']} at token {fork['at']}: {fork['cause']}")
        lines.append(f"    {_short(fork['expected'])} → {_short(fork['found'])}   {fork['remedy']}")
    return "\n".join(_printable(line.rstrip()) for line in lines)


def _printable(line: str) -> str:
    """Names of tasks and labels of failures are untrusted too: what is no printable character is told as its code."""
    return line if line.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)


def _drawn(found: dict[str, Any]) -> Iterator[str]:
    """One line a node. Only where paths part does the text move to the right."""
    children: dict[int | None, list[int]] = {}
    for node in found["nodes"]:
        children.setdefault(node["parent"], []).append(node["node"])
    calls = {call["call"]: call for call in found["calls"]}
    roots = children.get(None, [])
    todo = [(root, *_lead("", n, roots)) for n, root in enumerate(roots)][::-1]
    while todo:
        number, lead, below = todo.pop()
        yield lead + _line(found["nodes"][number], calls)
        own = children.get(number, [])
        todo += [(child, *_lead(below, n, own)) for n, child in enumerate(own)][::-1]


def _lead(below: str, place: int, siblings: list[int]) -> tuple[str, str]:
    """(what stands before a node, what stands before all below it)."""
    if len(siblings) == 1:
        return below, below
    is_last = place == len(siblings) - 1
    return below + ("└─ " if is_last else "├─ "), below + ("   " if is_last else "│  ")


def _line(node: dict[str, Any], calls: dict[int, dict[str, Any]]) -> str:
    if node["call"] is None:
        return f"○ {node['tokens']} prompt"
    call = calls[node["call"]]
    trained = f"left out: {call['left_out']}" if call["left_out"] else "trained"
    cause = f"  ⑂ {call['cause']}" if call["cause"] else ""
    back = f"  came back in call {call['reentered']}" if call["reentered"] is not None else ""
    return (
        f"● {node['tokens']} sampled  call {call['call']}  {call['branch']}  logprob {node['logprob']:.2f}  "
        f"{trained}{cause}{back}  {_short(call['answer'])}"
    )


def _short(words: str) -> str:
    """In quotes, with whatever a terminal would not print as a character written out."""
    quoted = json.dumps(words[:SHOWN_CHARS] + ("…" if len(words) > SHOWN_CHARS else ""), ensure_ascii=False)
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in quoted)
