"""How fast a counter rises: exact where it can be, bounded always."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvops.alerts.rates import RisingWindow


def test_a_steady_rise() -> None:
    window = RisingWindow(60)
    for at in range(0, 100, 10):
        window.add(at, {"": 5 * at})
    assert window.rate(90) == pytest.approx(5)
    assert window.increase(90) == pytest.approx(300)


def test_nothing_is_said_of_one_sample_or_of_none() -> None:
    window = RisingWindow(60)
    assert window.rate(0) is None
    window.add(0, {"": 1})
    assert window.rate(0) is None
    window.add(100, {"": 2})
    assert window.rate(100) is None


def test_a_series_that_turns_up_has_been_zero() -> None:
    window = RisingWindow(60)
    window.add(0, {"a": 0})
    window.add(10, {"a": 0, "b": 3})
    assert window.increase(10) == pytest.approx(3)


def test_a_reset_is_no_fall() -> None:
    window = RisingWindow(60)
    for at, value in ((0, 100), (10, 110), (20, 4), (30, 14), (40, 24), (50, 34), (60, 44)):
        window.add(at, {"": value})
    assert window.increase(60) == pytest.approx(10 + 4 + 40)


@given(st.lists(st.tuples(st.floats(0.01, 5), st.integers(0, 50), st.booleans()), max_size=400))
@settings(max_examples=50, deadline=None)
def test_memory_is_bounded_and_no_rise_is_lost(moves: list[tuple[float, int, bool]]) -> None:
    """However often it is looked at; each move waits, then rises by some or begins anew with some."""
    seconds = 100_000
    window, at, value, risen = RisingWindow(seconds), 0.0, 51, 0
    window.add(at, {"": value})
    for pause, some, anew in moves:
        at, risen = at + pause, risen + some
        value = some if anew and some < value else value + some
        window.add(at, {"": value})
    (line,) = window._lines.values()
    assert len(line.points) <= 3 + at / (seconds / 240)
    assert line.points[-1].risen == risen
