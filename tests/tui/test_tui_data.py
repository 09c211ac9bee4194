"""What the views of the terminal UI draw, without a terminal: the form's TOML, the log by time, curves, engines."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.config.runconfig import resolve
from appliance.engine.load import read_load
from tests.support.tui_record import Builder
from tui.pages.curve import Curve, StepLine
from tui.pages.log import events_around, moment, read_events
from tui.pages.new_run import asked, filled, toml_text, written
from tui.pages.reader import Reader
from tui.pages.snapshot import Only, Wanted
from tui.widgets import chart

HARNESSES = ("pi", "codex")


@pytest.fixture
def builder(tmp_path: Path) -> Iterator[Builder]:
    made = Builder(tmp_path)
    yield made
    made.close()


# ---------------------------------------------------------------------- the form for a new run


def test_the_form_asks_with_the_configurations_own_defaults_meanings_and_choices() -> None:
    fields = {field.key: field for field in asked()}
    assert fields["train.steps"].value == "8" and "optimiser steps" in fields["train.steps"].meaning
    assert fields["train.algorithm"].choices == ("grpo", "dr_grpo", "rloo", "ppo")
    assert fields["evaluation.enabled"].choices == ("true", "false") and fields["harnesses"].value == "pi, codex"


@pytest.mark.parametrize(
    ("key", "text", "problem"),
    [
        ("train.steps", "many", "train.steps: Input should be a valid integer"),
        ("train.group_size", "1", "greater than or equal to 2"),
        ("train.algorithm", "grpoo", "Input should be 'grpo'"),
        ("harnesses", "pi, nobody", "there is no harness 'nobody'; known: pi, codex"),
        ("tasks.pack", "/nowhere/at/all", "there is no such pack"),
        ("from", "/nowhere.toml", "no such file"),
    ],
)
def test_what_will_not_do_is_said_with_its_field(key: str, text: str, problem: str) -> None:
    found = filled({key: text}, HARNESSES)
    assert problem in found.problem and (found.key, found.toml) == (key, "")


def test_the_forms_toml_is_its_base_with_what_was_changed(tmp_path: Path) -> None:
    base = tmp_path / "base.toml"
    base.write_text('name = "base"\n[train]\nsteps = 3\nclip_high = 0.3\n[rollout]\nhosts = []\n')
    typed = {"from": str(base), "name": "base", "train.steps": "5", "train.groups": "8", "harnesses": "pi"}
    found = filled(typed, HARNESSES)
    assert tomllib.loads(found.toml) == {
        "name": "base", "harnesses": ["pi"], "train": {"steps": 5, "clip_high": 0.3}, "rollout": {"hosts": []},
    }  # fmt: skip
    path = written(tmp_path, found.toml)
    assert path.parent == tmp_path / "forms" and path.name.startswith("base-")
    assert path.stat().st_mode & 0o777 == 0o600
    assert resolve(path).train.steps == 5 and resolve(path).harnesses == ("pi",)


def test_settings_that_do_not_fit_each_other_are_said_too() -> None:
    found = filled({"from": "", "train.group_size": "4"}, HARNESSES)
    assert not found.problem and tomllib.loads(found.toml) == {"train": {"group_size": 4}}
    assert filled({}, HARNESSES).toml.strip() == ""


TEXT = st.text('ab é数"\x27#=[]\\', max_size=20)
VALUE = st.one_of(TEXT, st.integers(-(10**9), 10**9), st.booleans(), st.floats(0.001, 1e6), st.lists(st.integers(0, 9)))


@given(st.dictionaries(st.sampled_from(["steps", "seed", "loss"]), VALUE), VALUE)
def test_toml_that_the_form_writes_is_read_back_as_it_was(table: dict[str, object], single: object) -> None:
    tables = {"train": table, "seed": single}
    assert tomllib.loads(toml_text(tables)) == tables


# ---------------------------------------------------------------------- the log by time


def test_a_moment_is_a_clock_time_how_long_ago_or_a_date() -> None:
    now = time.mktime((2026, 11, 30, 14, 0, 0, 0, 0, -1))
    assert moment("13:59", now) == now - 60 and moment("13:59:30", now) == now - 30
    assert moment("14:01", now) == now - 86400 + 60  # that late it was yesterday
    assert moment("10m", now) == moment("-10 m", now) == now - 600 and moment("2h", now) == now - 7200
    assert moment("2026-11-30 13:00", now) == now - 3600
    for nonsense in ("", "soon", "25:99", "10"):
        with pytest.raises(ValueError):
            moment(nonsense, now)


def test_the_log_is_read_around_a_moment_in_any_part_of_it(builder: Builder) -> None:
    builder.run("r1")
    with builder.store.write() as db:
        rows = [("r1" if n % 3 else None, 1000.0 + n, "info", "part", f"event {n}") for n in range(9000)]
        db.executemany("INSERT INTO events(run_id, at, level, part, message) VALUES(?,?,?,?,?)", rows)
    newest = read_events(builder.store, "r1")
    assert len(newest) == 5000 and newest[-1].message == "event 8999"
    around = events_around(builder.store, "r1", 1000.0 + 2500)
    assert around[0].message == "event 1500" and around[1000].message == "event 2500" and len(around) == 5000
    assert [e.id for e in around] == sorted(e.id for e in around)
    assert events_around(builder.store, "r1", 0)[0].message == "event 0"
    assert events_around(builder.store, "r1", 1e12)[-1].message == "event 8999"


# ---------------------------------------------------------------------- curves


def step(number: int, **metrics: float) -> StepLine:
    return StepLine(number, True, 0.5, {"pi": 0.5}, 4, 0, 4, 1, 0, metrics)


def test_metrics_keep_the_names_they_were_recorded_under() -> None:
    curve = Curve(("pi",), (step(1, loss=0.2, frac_reward_zero_std=0.0), step(2, loss=0.1)), 4)
    assert curve.metrics == ("frac_reward_zero_std", "loss")
    assert curve.series("loss") == {"loss": [(1, 0.2), (2, 0.1)]} and curve.series("") == {"pi": [(1, 0.5), (2, 0.5)]}


def test_smoothing_is_an_exponential_mean_without_a_start_at_zero() -> None:
    # weights 0.5: (0.5·4) / 0.5 = 4 · (0.25·4 + 0.5·8) / 0.75 = 20/3
    assert chart.smoothed([(1, 4.0), (2, 8.0)], 0.5) == [(1, 4.0), (2, pytest.approx(20 / 3))]
    assert chart.smoothed([(1, 4.0), (2, 8.0)], 0.0) == [(1, 4.0), (2, 8.0)]


def test_a_logarithmic_axis_spreads_decades_evenly_and_leaves_out_what_has_no_logarithm() -> None:
    scale = chart.scale_of([0.01, 1.0, -3.0, 0.0], is_log=True)
    assert (scale.low, scale.high, scale.is_log) == (0.01, 1.0, True)
    assert scale.place(0.1) == pytest.approx(0.5) and scale.ticks[1] == pytest.approx(0.1)
    assert not chart.scale_of([-1.0, 0.0], is_log=True).is_log
    flat = chart.scale_of([3.0], is_log=False)
    assert flat.low < 3.0 < flat.high and flat.place(3.0) == pytest.approx(0.5)


@given(st.lists(st.floats(-1e6, 1e6), max_size=30), st.booleans(), st.integers(1, 120), st.integers(1, 40))
def test_any_numbers_draw_in_any_size(values: list[float], is_log: bool, wide: int, high: int) -> None:
    scale = chart.scale_of(values, is_log)
    points = [(n + 1, v) for n, v in enumerate(values) if v > 0 or not scale.is_log]
    grid = chart.draw({"m": points}, 5, (wide, high), scale, at=2)
    assert len({len(row) for row in grid}) == 1 and len(grid) >= high


# ---------------------------------------------------------------------- groups, engines


def test_a_rollouts_group_is_its_task_in_its_harness_of_its_step(builder: Builder) -> None:
    from appliance.types import Purpose

    builder.run("r1")
    own = builder.rollouts("r1", Purpose.TRAIN, 1, "count-1", 2)
    builder.rollouts("r1", Purpose.TRAIN, 1, "count-1", 2, "codex")
    builder.rollouts("r1", Purpose.TRAIN, 2, "count-1", 2)
    reader = Reader(builder.home)
    try:
        found = reader.poll(Wanted(view="rollouts", only=Only(step=1, harness="pi", task="count-1")))
    finally:
        reader.close()
    assert [r.id for r in found.rollouts] == own and found.only and "count-1 × pi" in found.only.text


METRICS = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="base"} 3.0
vllm:num_requests_waiting{engine="0",model_name="base"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity",model_name="base"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="base"} 0.25
vllm:prefix_cache_queries_total{engine="0",model_name="base"} 4e+02
vllm:prefix_cache_hits_total{engine="0",model_name="base"} 300.0
vllm:prefix_cache_hits_created{engine="0",model_name="base"} 1.7e+09
python_gc_objects_collected_total{generation="0"} 1.0
"""


