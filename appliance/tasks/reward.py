"""Read the reward a grader left behind, trusting nothing in it.

The grader of a task runs in a fresh container and writes reward.json or reward.txt into its log folder
(Harbor's convention). This module turns that folder into a `Reward` or a `GraderError`; there is no
default: a missing or broken reward is an error with a countable cause, never 0 (I5).

reward.json   {"reward": 0.5, "parts": {"value": 1, "rest": 0}}; other top-level numbers count as parts
              {"parts": {"value": 1, "rest": 0}, "weights": {"value": 3, "rest": 1}}: their weighted mean, equal
              weights unless given; {"value": 1, "rest": 0} says the same
reward.txt    one number
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from pathlib import Path

from appliance.errors import GraderError
from appliance.types import Reward

MAX_REWARD_BYTES = 64 * 1024
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def read_reward(folder: Path) -> Reward:
    """The reward in `folder`: reward.json when there is one, whatever its state, else reward.txt.

    Raises GraderError `no_reward` when neither exists, and `bad_reward` when the one that counts is a
    link, no regular file, over MAX_REWARD_BYTES, malformed, or no finite number in [0, 1].
    """
    data = _read(folder, "reward.json")
    if data is not None:
        return _from_json(data)
    data = _read(folder, "reward.txt")
    if data is not None:
        return _from_text(data)
    raise GraderError("no_reward", f"{folder}: the grader wrote neither reward.json nor reward.txt")


def _read(folder: Path, name: str) -> bytes | None:
    """Bytes of a small regular file in `folder`, None when there is no such name.

    O_NOFOLLOW, because a link would be resolved on the host; O_NONBLOCK, because a pipe would hang us.
    """
    try:
        descriptor = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _bad(name, f"cannot be opened ({error.strerror}); is it a link?") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _bad(name, "is not a regular file")
        data = os.read(descriptor, MAX_REWARD_BYTES + 1)
    except OSError as error:
        raise _bad(name, f"cannot be read ({error.strerror})") from error
    finally:
        os.close(descriptor)
    if len(data) > MAX_REWARD_BYTES:
        raise _bad(name, f"is larger than {MAX_REWARD_BYTES} bytes")
    return data


def _from_text(data: bytes) -> Reward:
    text = _decode(data, "reward.txt").strip()
    if not _NUMBER.fullmatch(text):
        raise _bad("reward.txt", f"is not one number: {_short(text)}")
    return Reward(_unit(float(text), "reward.txt"))


def _from_json(data: bytes) -> Reward:
    document = _parse(data)
    if not isinstance(document, dict):
        raise _bad("reward.json", "is not an object")
    if "reward" in document:
        value = _unit(_finite(document.pop("reward"), "reward"), "reward.json: key reward")
        return Reward(value, _parts(document))
    weights = document.pop("weights", None)
    parts = _parts(document)
    if not parts:
        raise _bad("reward.json", 'has neither the key "reward" nor named parts')
    return Reward(_weighted(parts, weights), parts)


def _parts(document: dict[str, object]) -> dict[str, float]:
    """The named numbers under `parts` and beside it."""
    parts = document.pop("parts", {})
    if not isinstance(parts, dict):
        raise _bad("reward.json", f"key parts is not an object: {_short(parts)}")
    numbers = {key: _finite(number, f"parts.{key}") for key, number in parts.items()}
    for key, number in document.items():
        if key in numbers:
            raise _bad("reward.json", f"names the part {_short(key)} twice")
        numbers[key] = _finite(number, key)
    return numbers


def _weighted(parts: dict[str, float], weights: object) -> float:
    """Mean of parts that each lie in [0, 1], by weights ≥ 0 of which each names a part and one is above 0."""
    for key, number in parts.items():
        _unit(number, f"reward.json: part {_short(key)}")
    if weights is None:
        weights = dict.fromkeys(parts, 1)
    if not isinstance(weights, dict) or set(weights) != set(parts):
        raise _bad("reward.json", f"key weights does not give each part one weight: {_short(weights)}")
    given = {key: _finite(weight, f"weights.{key}") for key, weight in weights.items()}
    total = sum(given.values())
    if min(given.values()) < 0 or not 0 < total < math.inf:
        raise _bad("reward.json", f"key weights has a negative weight, or no sum above 0: {_short(weights)}")
    return min(1.0, math.fsum(given[key] / total * number for key, number in parts.items())) + 0.0


def _parse(data: bytes) -> object:
    try:
        return json.loads(_decode(data, "reward.json"), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise _bad("reward.json", f"is not JSON ({error})") from error


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A JSON object; two values under one key are refused, since readers differ in which one counts."""
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a key occurs twice")
    return document


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _finite(number: object, key: str) -> float:
    """`number` as a finite float; bool is refused, though Python counts it as an int."""
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise _bad("reward.json", f"key {_short(key)} is not a number: {_short(number)}")
    try:
        value = float(number)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise _bad("reward.json", f"key {_short(key)} is not finite")
    return value


def _unit(value: float, place: str) -> float:
    """`value` when it lies in [0, 1]; adding 0.0 turns -0.0 into 0.0."""
    if not 0.0 <= value <= 1.0:
        raise _bad(place, f"is outside [0, 1]: {value}")
    return value + 0.0


def _decode(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _bad(name, "is not UTF-8") from error


def _short(value: object) -> str:
    """`value` as it can stand in a message: the grader's words are untrusted and may be long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _bad(place: str, what: str) -> GraderError:
    return GraderError("bad_reward", f"{place} {what}")
