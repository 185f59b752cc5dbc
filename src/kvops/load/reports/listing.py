"""The runs that are kept, one line each, also those that cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from kvops.errors import LoadRunError
from kvops.load import runs
from kvops.load.reports.cells import UNKNOWN
from kvops.load.reports.files import JSON_FILE
from kvops.printable import printable


class _Verdict(msgspec.Struct):
    outcome: str


class _Report(msgspec.Struct):
    verdict: _Verdict


class Line(msgspec.Struct, frozen=True):
    run: str
    info: runs.RunInfo | None
    """None: its run.json cannot be read."""
    outcome: str | None
    """None: nobody has judged it yet."""

    def as_json(self) -> dict[str, Any]:
        told = None if self.info is None else self.info
        return {
            "run": self.run,
            "scenario": told and told.scenario,
            "status": "unreadable" if told is None else told.status,
            "started_at": told and told.started_at,
            "outcome": self.outcome,
        }

    def cells(self) -> list[str]:
        """Of the COLUMNS."""
        if self.info is None:
            return [printable(self.run), UNKNOWN, "unreadable", UNKNOWN, UNKNOWN]
        info = self.info
        model, verdict = info.model or UNKNOWN, self.outcome or "not judged"
        return list(map(printable, (self.run, verdict, info.status, model, info.target)))


COLUMNS = ["run", "verdict", "status", "model", "node"]
EXPENDABLE = ["node", "model", "status"]


def kept() -> list[Line]:
    """The latest last."""
    return [_line(folder) for folder in runs.folders()]


def _line(folder: Path) -> Line:
    try:
        return Line(folder.name, runs.load(folder).info, _outcome(folder))
    except LoadRunError:
        return Line(folder.name, None, None)


def _outcome(folder: Path) -> str | None:
    try:
        return msgspec.json.decode((folder / JSON_FILE).read_bytes(), type=_Report).verdict.outcome
    except (OSError, msgspec.DecodeError, RecursionError):
        return None
