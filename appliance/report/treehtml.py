"""A rollout's tree as one HTML file that opens anywhere, offline: tokens coloured, raw bodies folded away.

What a model or a tool wrote is untrusted: everything is escaped, the page runs no script and may load nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from appliance.report.fork_report import decoder
from appliance.report.trace import Recollection
from appliance.report.tree_view import view
from appliance.system.files import written
from appliance.trees.tree import Node

SHADES = 10
WORST_LOGPROB = -5.0
"""From here downwards a token has the deepest colour."""
BODY_CHARS = 300_000
MOST_TOKENS = 400_000
"""Tokens drawn one by one; a browser is no place for more, the rest is drawn as whole pieces."""

STYLE = (
    "body{font:14px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem;color:#1a1a1a}"
    "pre,.k{font-family:ui-monospace,monospace;white-space:pre-wrap;overflow-wrap:anywhere;font-size:12px}"
    "details{margin:.3rem 0 .3rem .4rem;padding-left:.6rem;border-left:2px solid #ddd}"
    "summary{cursor:pointer}.p{color:#777}.u{opacity:.55}.m{color:#666}label{margin-right:1.2rem}"
    "table{border-collapse:collapse}td,th{text-align:left;padding:.1rem .8rem .1rem 0;vertical-align:top}"
    + "".join(f"#l:checked~main .l{n}{{background:hsl(8 90% {100 - 5 * n}%)}}" for n in range(SHADES))
    + "".join(f"#a:checked~main .g{n}{{background:hsl(140 60% {100 - 4 * n}%)}}" for n in range(SHADES))
    + "".join(f"#a:checked~main .r{n}{{background:hsl(8 80% {100 - 4 * n}%)}}" for n in range(SHADES))
)
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def write_html(home: Path, told: Recollection, target: Path) -> None:
    """Writes the page, whole or not at all; ExportError when `target` exists or cannot be written."""
    with written(target) as temporary, temporary.open("w", encoding="utf-8", errors="backslashreplace") as file:
        for piece in page(home, told):
            file.write(piece)


def page(home: Path, told: Recollection) -> Iterator[str]:
    """The page in pieces."""
    found = view(home, told)
    title = f"rollout {found['rollout']} · {found['harness']} · {found['task']}"
    yield f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
    yield f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}"><style>{STYLE}</style></head><body>'
    yield '<input type="radio" name="c" id="l" checked><label for="l">colour by logprob</label>'
    yield '<input type="radio" name="c" id="a"><label for="a">colour by advantage</label>'
    yield f"<main><h1>{escape(title)}</h1>"
    yield _facts(found)
    yield "<h2>Tree</h2>"
    yield from _tree(home, told, found)
    yield "<h2>Calls</h2>"
    for number in range(len(told.calls)):
        yield _call(told, found, number)
    yield "</main></body></html>\n"


def _facts(found: dict[str, Any]) -> str:
    reward = found["failure"] or found["reward"]
    rows = {
        "run": found["run"],
        "outcome": f"{found['state']}, {reward if reward is not None else 'no reward'}",
        "reward parts": ", ".join(f"{name} {value:g}" for name, value in found["reward_parts"].items()) or "–",
        "advantage": "–" if found["advantage"] is None else f"{found['advantage']:+.4f}",
        "tokens": f"{found['unique_tokens']} unique of {found['flat_tokens']}",
        "rows trained": found["rows"],
        "forks": ", ".join(f"call {f['call']}: {f['cause']}" for f in found["forks"]) or "none",
    }
    cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in rows.items())
    return f"<table>{cells}</table>"


def _tree(home: Path, told: Recollection, found: dict[str, Any]) -> Iterator[str]:
    """Nested where paths part, one below the other along a path."""
    decode = decoder(home, told.run)
    tree = told.found.tree
    one_by_one = tree.num_unique_tokens <= MOST_TOKENS
    calls = {call["call"]: call for call in found["calls"]}
    todo: list[int | str] = [*[n for n, node in enumerate(tree.nodes) if node.parent < 0][::-1]]
    while todo:
        here = todo.pop()
        if isinstance(here, str):
            yield here
            continue
        node = tree.nodes[here]
        yield f"<details open><summary>{_head(found['nodes'][here], calls)}</summary><div class=k>"
        if node.call >= 0:
            yield _tokens(told, node, decode, one_by_one)
        else:
            yield f'<span class="p">{escape(decode(node.ids))}</span>'
        yield "</div>"
        if len(node.children) == 1:
            yield "</details>"
        else:
            todo.append("</details>")
        todo += node.children[::-1]


def _head(node: dict[str, Any], calls: dict[int, dict[str, Any]]) -> str:
    if node["call"] is None:
        return f"{node['tokens']} prompt tokens"
    call = calls[node["call"]]
    words = [f"call {call['call']}", f"{node['tokens']} sampled", call["branch"], f"logprob {node['logprob']:.2f}"]
    words += [f"left out: {call['left_out']}" if call["left_out"] else "trained"]
    words += [f"fork: {call['cause']}"] if call["cause"] else []
    return escape(" · ".join(words))


def _tokens(told: Recollection, node: Node, decode: Any, one_by_one: bool) -> str:
    number = told.found.numbers[node.call]
    sample = told.calls[number].call.sample
    assert sample is not None  # a node of a call is made of its sample
    outer = "u" if number in told.found.left_out else _advantage_class(told.advantage)
    logprobs = sample.logprobs[node.offset : node.offset + len(node.ids)]
    if not one_by_one:
        return f'<span class="{outer}">{escape(decode(node.ids))}</span>'
    spans = [
        f'<span class="l{_shade(float(logprob) / WORST_LOGPROB)}" title="{int(token)}  {float(logprob):.3f}">'
        f"{escape(decode(node.ids[n : n + 1]))}</span>"
        for n, (token, logprob) in enumerate(zip(node.ids, logprobs, strict=True))
    ]
    return f'<span class="{outer}">{"".join(spans)}</span>'


def _shade(share: float) -> int:
    return max(0, min(SHADES - 1, math.ceil((SHADES - 1) * share))) if math.isfinite(share) else SHADES - 1


def _advantage_class(advantage: float | None) -> str:
    if advantage is None:
        return "u"
    return f"{'g' if advantage >= 0 else 'r'}{_shade(abs(advantage) / 2)}"


def _call(told: Recollection, found: dict[str, Any], number: int) -> str:
    call, shown = told.calls[number].call, found["calls"][number]
    bodies = "".join(
        f"<details><summary>{name}, {len(body)} bytes</summary><pre>{_body(body)}</pre></details>"
        for name, body in (("request", call.request_bytes), ("response", call.response_bytes))
    )
    words = f"call {call.sequence} · {call.wire} · {shown['branch']} · {shown['left_out'] or 'trained'}"
    lineage = f'<div class="m">{escape(call.lineage)}</div>' if call.lineage else ""
    return f"<details><summary>{escape(words)}</summary>{lineage}<pre>{escape(shown['answer'])}</pre>{bodies}</details>"


def _body(body: bytes) -> str:
    if not body:
        return "taken out by retention"
    text = body.decode("utf-8", "backslashreplace")
    more = f"\n… {len(text) - BODY_CHARS} more characters" if len(text) > BODY_CHARS else ""
    return escape(text[:BODY_CHARS]) + more
