"""Percentiles are measured values, and None where the samples are too few."""

from __future__ import annotations

from kvops.telemetry.window import RateWindow, SlidingWindow, percentiles


def test_too_few_samples_claim_nothing() -> None:
    assert percentiles([]).p50 is None
    assert percentiles([1.0] * 4).p50 is None
    few = percentiles([1.0] * 19)
    assert (few.p50, few.p95, few.p99) == (1.0, None, None)


def test_nearest_rank() -> None:
    result = percentiles([float(n) for n in range(100, 0, -1)])
    assert (result.samples, result.p50, result.p95, result.p99, result.max) == (
        100,
        50.0,
        95.0,
        99.0,
        100.0,
    )


def test_old_samples_leave_the_window() -> None:
    window = SlidingWindow(10.0)
    for second in range(20):
        window.add(float(second), now=float(second))
    assert window.values(now=19.0) == [float(second) for second in range(9, 20)]
    assert window.values(now=100.0) == []


def test_rates_forget_old_seconds() -> None:
    window = RateWindow(3)
    for second in range(10):
        window.add(2, now=float(second))
    assert window.total(now=9.5) == 6
    assert window.total(now=11.5) == 2
    assert window.total(now=30.0) == 0
