"""Made records and runs, for the judges of reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvops.load import scenarios
from kvops.load.records import ClientSample, ErrorClass, RequestRecord, ServerSample
from kvops.load.reports.base import RunData
from kvops.load.runs import RunInfo


def answer(
    name: str,
    at: float,
    *,
    ttft: float | None = 0.1,
    itl: float = 0.02,
    tokens: int = 8,
    **more: Any,
) -> RequestRecord:
    """A right answer of `tokens` tokens, `itl` apart, unless `more` says otherwise."""
    gaps = (itl,) * (tokens - 1)
    last = None if ttft is None else ttft + sum(gaps)
    fields = {
        "run": "r", "scenario": "s", "name": name, "seq": round(at * 1000), "user": 0, "t_send": at, "ttft": ttft,
        "itl": gaps, "last": last, "e2e": last or 0.1, "prompt_tokens": 100, "cached_tokens": 0,
        "completion_tokens": tokens, "asked_input": 100, "status": 200, "expected": True,
    }  # fmt: skip
    return RequestRecord(**(fields | more))


def lost(name: str, at: float, error: ErrorClass, **more: Any) -> RequestRecord:
    """A request that was not answered as it should."""
    return answer(
        name,
        at,
        ttft=None,
        tokens=1,
        expected=False,
        error_class=error,
        status=None,
        error="made",
        **more,
    )


def refused(name: str, at: float) -> RequestRecord:
    """A refusal that said when to come back: as expected."""
    return answer(
        name, at, ttft=None, tokens=1, status=429, prompt_tokens=None, completion_tokens=None
    )


def run(
    scenario: str,
    records: list[RequestRecord],
    *,
    server: list[ServerSample] | None = None,
    client: list[ClientSample] | None = None,
    **given: Any,
) -> RunData:
    """A finished run of a scenario with its defaults, `given` ones but for `before` and `after` over them."""
    described = scenarios.find(scenario)
    seen = {name: given.pop(name) for name in ("before", "after", "status") if name in given}
    info = RunInfo(
        run="r", scenario=scenario, report=described.report, options=described.defaults() | given,
        users=described.users, seed=1, target="http://127.0.0.1:1", started_at=0.0,
        **({"status": "finished"} | seen),
    )  # fmt: skip
    return RunData(Path("/nowhere"), info, records, client or [], server or [])


def busy_client(seconds: int) -> list[ClientSample]:
    """A load generator whose core is full."""
    return [ClientSample(float(at), 1, 1, 0.99, 0.3) for at in range(seconds)]
