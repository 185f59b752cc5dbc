"""Verdicts, and how those of single checks make that of a run. No data is never a pass."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

Verdict = Literal["pass", "fail", "warn", "skip", "inconclusive", "error"]
"""`error`: the check itself broke. `skip`: it cannot be seen on this node. `inconclusive`: seen too little."""
Severity = Literal["required", "advisory"]
RunVerdict = Literal["pass", "warn", "fail", "inconclusive", "unreachable", "interrupted"]

EXIT_CODES: dict[RunVerdict, int] = {
    "pass": 0,
    "warn": 0,
    "fail": 1,
    "inconclusive": 3,
    "unreachable": 4,
    "interrupted": 130,
}


def overall(verdicts: Iterable[tuple[Severity, Verdict]]) -> RunVerdict:
    """A failed required check fails the run; one that broke or saw too little leaves it open.

    So does a run in which every check was skipped. An advisory check that did not pass is a warning.
    """
    seen = list(verdicts)
    required = {verdict for severity, verdict in seen if severity == "required"}
    everything = {verdict for _, verdict in seen}
    if "fail" in required:
        return "fail"
    if required & {"inconclusive", "error"} or everything <= {"skip"}:
        return "inconclusive"
    return "pass" if everything <= {"pass", "skip"} else "warn"
