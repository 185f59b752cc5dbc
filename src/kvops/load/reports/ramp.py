"""One row a step of users. Tokens count in the step in which they arrived, whoever asked before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import RenderableType
from rich.table import Table

from kvops.load.ramp import step_name, steps
from kvops.load.records import RequestRecord
from kvops.load.reports.base import RunData, Verdict, failure_lines, verdict
from kvops.load.reports.cells import seconds
from kvops.load.statistics import LEAST_SAMPLES, Summary, saturation, summarize, tokens_between


class Step(msgspec.Struct, frozen=True):
    users: int
    summary: Summary
    output_tokens_per_second: float | None
    """Of all requests, over the seconds the step was held; None when it was not held to its end."""


def judge(data: RunData) -> Verdict:
    least = LEAST_SAMPLES[0.50]
    gaps = [
        f"{step_name(step.users)}: {step.summary.succeeded} answers, at least {least} are needed"
        for step in _steps(data)
        if step.summary.succeeded < least and not step.summary.failed
    ]
    busy = saturation(data.client)
    if busy is not None:
        gaps.append(busy)
    return verdict(failure_lines(data.records), gaps)


def facts(data: RunData) -> dict[str, Any]:
    return {"steps": [msgspec.to_builtins(step) for step in _steps(data)]}


def body(data: RunData) -> RenderableType:
    table = Table()
    for title in ("users", "ok", "failed", "TTFT p50", "TTFT p95", "p95+failed", "gap p50", "gap p95",
                  "per token", "tok/s"):  # fmt: skip
        table.add_column(title, justify="right")
    for step in _steps(data):
        total = step.summary
        table.add_row(
            str(step.users), str(total.succeeded), str(total.failed),
            seconds(total.ttft.p50, total.ttft), seconds(total.ttft.p95, total.ttft),
            seconds(total.ttft.p95_with_failures, total.ttft, failures=True),
            seconds(total.itl.p50, total.itl), seconds(total.itl.p95, total.itl), seconds(total.tpot.p50, total.tpot),
            "n/a" if step.output_tokens_per_second is None else f"{step.output_tokens_per_second:.1f}",
        )  # fmt: skip
    return table


def _steps(data: RunData) -> list[Step]:
    held: float = data.info.options["step_seconds"]
    return [_step(data.records, users, held) for users in steps(data.info.users)]


def _step(records: Sequence[RequestRecord], users: int, held: float) -> Step:
    own = [record for record in records if record.name == step_name(users)]
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
