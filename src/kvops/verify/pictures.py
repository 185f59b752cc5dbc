"""Plots of the load runs that a gate run made, drawn once at its end and kept beside its result."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from kvops import paths
from kvops.load import runs as load_runs
from kvops.verify import runs
from kvops.verify.keeping import ARTIFACTS
from kvops.verify.result import CheckResult, Kept, Report

MOST = 24
"""Plots of a gate run."""
EACH = 2
"""Plots of a load run: its scenario's own come first."""


def drawn(report: Report) -> Report:
    """`report` with the plots of each load run at the first check that names it; where one cannot be, it is named.

    Only of load runs in its own folder: what was resumed may come from elsewhere and name any.
    """
    own = runs.folder(report.run_id)
    seen: set[str] = set()
    checks: list[CheckResult] = []
    for check in report.checks:
        pictures: list[Kept] = []
        for one in check.artifacts:
            folder = runs.inside(own, one.path) if one.path and one.path not in seen else None
            if folder is None or not (folder / load_runs.RUN_FILE).is_file():
                continue
            seen.add(one.path)
            if len(seen) * EACH <= MOST:
                pictures += _kept(report.run_id, folder)
        checks.append(
            msgspec.structs.replace(check, artifacts=(*check.artifacts, *pictures))
            if pictures
            else check
        )
    return msgspec.structs.replace(report, checks=tuple(checks))


def _kept(run_id: str, load_run: Path) -> list[Kept]:
    """A plot that breaks takes no verdict, which is yet to be told."""
    try:
        return list(_drawn(run_id, load_run))
    except Exception as error:
        return [Kept(title=f"no plot of {load_run.name}: {type(error).__name__}: {error}", path="")]


def _drawn(run_id: str, load_run: Path) -> Iterator[Kept]:
    from kvops.load.reports import curves, summary
    from kvops.load.reports.base import plots_of, read
    from kvops.load.reports.plots import Plot, svg
    from kvops.load.reports.timeline import timeline
    from kvops.load.statistics.frame import Frame

    data = read(load_runs.load(load_run))
    frame = Frame(data.records)
    found = [
        *plots_of(summary.REPORTS[data.info.report], data),
        curves.recall_map(data),
        *timeline(data, frame, summary.analyse(data).warm_up),
        curves.latency_over_load(data, frame),
        curves.ttft_over_length(frame),
    ]
    users = data.info.users
    load = f"{data.info.scenario}, {users} user{'' if users == 1 else 's'}"
    plots = {one.title: one for one in reversed(found) if isinstance(one, Plot)}
    for index, plot in enumerate([*reversed(plots.values())][:EACH]):
        name = f"{ARTIFACTS}/{load_run.name}-{index}.svg"
        text = svg(plot)
        if "xmlns=" not in text[:500]:
            text = text.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
        paths.write_atomic(runs.folder(run_id) / name, text.encode())
        yield Kept(title=f"{load}: {plot.title}", path=name, plot=True)
