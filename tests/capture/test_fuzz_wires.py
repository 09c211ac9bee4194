"""Bodies that no client should send, on all four wires: a request, or an error with its place; never anything else.

Hypothesis chooses seeds; each makes many bodies by breaking a real one, as text, as JSON and as bytes.
"""

from __future__ import annotations

import json
import random
from copy import deepcopy
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.capture.history import History
from appliance.capture.proxy import Limits
from appliance.capture.server import WIRES
from appliance.errors import ModelError
from appliance.record.conversation import from_neutral_json, neutral_json
from appliance.types import Answer, Message, Request, StopReason, ToolCall
from tests.support.scripted_engine import running
from tests.support.tiny_tokenizer import renderer
from tests.support.wire_bodies import WIRE_CASES, WireCase

WORDS = ["", "hi", "\ud800", "x\udfffy", "a\x00b", "<|im_end|>", "<tool_call>", "\U0010fff0", "\ufeff", "text", "user",
         "assistant", "tool_result", "function_call", "image", "null", "é" * 50, "[" * 3000]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2**70, 1.5, float("nan"), float("inf"), [], {}, [[]], [None], [{}], {"type": "image"},
    {"type": "text", "text": None}, {"role": "user"}, {"a": {"b": ["c"]}}, ["text"], {"": ""},
]  # fmt: skip


