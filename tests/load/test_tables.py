"""Tables of a report at any width: columns go, names and numbers are never cut."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from kvops.load.reports.cells import Columns


def rendered(width: int) -> str:
    table = Columns(("name", "p50", "p95", "worst"), give_up=("p95", "worst"))
    table.add("a-long-name", "1.25 s", "needs 20 samples", "12.50 s")
    file = io.StringIO()
    Console(file=file, width=width).print(table)
    return file.getvalue()


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (80, ["name", "p50", "p95", "worst"]),
        (40, ["name", "p50", "p95", "worst"]),
        (28, ["name", "p50", "worst"]),
        (20, ["name", "p50"]),
    ],
)
def test_the_least_wanted_columns_go_first(width: int, shown: list[str]) -> None:
    text = rendered(width)
    assert text.splitlines()[0].split() == shown
    assert "a-long-name" in text
    assert "1.25 s" in text
    assert "…" not in text


def test_a_missing_percentile_stands_on_one_line_where_there_is_room() -> None:
    assert "needs 20 samples" in rendered(80)
    narrow = rendered(40)
    assert "needs 20 samples" not in narrow
    assert "needs 20" in narrow
    assert len(narrow.splitlines()) == 2