def test_an_engines_numbers_are_read_from_its_metrics() -> None:
    load = read_load(METRICS)
    assert load == {"running": 3, "waiting": 2, "cache_share": 0.25, "prefix_queries": 400, "prefix_hits": 300}
    assert read_load(b"no metrics at all") == {}


def test_the_newest_numbers_of_an_engine_are_kept_and_no_others(builder: Builder) -> None:
    builder.run("r1")
    for waiting in (5.0, 0.0):
        builder.store.note_engine("r1", 0, read_load(METRICS) | {"waiting": waiting})
    builder.store.note_engine("r1", 1, {"running": 1.0})
    reader = Reader(builder.home)
    try:
        first, second = reader.poll(Wanted(view="hardware")).engines
    finally:
        reader.close()
    assert (first.running, first.waiting, first.cache_share, first.hit_share) == (3, 0, 0.25, 0.75)
    assert (second.running, second.cache_share, second.hit_share) == (1, None, None)


def test_status_says_what_the_ui_shows_of_the_engine(builder: Builder) -> None:
    from appliance.report.status import engine_line, status

    builder.run("r1")
    builder.store.note_engine("r1", 0, read_load(METRICS))
    (engine,) = status(builder.home, "r1")["engines"]
    assert engine["waiting"] == 2 and engine["seconds_ago"] >= 0
    assert engine_line(engine) == "engine 0  3 calls under way, 2 waiting, 25 % of its cache in use"
