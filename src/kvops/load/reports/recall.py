"""Recall by length and depth: a heat map, Wilson's lower bound, and a control without a needle per length.

The recall found must reach `min_recall`, and the answers must be so many that they show `shown_recall`: one needle of
one is all of them, and shows next to nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvops.load import needle
from kvops.load.records import NeedleScore, RequestRecord
from kvops.load.reports.base import RunData, Verdict, failure_lines, verdict
from kvops.load.statistics import wilson_lower
from kvops.units import format_ratio, format_whole

LENGTH_TOLERANCE = 0.02
SPOT_CHECK = 0.9
"""A run that shows less recall than this is told to be a spot check."""

Place = tuple[int, float | None]
"""Length and depth; depth None is the control."""


def judge(data: RunData) -> Verdict:
    options = data.info.options
    planned = needle.plan(data.info.seed, options["lengths"], options["depths"], options["repeats"])
    asked = _asked(data.records)
    hits, n = _total(asked)
    failures, gaps = [], []
    if any(
        record.needle is not None and record.needle.depth is None and record.failed
        for record in asked
    ):
        failures.append("a prompt without a needle was not answered rightly")
    if n and hits / n < options["min_recall"]:
        failures.append(
            f"recall {hits}/{n} is under the wanted {format_ratio(options['min_recall'])}"
        )
    if failures:
        failures += failure_lines(data.records)
    if len(asked) < len(planned):
        gaps.append(
            f"{len(planned) - len(asked)} of {len(planned)} prompts were not asked to the end"
        )
    # Kept runs of before have no such bound.
    shown = min(options.get("shown_recall", 0.0), options["min_recall"])
    if (low := wilson_lower(hits, n)) is not None and low < shown:
        gaps.append(
            f"{hits} of {n} found shows a recall of {_floor(low)} with 95 % confidence, under the wanted "
            f"{format_ratio(shown)}: {_more(data, hits, n, shown)}"
        )
    spot = [] if failures or gaps else _spot_check(data, hits, n)
    return verdict(
        failures, gaps, [*_notes(asked), *spot], _met(asked, hits, n, options["min_recall"])
    )


def _met(asked: Sequence[RequestRecord], hits: int, n: int, wanted: float) -> list[str]:
    controls = sum(record.needle is not None and record.needle.depth is None for record in asked)
    return [
        f"{hits} of {n} numbers found, {format_ratio(wanted)} are wanted",
        f"{controls} of {controls} prompts without a number brought none",
    ]


def _spot_check(data: RunData, hits: int, n: int) -> list[str]:
    low = wilson_lower(hits, n)
    if low is None or low >= SPOT_CHECK:
        return []
    return [
        f"a spot check: it shows a recall of at least {_floor(low)}; {_more(data, hits, n, SPOT_CHECK)}"
    ]


def _more(data: RunData, hits: int, n: int, share: float) -> str:
    """How many prompts would show it, if no more are lost."""
    options = data.info.options
    needed = needed_hits(n - hits, share)
    places = len(set(options["lengths"])) * len(set(options["depths"]))
    lost = "none" if hits == n else f"no more than {n - hits}"
    return (
        f"{format_ratio(share)} takes {needed} prompts with {lost} lost, --repeats "
        f"{math.ceil(needed / places)}"
    )


def needed_hits(lost: int, share: float) -> int:
    """Smallest n of which all but `lost` are found and Wilson's lower bound is `share`, which is under 1."""
    low, high = lost, max(64, 2 * lost)
    while (wilson_lower(high - lost, high) or 0.0) < share:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        enough = (wilson_lower(middle - lost, middle) or 0.0) >= share
        low, high = (low, middle) if enough else (middle, high)
    return high


def _floor(share: float) -> str:
    """Never more than is shown."""
    return f"{math.floor(100 * share)} %"


def facts(data: RunData) -> dict[str, Any]:
    asked = _asked(data.records)
    hits, n = _total(asked)
    cells = [
        {
            "length": length,
            "depth": depth,
            "n": len(scores),
            "right": sum(right for _, right in scores),
        }
        for (length, depth), scores in sorted(_by_place(asked).items(), key=_in_order)
    ]
    return {
        "found": hits,
        "n": n,
        "recall": hits / n if n else None,
        "wilson_lower": wilson_lower(hits, n),
        "cells": cells,
    }


def body(data: RunData) -> RenderableType:
    asked = _asked(data.records)
    title = Text(
        "numbers found, by depth (percent of the document) and prompt length (tokens)",
        style="italic",
    )
    return Group(
        title, _heat_map(data, _by_place(asked)), Text(_headline(*_total(asked)), style="bold")
    )


def _headline(hits: int, n: int) -> str:
    low = wilson_lower(hits, n)
    if low is None:
        return "no prompt was answered"
    percent = "100" if hits == n else f"{100 * hits / n:.1f}"  # 249 of 250 is not 100 %
    return (
        f"recall {percent} % ({hits} of {n}); at least {_floor(low)} with 95 % confidence (Wilson)"
    )


def _in_order(item: tuple[Place, object]) -> tuple[int, float]:
    """By length, the control first."""
    length, depth = item[0]
    return length, -1 if depth is None else depth


def _asked(records: Sequence[RequestRecord]) -> list[RequestRecord]:
    return [record for record in records if record.needle is not None and not record.cancelled]


def _total(asked: Sequence[RequestRecord]) -> tuple[int, int]:
    real = [
        record for record in asked if record.needle is not None and record.needle.depth is not None
    ]
    return sum(record.expected for record in real), len(real)


def _by_place(asked: Sequence[RequestRecord]) -> dict[Place, list[tuple[NeedleScore, bool]]]:
    places = defaultdict(list)
    for record in asked:
        if record.needle is not None:
            places[record.needle.length, record.needle.depth].append(
                (record.needle, record.expected)
            )
    return places


def _heat_map(data: RunData, places: dict[Place, list[tuple[NeedleScore, bool]]]) -> Table:
    lengths = sorted(set(data.info.options["lengths"]))
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("depth", justify="right")
    for length in lengths:
        table.add_column(format_whole(length), justify="right")
    for depth in sorted(set(data.info.options["depths"])):
        table.add_row(
            f"{depth:g} %", *(_cell(places.get((length, depth), ())) for length in lengths)
        )
    table.add_row("no needle", *(_cell(places.get((length, None), ())) for length in lengths))
    return table


def _cell(scores: Sequence[tuple[NeedleScore, bool]]) -> Text:
    """A glyph and the count say the same as the colour."""
    if not scores:
        return Text("· not asked", style="dim")
    right, n = sum(expected for _, expected in scores), len(scores)
    glyph, style = ("●", "green") if right == n else ("○", "red") if right == 0 else ("◐", "yellow")
    return Text(f"{glyph} {right}/{n}", style=style)


def _notes(asked: Sequence[RequestRecord]) -> list[str]:
    scores = [record.needle for record in asked if record.needle is not None]
    notes = []
    if any(not score.exact for score in scores):
        notes.append("the node has no tokenizer route: prompt lengths and depths are estimates")
    off = [
        abs(record.prompt_tokens / record.needle.length - 1)
        for record in asked
        if record.needle is not None and record.prompt_tokens is not None
    ]
    if off and max(off) > LENGTH_TOLERANCE:
        notes.append(f"prompts were up to {format_ratio(max(off))} off their asked length")
    return notes
