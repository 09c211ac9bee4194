"""Raw bodies: what a request repeats costs almost nothing, and every byte comes back."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.errors import StoreError
from appliance.record.bodies import compress, decompress
from appliance.record.calls import CallDraft
from appliance.record.store import Store
from appliance.types import Purpose, RolloutPlan


def a_store(home: Path, harnesses: tuple[str, ...] = ("pi",), count: int = 1) -> Store:
    store = Store.open(home / "record.db")
    store.create_run("r1", "demo", {}, 0, "test")
    plans = [RolloutPlan("r1", Purpose.TRAIN, 1, h, "t", n) for h in harnesses for n in range(count)]
    for rollout in store.plan(plans):
        store.begin(rollout.id, 0)
    return store


def text(draw: random.Random, words: int) -> str:
    return " ".join("".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=6)) for _ in range(words))


def request(turns: list[str]) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": t} for t in turns]}).encode()


def draft(sequence: int, body: bytes, response: bytes = b"{}") -> CallDraft:
    return CallDraft(sequence, "chat", body, response, body[:-1], None, "stop", 1.0, 2.0)


def stored(store: Store) -> list[int]:
    return [row["n"] for row in store.rows("SELECT length(data) n FROM bodies ORDER BY call_id")]


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300), st.binary(max_size=300))
def test_what_is_compressed_comes_back_with_any_dictionary(data: bytes, before: bytes) -> None:
    assert decompress(compress(data, before), before) == data
    assert decompress(compress(before + data, before), before) == before + data


def test_a_growing_conversation_stores_each_turn_about_once(tmp_path: Path) -> None:
    store, draw = a_store(tmp_path), random.Random(0)
    turns, flat = [text(draw, 3000)], []
    for n in range(20):
        body = request(turns)
        store.add_call(1, draft(n, body))
        flat.append(body)
        turns.append(text(draw, 30))
    plain = len(zstandard.compress(b"".join(flat[-1:])))
    assert sum(stored(store)) < 1.2 * plain < sum(map(len, flat)) / 20
    assert [call.request_bytes for call in store.calls(1)] == flat
    assert store.conversations(1) == [body[:-1] for body in flat]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3000), st.binary(max_size=200), st.binary(max_size=60)), max_size=8))
def test_every_byte_comes_back_wherever_a_call_parts_from_those_before(edits: list[tuple[int, bytes, bytes]]) -> None:
    with tempfile.TemporaryDirectory() as home:
        store, body, told = a_store(Path(home)), random.Random(0).randbytes(2000), b"told"
        expected: list[tuple[bytes, bytes, bytes]] = []
        for n, (cut, new, response) in enumerate(edits):
            body, told = body[:cut] + new, told[: cut // 2] + new
            store.add_call(1, CallDraft(n, "chat", body, response, told, None, "stop", 1.0, 2.0))
            expected.append((body, response, told))
        found = zip(store.calls(1), store.conversations(1), strict=True)
        assert [(call.request_bytes, call.response_bytes, said) for call, said in found] == expected
        store.close()


def test_damage_in_what_is_new_never_gives_another_byte(tmp_path: Path) -> None:
    store, draw = a_store(tmp_path), random.Random(0)
    turns = [text(draw, 300)]
    for n in range(2):
        store.add_call(1, draft(n, request(turns)))
        turns.append("more")
    whole = store.rows("SELECT data FROM bodies WHERE call_id=2")[0]["data"]
    expected, num_found = store.calls(1)[1].request_bytes, 0
    assert whole[0] == 1, "kept as what is new"
    for place in range(len(whole)):
        with store.write() as db:
            damaged = whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :]
            db.execute("UPDATE bodies SET data=? WHERE call_id=2", (damaged,))
        try:
            assert store.calls(1)[1].request_bytes == expected  # a bit of the frame's head that says nothing
        except StoreError as error:
            assert "call 2: its bodies are damaged" in error.message
            num_found += 1
    assert num_found > 0.9 * len(whole)


def test_a_second_rollout_of_a_harness_stores_only_what_its_first_call_adds(tmp_path: Path) -> None:
    store, draw = a_store(tmp_path, count=2), random.Random(0)
    system = text(draw, 5000)
    store.add_call(1, draft(0, request([system, "count the lines"])))
    store.add_call(2, draft(0, request([system, "find the word"])))
    first, second = stored(store)
    assert second < first / 50
    assert store.calls(2)[0].request_bytes == request([system, "find the word"])


def test_calls_that_run_beside_each_other_build_each_on_its_own_kind(tmp_path: Path) -> None:
    store, draw = a_store(tmp_path), random.Random(0)
    main, side = text(draw, 2000), text(draw, 2000)
    for n in range(6):
        store.add_call(1, draft(n, request([(main, side)[n % 2], str(n)])))
    bases = [row["base"] for row in store.rows("SELECT base FROM bodies ORDER BY call_id")]
    assert bases[2:] == [1, 2, 3, 4]
    assert max(stored(store)[2:]) < 200


def test_another_process_goes_on_with_a_rollout_and_the_frame(tmp_path: Path) -> None:
    store, draw = a_store(tmp_path, count=2), random.Random(0)
    system = text(draw, 2000)
    store.add_call(1, draft(0, request([system])))
    store.close()
    again = Store.open(tmp_path / "record.db")
    again.add_call(1, draft(1, request([system, "more"])))
    again.add_call(2, draft(0, request([system, "other"])))
    assert stored(again)[1] < 200 and stored(again)[2] < 200
    assert again.calls(1)[1].request_bytes == request([system, "more"])


def test_a_call_that_was_not_committed_is_no_base(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    store.add_call(1, draft(0, request(["a" * 500])))
    with pytest.raises(StoreError):
        store.add_call(1, draft(0, request(["a" * 500, "b"])))  # the sequence is taken
    store.add_call(1, draft(1, request(["a" * 500, "b", "c"])))
    assert [call.sequence for call in store.calls(1)] == [0, 1]
    assert store.calls(1)[1].request_bytes == request(["a" * 500, "b", "c"])


def test_damaged_and_circular_bodies_name_their_call(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    for n in range(3):
        store.add_call(1, draft(n, request(["x" * 300, str(n)])))
    with store.write() as db:
        db.execute("UPDATE bodies SET base=3 WHERE call_id=2")
    with pytest.raises(StoreError, match="call 2: its bodies build on each other in a circle"):
        store.calls(1)
    with store.write() as db:
        db.execute("UPDATE bodies SET base=1 WHERE call_id=2")
        data = db.execute("SELECT data FROM bodies WHERE call_id=3").fetchone()[0]
        db.execute("UPDATE bodies SET data=? WHERE call_id=3", (data[:-1] + bytes([data[-1] ^ 1]),))
    with pytest.raises(StoreError, match="call 3: its bodies are damaged"):
        store.calls(1)
