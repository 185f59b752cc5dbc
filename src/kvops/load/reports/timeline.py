"""Latency over time, and beneath it on the same axis what client and node were doing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from kvops.load.reports.base import RunData
from kvops.load.reports.plots import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    VIOLET,
    Missing,
    Plot,
    in_time,
    label,
)
from kvops.load.statistics import WarmUp, token_rates
from kvops.load.statistics.frame import Frame, grouped_quantiles
from kvops.load.statistics.percentiles import Values, as_array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WINDOWS = 60
PER_WINDOW = 25
"""Requests in a window of the lines, where there are so many: 20 make a 95th percentile."""
FEW = 200
DOTS = 1200
"""More say no more on paper: of the others every so many and the slowest are drawn."""
ROW = 1.35
"""Height of one row, inches."""
Row = Callable[["Axes"], None]


def timeline(data: RunData, frame: Frame, warm_up: WarmUp) -> list[Plot | Missing]:
    """One plot with a row a subject; what the node did not show is named as missing."""
    if not len(frame):
        return [Missing("Over time", "no request came to its end")]
    rows = [
        latency_row(data, frame, warm_up),
        _throughput(data, frame),
        *_client(data),
        *_node(data),
    ]
    plot = Plot(
        "Over time",
        lambda figure: _stack(figure, rows, data.info.started_at, frame),
        _note(frame),
        height=ROW * len(rows) + 0.6,
    )
    if data.server:
        return [plot]
    reason = "the node showed no state during the run: its control plane was not asked or has none"
    return [plot, Missing("Queue and KV blocks over time", reason)]


def _note(frame: Frame) -> str:
    note = (
        "Lines are the median and the 95th percentile of windows with enough requests (5 and 20);"
        " failed requests count as infinitely slow and are marked in red."
    )
    left_out = int(np.isfinite(frame.ttft).sum()) - DOTS
    return (
        note
        if left_out <= 0
        else f"{note} {DOTS} of the requests are dots, the slowest among them."
    )


def _stack(figure: Figure, rows: Sequence[Row], start: float, frame: Frame) -> None:
    axes = figure.subplots(len(rows), 1, sharex=True, squeeze=False)[:, 0]
    figure.subplots_adjust(hspace=0.32, top=1 - 0.25 / figure.get_figheight())
    for draw, one in zip(rows, axes, strict=True):
        draw(one)
    axes[-1].set_xlabel("seconds since the start of the run")
    axes[-1].set_xlim(min(0.0, float(frame.sent.min()) - start), float(frame.closed.max()) - start)


def latency_row(data: RunData, frame: Frame, warm_up: WarmUp) -> Row:
    start = data.info.started_at

    def draw(axes: Axes) -> None:
        at, known = frame.sent - start, np.isfinite(frame.ttft)
        shown = thinned(frame.ttft, known)
        size = 2.5 if len(shown) > FEW else 6
        axes.plot(at[shown], frame.ttft[shown], ".", color=GREY, ms=size, label="one request")
        middles, groups = _windows(at, np.where(frame.failed, np.inf, frame.ttft))
        found = grouped_quantiles(groups)
        for share, name, colour in ((0.50, "p50", BLUE), (0.95, "p95", ORANGE)):
            if np.isfinite(found[share]).any():
                axes.plot(middles, found[share], "o-", ms=2, color=colour, label=name)
        if known.any() and np.nanmax(frame.ttft) > 20 * np.nanmin(frame.ttft) > 0:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        in_time(axes.yaxis)
        if frame.failed.any():
            top = np.full(int(frame.failed.sum()), axes.get_ylim()[1])
            axes.plot(
                at[frame.failed], top, "|", color=RED, markersize=8, clip_on=False, label="failed"
            )
        if warm_up.dropped and warm_up.until is not None:
            axes.axvspan(0, warm_up.until - start, color=GREY, alpha=0.2, lw=0, label="warm-up")
        label(axes, "", "first token")

    return draw


def thinned(values: Values, known: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Values:
    """Indices of at most DOTS known values: every so many, and the largest tenth of them."""
    indices = np.flatnonzero(known)
    if len(indices) <= DOTS:
        return indices.astype(np.intp)
    slowest = indices[np.argsort(values[indices])[-DOTS // 10 :]]
    even = indices[np.linspace(0, len(indices) - 1, DOTS - len(slowest)).astype(int)]
    return np.union1d(slowest, even)


def _windows(at: Values, values: Values) -> tuple[Values, list[Values]]:
    """Middles of windows of equal length and the values in each; NaN is left out."""
    windows = min(WINDOWS, max(1, len(at) // PER_WINDOW))
    width = max(1.0, float(at.max() - at.min()) / windows)
    number = ((at - at.min()) / width).astype(int)
    bounds = np.searchsorted(number, np.arange(1, number.max() + 1))
    middles = at.min() + width * (np.arange(number.max() + 1) + 0.5)
    return middles, [group[~np.isnan(group)] for group in np.split(values, bounds)]


def _throughput(data: RunData, frame: Frame) -> Row:
    first, last = float(frame.sent.min()), float(frame.closed.max())
    width = max(1.0, (last - first) / WINDOWS)
    count = max(1, int((last - first) / width))

    def draw(axes: Axes) -> None:
        rates = token_rates(data.records, first, width, count)
        at = first - data.info.started_at + width * (np.arange(count) + 0.5)
        axes.fill_between(at, rates, step="mid", color=GREEN, alpha=0.25, lw=0)
        axes.plot(
            at, rates, color=GREEN, drawstyle="steps-mid", label="output tokens/s at the client"
        )
        axes.set_ylim(bottom=0)
        label(axes, "", "tokens/s")

    return draw


def _client(data: RunData) -> list[Row]:
    """Samples of several processes of one second are added up."""
    if not data.client:
        return []
    at, flight = _per_second(
        [one.at for one in data.client], [one.in_flight for one in data.client]
    )

    def draw(axes: Axes) -> None:
        axes.plot(
            at - data.info.started_at,
            flight,
            color=VIOLET,
            drawstyle="steps-post",
            label="in flight at the client",
        )
        _line(axes, data, "running", lambda one: one.running, BLUE)
        _line(axes, data, "waiting", lambda one: one.waiting, ORANGE)
        axes.set_ylim(bottom=0)
        label(axes, "", "requests")

    return [draw]


def _node(data: RunData) -> list[Row]:
    """KV blocks: held by requests, and beside them cached for reuse, of all there are."""
    if not any(one.kv_used is not None for one in data.server):
        return []

    def draw(axes: Axes) -> None:
        known = [one for one in data.server if one.kv_used is not None]
        at = np.array([one.at for one in known]) - data.info.started_at
        used = np.array([one.kv_used or 0 for one in known])
        both = used + np.array([one.kv_cached or 0 for one in known])
        axes.fill_between(at, used, color=BLUE, alpha=0.45, lw=0, label="KV blocks used")
        axes.fill_between(at, used, both, color=GREEN, alpha=0.25, lw=0, label="cached")
        _line(axes, data, "all", lambda one: one.kv_total, GREY)
        axes.set_ylim(bottom=0)
        label(axes, "", "blocks")

    return [draw]


def _line(axes: Axes, data: RunData, name: str, of: Callable[..., int | None], colour: str) -> None:
    """Over the node's samples; one that it does not show is not drawn."""
    known = [(one.at, value) for one in data.server if (value := of(one)) is not None]
    if known:
        at, values = np.array(known, dtype=np.float64).T
        axes.plot(
            at - data.info.started_at,
            values,
            color=colour,
            label=name,
            lw=1.2,
            drawstyle="steps-post",
        )


def _per_second(at: Sequence[float], values: Sequence[int]) -> tuple[Values, Values]:
    seconds, places = np.unique(np.floor(at), return_inverse=True)
    return seconds, as_array(np.bincount(places, weights=values))
