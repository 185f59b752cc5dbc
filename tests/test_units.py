from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvops.units import (
    format_bytes,
    format_count,
    format_duration,
    format_ratio,
    format_whole,
    parse_duration,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GiB", 8 * 2**30),
        ("512 MB", 512_000_000),
        ("1k", 1024),
        (4096, 4096),
        ("1.5KiB", 1536),
        ("7", 7),
    ],
)
def test_sizes_are_read_with_their_unit(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("20ms", 0.02), ("60s", 60), ("5m", 300), ("2h", 7200), (1.5, 1.5), ("10", 10)],
)
def test_times_are_read_with_their_unit(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "GiB", "-1", "8 gigs", "1e3", "nan", True, -5, float("nan"), float("inf")]
)
def test_what_is_no_quantity_is_refused_with_the_accepted_forms(text: str | float) -> None:
    with pytest.raises(ValueError, match="a size such as"):
        parse_size(text)
    with pytest.raises(ValueError, match="a time such as"):
        parse_duration(text)


@given(st.text(max_size=40))
def test_parsing_any_text_gives_a_number_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert parse_size(text) >= 0


def test_formats_stay_short() -> None:
    assert [format_bytes(n) for n in (0, 1023, 1536, 150 * 2**20, 2**31)] == [
        "0 B", "1023 B", "1.5 KiB", "150 MiB", "2.0 GiB",
    ]  # fmt: skip
    assert [format_duration(s) for s in (0.0005, 0.012, 1.5, 185, 7800, 273600)] == [
        "500 µs", "12 ms", "1.50 s", "3m 05s", "2h 10m", "3d 4h",
    ]  # fmt: skip
    assert [format_whole(n) for n in (950, 1456, 1048576)] == ["950", "1 456", "1 048 576"]
    assert [format_count(n) for n in (950, 1200, 3_400_000)] == ["950", "1.2k", "3.4M"]
    assert [format_ratio(r) for r in (0, 0.034, 0.97)] == ["0 %", "3.4 %", "97 %"]


def test_what_rounds_up_to_the_next_unit_is_written_in_it() -> None:
    assert format_bytes(1024 * 2**20 - 1) == "1.0 GiB"
    assert [format_duration(s) for s in (0.0009996, 0.9996, 59.996)] == ["1 ms", "1.00 s", "1m 00s"]
    assert format_ratio(0.0999) == "10 %"
