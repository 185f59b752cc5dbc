"""A gate run as one HTML file that needs nothing else: verdict, what to do, checks, plots, evidence."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import msgspec

from kvops import paths
from kvops.pages import page
from kvops.units import format_whole
from kvops.verify import runs, words
from kvops.verify.check import Samples
from kvops.verify.result import Report

SIGNS = {
    "pass": "✓",
    "warn": "!",
    "fail": "✗",
    "skip": "–",
    "inconclusive": "?",
    "error": "‼",
    "unreachable": "✗",
    "interrupted": "?",
}
_ORDER = ("fail", "error", "inconclusive", "warn", "skip", "pass")
MAX_PLOTS = 100
MAX_PLOT = 8 * 2**20
"""Bytes of one."""


def render(report: Report, folder: Path | None = None) -> bytes:
    """`folder`: the run's, where its plots are; a plot that is gone is left out."""
    text = page(
        "kvops.verify",
        "report.html.j2",
        report=report,
        words=words,
        signs=SIGNS,
        to_do=_to_do(report),
        plots=_plots(report, folder),
        notes=words.baseline(report) + words.left_out(report),
        kept_facts=_facts(report),
        moment=_moment,
        series_words=_series,
        as_json=_as_json,
    )
    return "\n".join(map(words.printable, text.split("\n"))).encode()


def _to_do(report: Report) -> list[Any]:
    """What did not pass and has a next step, the gravest first."""
    found = [check for check in report.checks if check.waived or check.verdict != "pass"]
    return sorted(
        found,
        key=lambda c: (c.waived is not None, c.severity == "advisory", _ORDER.index(c.verdict)),
    )


def _plots(report: Report, folder: Path | None) -> list[dict[str, str]]:
    """Each as a data URL: an image runs no script, whatever is in it."""
    named = {
        kept.path: {"title": words.printable(kept.title), "check": check.id}
        for check in report.checks
        for kept in check.artifacts
        if kept.plot and kept.path
    }
    found: list[dict[str, str]] = []
    for path, said in named.items():
        source = _source(folder, path) if folder is not None and len(found) < MAX_PLOTS else ""
        if source:
            found.append(said | {"source": source})
    return found


def _source(folder: Path, path: str) -> str:
    """Empty for what is gone, too large, or not in the run's own folder: the result may come from elsewhere."""
    file = runs.inside(folder, path)
    try:
        if file is None:
            return ""
        with paths.open_regular(file) as opened:
            data = opened.read(MAX_PLOT + 1)
    except OSError:
        return ""
    return (
        f"data:image/svg+xml;base64,{base64.b64encode(data).decode()}"
        if len(data) <= MAX_PLOT
        else ""
    )


def _facts(report: Report) -> str:
    target = report.target
    facts = {
        "revision": target.revision,
        "KV cache": target.kv_dtype,
        "configuration": target.config_hash and target.config_hash[:12],
        "GPU": ", ".join(target.gpus),
    }
    return " · ".join(f"{name} {words.printable(said)}" for name, said in facts.items() if said)


def _moment(text: str) -> str:
    return f"{words.printable(text[:19]).replace('T', ' ')} UTC"


def _series(samples: Samples) -> str:
    """Count and range; no percentile, since there may be too few for one."""
    count = f"{format_whole(len(samples.values))} values"
    if samples.lost:
        count += f", {format_whole(samples.lost)} failed"
    if not samples.values:
        return count
    low, high = (words.value(v, samples.unit) for v in (min(samples.values), max(samples.values)))
    return f"{count}, {low} to {high}; {samples.direction} is better"


def _as_json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
