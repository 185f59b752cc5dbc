"""Ring buffers of readings: bounded, and a gap stays a gap."""

from __future__ import annotations

import msgspec
import pytest

from kvops.telemetry.history import History, Series, readings
from kvops.telemetry.snapshot import NotExposed
from tests.telemetry.samples import make_snapshot


def test_a_series_keeps_its_last_seconds_only() -> None:
    series = Series(5)
    for second in range(100, 110):
        series.put(second, float(second))
    assert [series.get(second) for second in range(103, 111)] == [
        None,
        None,
        105,
        106,
        107,
        108,
        109,
        None,
    ]


def test_skipped_seconds_are_gaps_even_where_old_values_lay() -> None:
    series = Series(5)
    for second in range(5):
        series.put(second, 1.0)
    series.put(8, 2.0)
    assert [series.get(second) for second in range(4, 9)] == [1.0, None, None, None, 2.0]


def test_a_long_silence_empties_the_ring() -> None:
    series = Series(5)
    series.put(1, 1.0)
    series.put(1_000_000, 2.0)
    assert [series.get(second) for second in range(999_996, 1_000_001)] == [None] * 4 + [2.0]


def test_none_is_a_gap_and_zero_is_a_value() -> None:
    series = Series(5)
    series.put(1, None)
    series.put(2, 0.0)
    assert [series.get(1), series.get(2)] == [None, 0.0]


def test_time_going_backwards_changes_nothing() -> None:
    series = Series(5)
    series.put(10, 1.0)
    series.put(9, 5.0)
    assert [series.get(9), series.get(10)] == [None, 1.0]


def test_slow_polls_are_joined_and_lost_ones_are_not() -> None:
    history = History(60)
    history.record(100.2, {"a": 1.0}, hold=4)
    history.record(103.1, {"a": 2.0}, hold=4)
    assert history.window("a", end=103.9, seconds=4, points=4) == [1.0, 2.0, 2.0, 2.0]
    history.lost()
    history.record(106.0, {"a": 3.0}, hold=4)
    assert history.window("a", end=106.0, seconds=4, points=4) == [2.0, None, None, 3.0]


def test_a_silence_longer_than_hold_is_a_gap() -> None:
    history = History(60)
    history.record(100, {"a": 1.0}, hold=2)
    history.record(105, {"a": 2.0}, hold=2)
    assert history.window("a", end=105, seconds=6, points=6) == [1.0, None, None, None, None, 2.0]


def test_a_window_takes_the_peak_of_each_point_on_a_fixed_grid() -> None:
    history = History(60)
    for second in range(100, 110):
        history.record(second, {"a": float(second % 10)}, hold=2)
    assert history.window("a", end=109, seconds=10, points=5) == [1, 3, 5, 7, 9]
    assert history.window("a", end=108, seconds=10, points=5)[:4] == [1, 3, 5, 7][:4]


def test_an_unknown_series_is_all_gaps() -> None:
    assert History(60).window("nothing", end=100, seconds=10, points=4) == [None] * 4


def test_rise_of_a_counter_and_its_reset() -> None:
    history = History(60)
    assert history.rise("a", end=100, seconds=60) is None
    history.record(100, {"a": 5.0}, hold=2)
    assert history.rise("a", end=100, seconds=60) is None
    history.record(101, {"a": 9.0}, hold=2)
    assert history.rise("a", end=101, seconds=60) == 4
    history.record(102, {"a": 0.0}, hold=2)
    assert history.rise("a", end=102, seconds=60) == 0


def test_readings_hold_nothing_that_is_not_exposed() -> None:
    snapshot = make_snapshot()
    assert readings(snapshot)["kv_usage"] == pytest.approx(7000 / 11650)
    assert readings(make_snapshot(samples=3))["ttft_p95"] is None
    hidden = msgspec.structs.replace(
        snapshot, kv=NotExposed("no"), queue=NotExposed("no"), latency=NotExposed("no")
    )
    assert set(readings(hidden)) == {"generation_rate"}
