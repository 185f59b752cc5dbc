"""Plots of a report: what to draw is told as a function, so that nothing is drawn that nobody looks at.

Only `svg` imports matplotlib, and with it whoever draws.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from kvops.units import format_duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

WIDTH = 9.0
"""Inches, at 72 units an inch: the page's column."""
BLUE, ORANGE, GREEN, RED, VIOLET, GREY = (
    "#2563eb", "#ea7a0c", "#15803d", "#dc2626", "#7c3aed", "#94a3b8",
)  # fmt: skip
COLOURS = (BLUE, ORANGE, GREEN, VIOLET, RED, GREY)
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: it can be searched, and is small
    "svg.hashsalt": "kvops",  # the same data gives the same file
    "text.parse_math": False,  # a name with a dollar sign is a name
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e2e8f0",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.5,
}


class Plot(msgspec.Struct, frozen=True):
    """`draw` fills an empty figure of the page's width."""

    title: str
    draw: Callable[[Figure], None]
    note: str = ""
    """How to read it, in one sentence."""
    height: float = 2.8
    """Inches."""


class Missing(msgspec.Struct, frozen=True):
    """A plot that the run has no data for."""

    title: str
    reason: str


def svg(plot: Plot) -> str:
    """The SVG element of the plot, to stand in a page: no prologue, no links."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # its talk of fonts is for nobody
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, plot.height))
        figure.subplots_adjust(left=0.09, right=0.98, top=0.94, bottom=0.5 / plot.height)
        plot.draw(figure)
        file = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", metadata=nothing)
    text = file.getvalue()
    return text[text.index("<svg") :]


def lines(
    title: str,
    x: Sequence[float],
    series: Mapping[str, Sequence[float | None]],
    *,
    across: str,
    up: str,
    note: str = "",
    marker: str = "o",
) -> Plot:
    """One line a series over the same `x`; None leaves a gap."""

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for (name, values), colour in zip(series.items(), COLOURS * len(series), strict=False):
            known = [float("nan") if value is None else value for value in values]
            axes.plot(x, known, marker=marker, markersize=4, color=colour, label=name)
        label(axes, across, up)
        axes.set_ylim(bottom=0)

    return Plot(title, draw, note)


def heat_map(
    title: str,
    columns: Sequence[str],
    rows: Sequence[str],
    shares: Sequence[Sequence[float | None]],
    texts: Sequence[Sequence[str]],
    *,
    across: str,
    up: str,
    note: str = "",
) -> Plot:
    """`shares[row][column]` from 0, red, to 1, green; None is left white. `texts` says the same without the colour."""

    def draw(figure: Figure) -> None:
        import numpy as np
        from matplotlib.colors import LinearSegmentedColormap

        axes = figure.add_subplot()
        values = np.array(
            [[np.nan if share is None else share for share in row] for row in shares], dtype=float
        )
        colours = LinearSegmentedColormap.from_list("recall", ["#fca5a5", "#fde68a", "#86efac"])
        axes.imshow(values, cmap=colours, vmin=0, vmax=1, aspect="auto")
        figure.subplots_adjust(left=0.13)
        for row, column in np.ndindex(values.shape):
            axes.text(column, row, texts[row][column], ha="center", va="center", fontsize=8)
        axes.set_xticks(range(len(columns)), columns)
        axes.set_yticks(range(len(rows)), rows)
        axes.grid(visible=False)
        axes.set_xlabel(across)
        axes.set_ylabel(up)

    return Plot(title, draw, note, height=1.1 + 0.3 * len(rows))


def in_time(axis: Axis) -> None:
    """Ticks of a scale in seconds, as times are written everywhere."""
    axis.set_major_formatter(lambda seconds, _: _time(seconds))
    axis.set_minor_formatter(lambda *_: "")


def _time(seconds: float) -> str:
    if seconds <= 0:
        return "0"
    return f"{seconds:g} s" if 1 <= seconds < 60 else format_duration(seconds)


def label(axes: Axes, across: str, up: str) -> None:
    """Names of both axes and a legend above them, out of the data's way."""
    if across:
        axes.set_xlabel(across)
    axes.set_ylabel(up)
    handles, _ = axes.get_legend_handles_labels()
    if handles:
        axes.legend(loc="lower right", bbox_to_anchor=(1, 0.98), ncols=len(handles), borderpad=0)
