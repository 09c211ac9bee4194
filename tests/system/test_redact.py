"""Secrets stay out of the log, the report page and exports; what models said and token ids stay as they were."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.capture.upstream import Upstream, UpstreamTeacher
from appliance.errors import CaptureError
from appliance.record.store import Store
from appliance.report.export.export_run import FORMATS, export
from appliance.report.run_html import write_report
from appliance.system.redact import HIDDEN, logged, own_secrets, redacted, value_without_secrets, without_secrets
from appliance.types import Message, Purpose, Request, Reward, RolloutPlan, RunState
from tests.support.told_record import SYSTEM, TASK, call, told_record

KEY = "verysecretvalue-1234"
TOKEN = "Zk3v9QbT7xLmN2pR8sWdYa1cZk3v9QbT"
LEAKS = (
    f"the key is {KEY}",
    f"http://127.0.0.1:8123/s/{TOKEN}/v1/responses",
    "authorization: Bearer abcdefghij0123456789",
    "'x-api-key': 'abcdefghij0123456789'",
)
INNOCENT = (
    "The secret of basic internationalization is a token: max_tokens=96, api_key=None, sk-learn, hf-internal-testing, "
    "skip_special_tokens, https://example.org/s/short ssh://ann@host:22/run and the bearer of good news."
)


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_TEACHER_KEY", KEY)


def holds_secret(text: str) -> bool:
    return any(word in text for word in (KEY, TOKEN, "abcdefghij"))


@pytest.mark.parametrize("leak", LEAKS)
def test_what_carries_a_secret_loses_it_in_every_width(leak: str) -> None:
    assert holds_secret(leak)
    for clean in (without_secrets(leak, (KEY,)), logged(leak)):
        assert HIDDEN in clean and not holds_secret(clean)


def test_the_log_loses_what_has_the_form_of_a_key() -> None:
    said = logged("https://ann:hunter22@example.org refused sk-ant-REDACTED-klmnop and Bearer abcdefghij0123456789")
    assert said == f"https://{HIDDEN}@example.org refused {HIDDEN} and Bearer {HIDDEN}"


def test_other_words_stay_as_they_were() -> None:
    assert without_secrets(INNOCENT, own_secrets({"CORRAL_TEACHER_KEY": KEY})) == logged(INNOCENT) == INNOCENT


def test_only_variables_that_say_so_or_are_named_hold_secrets(tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    file.touch()
    told = {"A_KEY": KEY, "JUDGE": "judgessecret", "MAX_TOKENS": "1234567890", "B_KEY": "short", "SSL_KEY": str(file)}
    assert own_secrets(told) == (KEY,) and own_secrets(told, ["JUDGE", ""]) == (KEY, "judgessecret")


@given(st.recursive(st.integers() | st.floats(allow_nan=False) | st.text("ab -", max_size=8), st.lists))
def test_a_value_without_secrets_is_itself(value: object) -> None:
    assert value_without_secrets(value, (KEY,)) == value


def test_events_and_failures_are_recorded_without_secrets(tmp_path: Path) -> None:
    store = told_record(tmp_path)
    (rollout,) = store.plan([RolloutPlan("r1", Purpose.TRAIN, 2, "pi", "t", 0)])
    store.begin(rollout.id, 0)
    for leak in LEAKS:
        store.log("error", "engine", leak, "r1")
    store.fail(rollout.id, "teacher", " ".join(LEAKS))
    store.move_run("r1", RunState.FAILED, LEAKS[0])
    messages = [str(event["message"]) for event in store.events("r1")]
    assert len(messages) == len(LEAKS) and not any(holds_secret(message) for message in messages)
    assert not holds_secret(store.rollouts("r1")[-1].failure_detail) and not holds_secret(store.run("r1").message)
    store.close()


@pytest.fixture
def leaky(tmp_path: Path) -> Store:
    """A record where a harness told the model its settings, and the model repeated them beside innocent words."""
    store = told_record(tmp_path)
    (rollout,) = store.plan([RolloutPlan("r1", Purpose.TRAIN, 2, "pi", "count-1", 0)])
    store.begin(rollout.id, 0)
    answer = Message("assistant", f"{INNOCENT} {' '.join(LEAKS)}")
    store.add_call(rollout.id, call(0, (SYSTEM, TASK), answer, [10, 11, 12], [20, 21]))
    store.grade(rollout.id, Reward(1.0), "", {})
    return store


@pytest.mark.parametrize("kind", FORMATS)
def test_an_export_has_the_words_and_ids_and_no_secret(leaky: Store, tmp_path: Path, kind: str) -> None:
    export(leaky, "r1", kind, tmp_path / "out", rollout=4)
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()] or [tmp_path / "out"]
    told = "".join(path.read_bytes().decode(errors="replace") for path in files)
    assert not holds_secret(told)
    if kind in ("atif", "harbor", "messages"):
        assert json.dumps(INNOCENT)[1:-1] in told and HIDDEN in told
    if kind == "tokens":
        assert json.loads(told)["ids"] == [10, 11, 12, 20, 21]


def test_the_report_page_has_no_secret(leaky: Store, tmp_path: Path) -> None:
    (rollout,) = leaky.plan([RolloutPlan("r1", Purpose.TRAIN, 2, "pi", "count-1", 1)])
    leaky.begin(rollout.id, 0)
    answer = Message("assistant", f"{'Look. ' * 7}{KEY}")  # a tree's line is cut in the middle of it
    leaky.add_call(rollout.id, call(0, (SYSTEM, TASK), answer, [10, 11, 12], [20, 21]))
    leaky.grade(rollout.id, Reward(1.0), "", {})
    write_report(tmp_path, leaky, "r1", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert HIDDEN in page and KEY[:6] not in page


def test_a_key_that_an_upstream_repeats_is_taken_out_whatever_its_form() -> None:
    async def ask() -> None:
        teacher = UpstreamTeacher(Upstream("chat", "http://upstream/v1", "m", "plain key"))
        teacher._client = httpx.AsyncClient(
            transport=httpx.MockTransport(lambda request: httpx.Response(401, text="bad key: plain key"))
        )
        async with teacher:
            await teacher.answer(None, Request("chat", "m", (TASK,), ()), None)

    with pytest.raises(CaptureError, match=r"answered 401: bad key: \[redacted\]$"):
        anyio.run(ask)


def test_a_long_text_costs_its_length_and_not_its_square() -> None:
    for text in ("x" * 300_000, "a-" * 150_000, "a:" * 150_000, "://" * 100_000, "key=" * 75_000):
        assert without_secrets(text) == text and len(logged(text)) <= len(text) and redacted(text)
