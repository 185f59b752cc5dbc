"""The reports that stay in a run's folder beside its records."""

from __future__ import annotations

import json

from kvops import paths
from kvops.load.reports import html, summary
from kvops.load.reports.analysis import Analysis
from kvops.load.reports.base import RunData, plots_of

HTML_FILE = "report.html"
JSON_FILE = "report.json"


def is_missing(data: RunData) -> bool:
    """Whether the run is over and nobody has kept what it found."""
    return data.info.status != "running" and not (data.folder / JSON_FILE).exists()


def write(data: RunData, found: Analysis) -> None:
    """Raises OSError."""
    told = json.dumps(summary.told(data, found), indent=2, allow_nan=False)
    paths.write_atomic(data.folder / JSON_FILE, told.encode() + b"\n")
    paths.write_atomic(data.folder / HTML_FILE, page(data, found))


def page(data: RunData, found: Analysis) -> bytes:
    report = summary.REPORTS[data.info.report]
    if not data.records:
        return html.render(data, found, "", [])
    return html.render(data, found, report.body(data), plots_of(report, data))
