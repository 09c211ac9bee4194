"""What each API says of a model. Any name is a model: a harness is told that the one it asks for is there. Pure."""

from __future__ import annotations

from collections.abc import Callable

from appliance.capture.wire.body import JsonObject


def _openai(name: str) -> JsonObject:
    return {"id": name, "object": "model", "created": 0, "owned_by": "corral"}


def _anthropic(name: str) -> JsonObject:
    head: JsonObject = {"id": name, "type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}
    return head | {"lifecycle": "active"}


def _gemini(name: str) -> JsonObject:
    verbs = ["generateContent", "streamGenerateContent", "countTokens"]
    return {"name": f"models/{name}", "version": "1", "displayName": name, "supportedGenerationMethods": verbs}


def _anthropic_list(name: str) -> JsonObject:
    return {"data": [_anthropic(name)], "has_more": False, "first_id": name, "last_id": name}


ONE: dict[str, Callable[[str], JsonObject]] = {"chat": _openai, "messages": _anthropic, "gemini": _gemini}
"""By wire: one model's own object."""

LISTED: dict[str, Callable[[str], JsonObject]] = {
    "chat": lambda name: {"object": "list", "data": [_openai(name)]},
    "messages": _anthropic_list,
    "gemini": lambda name: {"models": [_gemini(name)]},
}
"""By wire: the list of models, which holds one."""
