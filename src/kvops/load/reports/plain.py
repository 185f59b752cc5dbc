"""The report of a scenario without one of its own: every request must be answered as expected."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.text import Text

from kvops.load.reports.base import RunData, Verdict, failure_lines, verdict


def judge(data: RunData) -> Verdict:
    return verdict(failure_lines(data.records), [])


def facts(data: RunData) -> dict[str, Any]:
    return {}


def body(data: RunData) -> RenderableType:
    return Text("")
