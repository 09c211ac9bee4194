"""Token ids as JSON text: what json reads is what was written, and only the very same ids are the same."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.engine.idtext import IdText, is_list_of

TEXT = IdText()
IDS = st.lists(st.integers(0, 2**31 - 1) | st.integers(0, 300), max_size=40)


@settings(deadline=None)
@given(IDS)
def test_json_reads_back_exactly_the_ids_that_were_written(ids: list[int]) -> None:
    assert json.loads(TEXT.written(np.asarray(ids, np.int32))) == ids


@settings(deadline=None)
@given(IDS, IDS)
def test_an_echo_is_the_same_however_it_is_spaced_and_another_list_never_is(ids: list[int], other: list[int]) -> None:
    prompt = np.asarray(ids, np.int32)
    written = TEXT.written(prompt)
    for spelt in (json.dumps(ids), json.dumps(ids, indent=1), json.dumps(ids, separators=(",", ":"))):
        assert is_list_of(spelt.encode(), prompt, written)
    assert is_list_of(json.dumps(other).encode(), prompt, written) == (other == ids)


def test_what_is_no_list_of_whole_numbers_is_not_the_prompt() -> None:
    prompt = np.asarray([1, 2], np.int32)
    for text in (b"null", b"[1,2.5]", b'["1","2"]', b"[12]", b"[1,2,2]", b"12"):
        assert not is_list_of(text, prompt, TEXT.written(prompt))


def test_the_table_grows_with_the_ids() -> None:
    text = IdText()
    for ids in ([0], [9, 10], [151_642], [1_048_575], [1_048_576], []):
        assert json.loads(text.written(np.asarray(ids, np.int32))) == ids