def deep(n: int) -> Any:
    value: Any = []
    for _ in range(n):
        value = [value] if n % 2 else {"a": value}
    return value


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) inside `value`."""
    found: list[tuple[Any, Any]] = []
    open_ = [value]
    while open_:
        container = open_.pop()
        keys = list(container) if isinstance(container, dict) else range(len(container))
        for key in keys:
            found.append((container, key))
            if isinstance(container[key], dict | list):
                open_.append(container[key])
    return found


def any_value(rng: random.Random, donors: list[tuple[Any, Any]]) -> Any:
    kind = rng.randrange(10)
    if kind < 4:
        return rng.choice(WORDS)
    if kind < 8:
        return deepcopy(rng.choice(VALUES))
    if kind == 8:
        return deep(rng.choice((3, 90, 199, 300)))
    container, key = rng.choice(donors)
    return deepcopy(container[key])


def broken(rng: random.Random, body: dict[str, Any], donors: list[tuple[Any, Any]]) -> dict[str, Any]:
    """`body` with a few of its values replaced, removed, doubled, wrapped or renamed."""
    body = deepcopy(body)
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        inside = places(body)
        if not inside:
            break
        container, key = rng.choice(inside)
        act = rng.randrange(6)
        if act < 3:
            container[key] = any_value(rng, donors)
        elif act == 3:
            del container[key]
        elif isinstance(container, list):
            container.insert(rng.randrange(len(container) + 1), deepcopy(container[key]))
        elif act == 4:
            container[rng.choice(WORDS)] = container.pop(key)
        else:
            container[key] = [container[key]]
    return body


def garbled(rng: random.Random, data: bytes) -> bytes:
    """`data` cut, doubled or with bytes changed."""
    at, to = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
    act = rng.randrange(5)
    if act == 0:
        return data[:at]
    if act == 1:
        return data[:at] + data[to:]
    if act == 2:
        return data[:to] + data[at:]
    if act == 3:
        return data[:at] + rng.randbytes(rng.randrange(1, 6)) + data[at:]
    return data[:at] + rng.choice((b"\\ud800", b'"', b"\x00", b"\xed\xa0\x80", b"9" * 5000, b"[" * 5000)) + data[at:]


DONORS = [place for case in WIRE_CASES for place in places(case.rich)]


def bodies(case: WireCase, seed: int, count: int) -> list[bytes]:
    """`count` bodies that are almost right for `case`."""
    rng = random.Random(seed)
    out: list[bytes] = []
    for _ in range(count):
        ascii_only = rng.random() < 0.7
        text = json.dumps(broken(rng, case.rich, DONORS), ensure_ascii=ascii_only)
        data = text.encode("utf-8", "surrogatepass")
        out.append(garbled(rng, data) if rng.random() < 0.2 else data)
    return out


ANSWER = Answer(Message("assistant", "So:", "hm", (ToolCall("call_a", "bash", "{no"),)), StopReason.STOP, 1, 2)


def check(case: WireCase, data: bytes, whole: bool) -> bool:
    """Whether `data` is a request; then it can be keyed, kept and (with `whole`) rendered and answered."""
    try:
        request = case.parse(data)
    except ValueError as e:
        assert str(e), data
        return False
    place = History[None]().look(request)
    assert len(place.key) == 16
    if whole:
        again, tools, _ = from_neutral_json(neutral_json(request, Message("assistant")))
        assert (again, tools) == (request.messages, request.tools), data
        check_answer(case, request)
        check_rendering(request)
    return True


def check_answer(case: WireCase, request: Request) -> None:
    wire = WIRES[case.name]
    json.loads(wire.answer_json(request, ANSWER, "3x0"), parse_constant=pytest.fail)
    stream = [wire.stream_start(request, "3x0"), *wire.stream_answer(request, ANSWER, "3x0")]
    for event in b"".join([*stream, wire.stream_end(request, ANSWER, "3x0")]).decode().split("\n\n"):
        if "data: {" in event:
            json.loads(event.partition("data: ")[2], parse_constant=pytest.fail)


def check_rendering(request: Request) -> None:
    """Control tokens are the template's own: two a message, one for the tools' turn, one for the next turn."""
    try:
        ids = renderer().render(request.messages, request.tools).tolist()
    except ModelError:  # the template refuses it, as a schema whose properties are a text: a 400 with its words
        return
    (start,) = renderer().encode("<|im_start|>").tolist()
    assert ids.count(start) <= len(request.messages) + 2, request.raw


@pytest.mark.parametrize("case", WIRE_CASES, ids=lambda case: case.name)
def test_the_unbroken_bodies_are_requests(case: WireCase) -> None:
    assert check(case, json.dumps(case.rich).encode(), whole=True)


def fuzz(case: WireCase, seed: int, count: int) -> tuple[int, int]:
    """(requests, refused) of so many bodies, each checked; fails with the body that is neither."""
    found = [0, 0]
    for i, data in enumerate(bodies(case, seed, count)):
        try:
            found[not check(case, data, whole=i % 10 == 0)] += 1
        except Exception as e:
            raise AssertionError(f"{case.name}: {data!r}") from e
    return found[0], found[1]


BY_NAME = {case.name: case for case in WIRE_CASES}
NAMES, SEEDS = st.sampled_from(sorted(BY_NAME)), st.integers(0, 2**48)


@settings(max_examples=20, deadline=None)
@given(NAMES, SEEDS)
def test_a_few_thousand_broken_bodies(name: str, seed: int) -> None:
    assert sum(fuzz(BY_NAME[name], seed, 50)) == 50


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(NAMES, SEEDS)
def test_a_hundred_thousand_broken_bodies(name: str, seed: int) -> None:
    assert sum(fuzz(BY_NAME[name], seed, 200)) == 200


# ------------------------------------------------------------------ the same through the whole proxy


async def post_all(http: httpx.AsyncClient, case: WireCase, seed: int, count: int) -> tuple[int, int]:
    """(answered, refused) of so many bodies over the socket; anything but an answer or a named refusal fails."""
    answered = refused = 0
    for data in bodies(case, seed, count):
        reply = await http.post(case.path, content=data)
        assert reply.status_code in (200, 400), (reply.status_code, reply.text[:300], data)
        if reply.status_code == 200:
            answered += 1
        else:
            refused += 1
            assert case.error(reply.json())[1], data
    return answered, refused


async def through_the_proxy(folder: Path, count: int) -> tuple[int, int]:
    """(answered, refused) of so many bodies a wire; every answer is on record once."""
    limits = Limits(max_calls=10**6, max_replays=10**6, max_sampled_tokens=10**9)
    async with running(folder, limits=limits, context_length=100_000) as at, at.http() as http:
        answered = refused = 0
        for seed, case in enumerate(WIRE_CASES):
            more = await post_all(http, case, seed, count)
            answered, refused = answered + more[0], refused + more[1]
        settled = await at.proxy.close("tok")
        assert settled.error is None
        assert settled.num_calls == len(at.record.drafts) == answered - settled.num_replays
        assert all(draft.sample is not None and draft.delivered for draft in at.record.drafts)
    return answered, refused


@pytest.mark.anyio
async def test_broken_bodies_over_the_socket_are_answered_or_refused_and_every_answer_is_recorded(
    tmp_path: Path,
) -> None:
    answered, refused = await through_the_proxy(tmp_path, 50)
    assert answered > 10 and refused > 10


@pytest.mark.slow
@pytest.mark.anyio
async def test_thousands_of_broken_bodies_over_the_socket(tmp_path: Path) -> None:
    answered, refused = await through_the_proxy(tmp_path, 1500)
    assert answered > 300 and refused > 300


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
