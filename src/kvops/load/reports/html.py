"""A load run as one HTML file that needs nothing else: verdict, what it rests on, tables, plots."""

from __future__ import annotations

import io
import time
from collections import Counter
from collections.abc import Sequence

import msgspec
from markupsafe import Markup
from rich.console import Console, RenderableType
from rich.terminal_theme import TerminalTheme

from kvops.load.records import RequestRecord
from kvops.load.reports import curves, plots, words
from kvops.load.reports.analysis import Analysis, basis
from kvops.load.reports.base import RunData
from kvops.load.reports.plots import Missing, Plot
from kvops.load.reports.timeline import timeline
from kvops.load.statistics.frame import Frame
from kvops.pages import page
from kvops.units import format_whole

FILE = "report.html"
SIGNS = {"pass": "✓", "fail": "✗", "inconclusive": "?"}
TABLE_WIDTH = 110
"""Columns of a scenario's own table on the page."""
_THEME = TerminalTheme(
    (255, 255, 255), (28, 33, 39),
    [(28, 33, 39), (207, 34, 46), (26, 127, 55), (154, 103, 0), (9, 105, 218), (130, 80, 223), (27, 124, 131),
     (91, 101, 112)],
)  # fmt: skip
"""On the page's panel, light or dark, these can be read."""


class Drawn(msgspec.Struct, frozen=True):
    title: str
    svg: Markup
    note: str


def render(
    data: RunData, found: Analysis, body: RenderableType, own: list[Plot | Missing]
) -> bytes:
    """`body` and `own` are the scenario's table and plots."""
    pictures = _pictures(data, found, own)
    text = page(
        "kvops.load.reports",
        "run.html.j2",
        info=data.info,
        found=found,
        basis=basis(found),
        sign=SIGNS[found.verdict.outcome],
        figures=words.figures(found),
        latencies=words.latencies(found),
        body=_preformatted(body),
        errors=_errors(data.records),
        plots=[_drawn(one) for one in pictures if isinstance(one, Plot)],
        missing=[one for one in pictures if isinstance(one, Missing)],
        settings=words.settings(data.info),
        node=words.node(data.info),
        started=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(data.info.started_at)),
        took=words.took(data.info),
        load=words.load(data.info),
        whole=format_whole,
    )
    return text.encode()


def _pictures(data: RunData, found: Analysis, own: list[Plot | Missing]) -> list[Plot | Missing]:
    """The scenario's own first; of two with one title its own."""
    frame = Frame(data.records)
    shared = [
        *timeline(data, frame, found.warm_up),
        curves.latency_over_load(data, frame),
        curves.ttft_over_length(frame),
        curves.recall_map(data),
        curves.distribution(frame),
    ]
    taken = {one.title for one in own}
    return [*own, *(one for one in shared if one.title not in taken)]


def _drawn(plot: Plot) -> Drawn:
    return Drawn(plot.title, Markup(plots.svg(plot)), plot.note)


def _preformatted(body: RenderableType) -> Markup:
    """The scenario's own table as the terminal shows it; empty where it has none. Rich escapes what it writes."""
    console = Console(
        file=io.StringIO(), record=True, width=TABLE_WIDTH, force_terminal=True, color_system="standard",
        legacy_windows=False,
    )  # fmt: skip
    console.print(body)
    text = console.export_html(theme=_THEME, inline_styles=True, code_format="{code}", clear=True)
    return Markup(text.strip("\n") if text.strip() else "")


def _errors(records: Sequence[RequestRecord]) -> list[tuple[str, int, str]]:
    """Class, count and the first message of each, the most frequent first."""
    failed = [record for record in records if record.failed]
    first = {str(record.error_class): record.error or "" for record in reversed(failed)}
    counts = Counter(str(record.error_class) for record in failed)
    return [(name, count, first[name]) for name, count in counts.most_common()]
