"""What an engine says of its own queue and cache: a few numbers from its metrics endpoint (Prometheus text format)."""

from __future__ import annotations

import re

_LINE = re.compile(rb"^vllm:(\w+?)(?:_total)?(?:\{[^}]*\})? ([-+.\deE]+)$", re.MULTILINE)
NAMES = {
    b"num_requests_running": "running",
    b"num_requests_waiting": "waiting",
    b"kv_cache_usage_perc": "cache_share",
    b"prefix_cache_queries": "prefix_queries",
    b"prefix_cache_hits": "prefix_hits",
    b"generation_tokens": "sampled_tokens",
    b"prompt_tokens": "prompt_tokens",
}
"""vLLM's name → ours. Requests under way and in the queue now; the share of the cache in use now; since the engine
started: tokens looked up in and found in the prefix cache, tokens sampled and taken in."""


def read_load(text: bytes) -> dict[str, float]:
    """The numbers by our names; those that are not there are left out, those of several models are added up."""
    found: dict[str, float] = {}
    for name, value in _LINE.findall(text):
        if own := NAMES.get(name):
            found[own] = found.get(own, 0.0) + float(value)
    return found
