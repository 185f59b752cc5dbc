"""How the first token depends on the load, on the prompt's length and on chance; and recall by place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kvops.load.reports.base import RunData
from kvops.load.reports.plots import (
    BLUE,
    ORANGE,
    RED,
    VIOLET,
    Missing,
    Plot,
    heat_map,
    in_time,
    label,
)
from kvops.load.reports.timeline import thinned
from kvops.load.statistics.frame import Frame, grouped_quantiles
from kvops.load.statistics.percentiles import Values
from kvops.units import format_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GROUPS = 12
CACHED = 0.5
"""Share of a prompt from which on its first token is drawn as answered from the cache."""
ALIKE = 1.2
"""Prompts whose lengths are within this factor are one length."""


def latency_over_load(data: RunData, frame: Frame) -> Plot | Missing:
    """Over the offered rate where an open loop varies it, else over the requests in flight."""
    title = "First token over load"
    if not len(frame):
        return Missing(title, "no request came to its end")
    if data.info.pacing.kind in ("ramp", "burst", "trace"):
        load, across = _offered(frame.wanted), "requests/s offered, in the second of the request"
    else:
        load, across = frame.in_flight, "requests in flight when it was sent, itself among them"
    waits = np.where(frame.failed, np.inf, frame.ttft)
    middles, groups = _groups(load, waits, _edges(load))
    if np.isfinite(grouped_quantiles(groups)[0.50]).sum() < 2:
        return Missing(
            title, f"too few requests at more than one load ({load.min():g} to {load.max():g})"
        )
    return _quantile_plot(title, middles, groups, across)


def ttft_over_length(frame: Frame) -> Plot | Missing:
    title, known = (
        "First token by prompt length",
        np.isfinite(frame.prompt) & np.isfinite(frame.ttft),
    )
    lengths = frame.prompt[known]
    if not len(lengths):
        return Missing(title, "no answer told the length of its prompt")
    low, high = lengths.min(), lengths.max()
    if high <= ALIKE * low:
        return Missing(
            title, f"all prompts had about the same length ({low:.0f} to {high:.0f} tokens)"
        )

    def draw(figure: Figure) -> None:
        axes, shown = figure.add_subplot(), thinned(frame.ttft, known)
        cached = frame.cached[shown] >= CACHED * frame.prompt[shown]
        for which, name, colour in ((~cached, "computed", BLUE), (cached, "mostly cached", VIOLET)):
            if which.any():
                at = shown[which]
                axes.plot(
                    frame.prompt[at], frame.ttft[at], ".", ms=3, alpha=0.4, color=colour, label=name
                )
        middles, groups = _groups(lengths, frame.ttft[known], _length_edges(lengths))
        axes.plot(
            middles, grouped_quantiles(groups)[0.50], "o-", ms=4, color=ORANGE, label="median"
        )
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda tokens, _: format_whole(round(tokens)))
        axes.set_ylim(bottom=0)
        in_time(axes.yaxis)
        label(axes, "prompt tokens", "first token")

    return Plot(
        title, draw, "A jump between two lengths that attention does not explain is a fault."
    )


def distribution(frame: Frame) -> Plot | Missing:
    title, ordered = (
        "Share of requests answered within a time",
        np.sort(frame.ttft[np.isfinite(frame.ttft)]),
    )
    if not len(ordered):
        return Missing(title, "no request was answered")
    asked = len(ordered) + int(frame.failed.sum())

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for values, name, colour in (
            (ordered, "first token", BLUE), (np.sort(frame.e2e[np.isfinite(frame.e2e)]), "whole answer", ORANGE),
        ):  # fmt: skip
            picked = np.unique(np.linspace(0, len(values) - 1, 400).astype(int))
            axes.step(values[picked], (picked + 1) / asked, where="post", color=colour, label=name)
        if frame.failed.any():
            axes.axhline(len(ordered) / asked, color=RED, lw=1, ls="--", label="the rest failed")
        axes.set_xscale("log")
        in_time(axes.xaxis)
        axes.set_ylim(0, 1.02)
        label(axes, "", "share of all requests")

    return Plot(
        title, draw, "Failed requests are never answered: the curves end below 1 by their share."
    )


def recall_map(data: RunData) -> Plot | Missing:
    title, cells = "Recall by depth and prompt length", defaultdict(list)
    for record in data.records:
        if record.needle is not None and not record.cancelled:
            cells[record.needle.length, record.needle.depth].append(record.expected)
    if not cells:
        return Missing(title, "the scenario hides no needles")
    lengths = sorted({length for length, _ in cells})
    depths = sorted({depth for _, depth in cells if depth is not None})
    rows = [*depths, *([None] if any(depth is None for _, depth in cells) else [])]
    found = [[cells.get((length, depth), []) for length in lengths] for depth in rows]
    return heat_map(
        title,
        [format_whole(length) for length in lengths],
        ["no needle" if depth is None else f"{depth:g} %" for depth in rows],
        [[sum(cell) / len(cell) if cell else None for cell in row] for row in found],
        [[f"{sum(cell)}/{len(cell)}" if cell else "not asked" for cell in row] for row in found],
        across="prompt, tokens",
        up="depth",
        note="Numbers found of those asked; a prompt without a needle is right when none is found.",
    )


def _quantile_plot(title: str, middles: Values, groups: Sequence[Values], across: str) -> Plot:
    found = grouped_quantiles(groups)

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        figure.subplots_adjust(right=0.92)  # room for the names of a second scale
        axes.plot(middles, found[0.50], "o-", ms=4, color=BLUE, label="first token p50")
        axes.plot(middles, found[0.95], "o-", ms=4, color=ORANGE, label="p95")
        lost = [float(np.isinf(group).mean()) if len(group) else np.nan for group in groups]
        if np.nansum(lost):
            beside = axes.twinx()
            beside.bar(middles, lost, width=0.4 * np.diff(middles).min(), color=RED, alpha=0.25)
            beside.set(ylim=(0, 1), ylabel="share failed")
            beside.grid(visible=False)
        axes.set_ylim(bottom=0)
        in_time(axes.yaxis)
        label(axes, across, "first token")

    return Plot(
        title, draw, "Groups with too few requests (5 for the median, 20 for p95) are left out."
    )


def _offered(wanted: Values) -> Values:
    """Of each request: how many were wanted in its second."""
    _, places, counts = np.unique(np.floor(wanted), return_inverse=True, return_counts=True)
    return counts[places].astype(np.float64)


def _edges(values: Values) -> Values:
    """Bounds of groups of equal width, or of single values where they are few."""
    distinct = np.unique(values)
    if len(distinct) <= GROUPS:
        return np.append(distinct, distinct[-1] + 1) - 0.5
    return np.linspace(distinct[0], distinct[-1] + 1, GROUPS + 1)


def _length_edges(lengths: Values) -> Values:
    """Bounds of groups of prompts that are about as long, or of equal ratio where there are too many."""
    starts = [float(lengths.min())]
    for length in np.unique(lengths).tolist():
        if length > ALIKE * starts[-1]:
            starts.append(length)
    end = float(lengths.max()) + 1
    return (
        np.array([*starts, end])
        if len(starts) <= GROUPS
        else np.geomspace(starts[0], end, GROUPS + 1)
    )


def _groups(at: Values, values: Values, edges: Values) -> tuple[Values, list[Values]]:
    """The mean place and the values of each group that holds any."""
    number = np.digitize(at, edges)
    held: Sequence[int] = np.unique(number).tolist()
    middles = np.array([at[number == one].mean() for one in held])
    groups = [values[number == one] for one in held]
    return middles, [group[~np.isnan(group)] for group in groups]
