"""Reading JSON bodies leniently: every reader either returns a value or raises ValueError with the place.

Shared by all wires. Nothing here knows a wire's shape; unknown fields are never touched, they stay in
the raw bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping

import msgspec

JsonObject = dict[str, object]

# How a custom (free text) tool is shown to the model: a function of one string.
CUSTOM_SCHEMA = '{"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}'
# Anthropic's documented way to hand on arguments that are not a JSON object; read back so that the echo is found.
INVALID_JSON = "INVALID_JSON"
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_DEPTH = 200


def load_object(body: bytes) -> JsonObject:
    """The JSON object in `body`; lone surrogates become U+FFFD, since no tokenizer can encode them."""
    try:
        value = json.loads(body.decode())  # decoded here: json itself would let UTF-16 and bare surrogates pass
    except UnicodeDecodeError as e:
        raise ValueError(f"body: not UTF-8 at byte {e.start}") from e
    except json.JSONDecodeError as e:
        raise ValueError(f"body: not JSON at line {e.lineno} column {e.colno}: {e.msg}") from e
    except RecursionError as e:
        raise ValueError("body: nested too deeply") from e
    except ValueError as e:
        raise ValueError("body: a number has too many digits") from e
    if not isinstance(value, dict):
        raise ValueError(f"body: expected an object, got {kind_of(value)}")
    opened = body.count(b"{") + body.count(b"[")  # as deep as this at most, and mostly far from it
    if opened > _MAX_DEPTH and depth_exceeds(value, _MAX_DEPTH):
        raise ValueError(f"body: nested deeper than {_MAX_DEPTH}")
    if _SURROGATE_ESCAPE.search(body):
        value = _scrub(value)
    assert isinstance(value, dict)
    return value


def depth_exceeds(value: object, limit: int) -> bool:
    """Whether `value` nests deeper than `limit`; walks breadth-first so that it cannot overflow itself."""
    level: list[Collection[object]] = [[value]]
    for _ in range(limit + 2):
        items = (item.values() if type(item) is dict else item for item in level)
        level = [v for inside in items for v in inside if type(v) is dict or type(v) is list]
        if not level:
            return False
    return True


def _scrub(value: object) -> object:
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_scrub(v) for v in value]
    if isinstance(value, dict):
        return {_SURROGATE.sub("\ufffd", k): _scrub(v) for k, v in value.items()}
    return value


def kind_of(value: object) -> str:
    """JSON's own word for the type of `value`, for messages to the client."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def get_list(source: Mapping[str, object], key: str, place: str) -> list[object]:
    """`source[key]` as a list; absent and null are empty."""
    value = source.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"{place}: expected an array, got {kind_of(value)}")
    return value


def get_str(source: Mapping[str, object], key: str, place: str) -> str:
    """`source[key]` as text; absent and null are empty."""
    value = source.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{place}: expected a string, got {kind_of(value)}")
    return value


def need_str(source: Mapping[str, object], key: str, place: str) -> str:
    """`source[key]` as text that must be there and not be empty."""
    value = get_str(source, key, place)
    if not value:
        raise ValueError(f"{place}: missing")
    return value


def get_bool(source: Mapping[str, object], key: str, place: str) -> bool:
    """`source[key]` as a boolean; absent and null are false."""
    value = source.get(key)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise ValueError(f"{place}: expected a boolean, got {kind_of(value)}")
    return value


def get_count(source: Mapping[str, object], key: str) -> int | None:
    """`source[key]` as a positive whole number; absent and null are None."""
    value = source.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{key}: expected a whole number, got {kind_of(value)}")
    if value < 1:
        raise ValueError(f"{key}: must be at least 1, is {value}")
    return value


def need_object(value: object, place: str) -> JsonObject:
    """`value` as an object."""
    if not isinstance(value, dict):
        raise ValueError(f"{place}: expected an object, got {kind_of(value)}")
    return value


def text_of(value: object, place: str, kinds: Collection[str], separator: str) -> str:
    """Text of a content: a string or a list of text parts of these `kinds`; absent is empty.

    An assistant's parts are one sampled text (`separator` empty); others are put on lines of their own, as
    stock servers do.
    """
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list):
        raise ValueError(f"{place}: expected a string or an array, got {kind_of(value)}")
    texts: list[str] = []
    for i, item in enumerate(value):
        if isinstance(item, str):
            texts.append(item)
            continue
        part = need_object(item, f"{place}[{i}]")
        kind = part.get("type", "text")
        if kind not in kinds:
            raise ValueError(f"{place}[{i}]: this model takes text only, not {kind!r}")
        texts.append(get_str(part, "refusal" if kind == "refusal" else "text", f"{place}[{i}].text"))
    return separator.join(texts)


def argument_text(value: object, place: str) -> str:
    """Tool arguments as text: strings stay as they are, parsed objects (some clients) are written out."""
    if value is None:
        return "{}"
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    raise ValueError(f"{place}: expected a string, got {kind_of(value)}")


def schema_text(value: object, place: str) -> str:
    """A tool's JSON schema as text, keys in wire order; absent is the empty object."""
    if value is None:
        return "{}"
    return json.dumps(need_object(value, place), ensure_ascii=False)


def settings_text(body: Mapping[str, object], ignored: frozenset[str]) -> str:
    """Canonical JSON of the fields of `body` not in `ignored`: what makes two requests with equal messages differ."""
    rest = {key: value for key, value in body.items() if key not in ignored and value is not None}
    return json.dumps(rest, sort_keys=True, separators=(",", ":"))


def object_text(value: object, place: str) -> str:
    """Tool arguments of a wire that carries them parsed, as text; undoes `argument_object`."""
    if isinstance(value, dict) and len(value) == 1 and isinstance(value.get(INVALID_JSON), str):
        return str(value[INVALID_JSON])
    return argument_text(value, place)


def argument_object(arguments: str) -> JsonObject:
    """Tool arguments as the object that some wires carry; what the model got wrong is kept under `INVALID_JSON`."""
    try:
        value = json.loads(arguments or "{}")
        if isinstance(value, dict) and not depth_exceeds(value, _MAX_DEPTH):
            json.dumps(value, allow_nan=False)  # NaN and infinities are not JSON, though Python reads them
            return value
    except (ValueError, RecursionError):
        pass
    return {INVALID_JSON: arguments}


def compact(value: object) -> bytes:
    """`value` as UTF-8 JSON without optional white space; lone surrogates become U+FFFD."""
    try:
        return msgspec.json.encode(value)
    except (UnicodeEncodeError, msgspec.MsgspecError, TypeError, RecursionError):
        # A lone surrogate has no UTF-8, so it is replaced; whatever else it is, json says it.
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        return _SURROGATE.sub("\ufffd", text).encode()


def custom_input(arguments: str) -> str:
    """The free text of a custom tool's call, whose arguments the model writes as {"input": text}."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    text = value.get("input") if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments
