"""One row a step of users. Tokens count in the step in which they arrived, whoever asked before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from rich.console import RenderableType

from kvops.load.ramp import step_name, steps
from kvops.load.records import RequestRecord
from kvops.load.reports.base import RunData, Verdict, failure_lines, verdict
from kvops.load.reports.cells import UNKNOWN, Columns, seconds
from kvops.load.reports.doubts import client_gaps
from kvops.load.statistics import LEAST_SAMPLES, Summary, summarize, tokens_between


class Step(msgspec.Struct, frozen=True):
    users: int
    summary: Summary
    output_tokens_per_second: float | None
    """Of all requests, over the seconds the step was held; None when it was not held to its end."""


def judge(data: RunData) -> Verdict:
    least = LEAST_SAMPLES[0.50]
    gaps = [
        f"{step_name(step.users)}: {step.summary.succeeded} answers of the {least} needed: raise --step-seconds"
        for step in _steps(data)
        if step.summary.succeeded < least and not step.summary.failed
    ]
    gaps += client_gaps(data)
    answered = sum(step.summary.succeeded for step in _steps(data))
    return verdict(
        failure_lines(data.records), gaps, (),
        [f"all {answered} requests were answered, {least} or more in each step; times are shown, and not judged"],
    )  # fmt: skip


def facts(data: RunData) -> dict[str, Any]:
    return {"steps": [msgspec.to_builtins(step) for step in _steps(data)]}


def body(data: RunData) -> RenderableType:
    """A column a measure; the p95 that counts failures as infinitely slow stands where it says something else."""
    found, columns = _steps(data), dict(COLUMNS)
    if not any(step.summary.failed for step in found):
        del columns["+failed"]
    table = Columns(list(columns), give_up=("gap p95", "+failed", "gap p50", "TTFT p95"))
    for step in found:
        table.add(*(cell(step) for cell in columns.values()))
    return table


def _throughput(step: Step) -> str:
    rate = step.output_tokens_per_second
    return UNKNOWN if rate is None else f"{rate:.1f}"


COLUMNS: dict[str, Callable[[Step], str]] = {
    "users": lambda step: str(step.users),
    "ok": lambda step: str(step.summary.succeeded),
    "failed": lambda step: str(step.summary.failed),
    "TTFT p50": lambda step: seconds(step.summary.ttft.p50, 0.50),
    "TTFT p95": lambda step: seconds(step.summary.ttft.p95, 0.95),
    "+failed": lambda step: seconds(step.summary.ttft.p95_with_failures, 0.95),
    "gap p50": lambda step: seconds(step.summary.itl.p50, 0.50),
    "gap p95": lambda step: seconds(step.summary.itl.p95, 0.95),
    "tok/s": _throughput,
}


def _steps(data: RunData) -> list[Step]:
    held: float = data.info.options["step_seconds"]
    return [_step(data.records, users, held) for users in steps(data.info.users)]


def _step(records: Sequence[RequestRecord], users: int, held: float) -> Step:
    names = {step_name(users), f"{users} users"}  # the latter in kept runs of before
    own = [record for record in records if record.name in names]
    return Step(users, summarize(own), _rate(records, own, held))


def _rate(
    records: Sequence[RequestRecord], own: Sequence[RequestRecord], held: float
) -> float | None:
    if not own:
        return None
    start = min(record.t_send for record in own)
    if max(record.t_send + record.e2e for record in records) < start + held:
        return None
    return tokens_between(records, start, start + held) / held
