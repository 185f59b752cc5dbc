"""Results and reports made by hand, and checks that do what a test says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from kvops.telemetry.targets import Target
from kvops.verify import runner
from kvops.verify.check import Check, Outcome, Parameters, Samples
from kvops.verify.context import Context
from kvops.verify.profile import Entry
from kvops.verify.result import CheckResult, Environment, Report, TargetFacts, concluded, exit_code
from kvops.verify.runner import Terms
from kvops.verify.selection import PlannedCheck
from kvops.verify.verdict import Verdict
from kvops.verify.waivers import Waiver

Body = Callable[[Context, Parameters], Awaitable[Outcome]]
WAIVER = Waiver(
    id="resp.short", reason="mended in the next | release", by="ops (uid 7)", at="2026-01-02T03:04:05+00:00"
)  # fmt: skip


def row(verdict: Verdict = "pass", id: str = "resp.short", **over: Any) -> CheckResult:
    fields: dict[str, Any] = {
        "title": "Short answers", "purpose": "It answers.", "severity": "required", "observed": "8 + 4 = 13",
        "expected": "sums", "unit": "", "n": 3, "took_seconds": 0.25, "parameters": {}, "evidence": {},
        "remedy": "" if verdict == "pass" else "mend the counter",
    }  # fmt: skip
    return CheckResult(id=id, verdict=verdict, **(fields | over))


def report(*rows: CheckResult, **over: Any) -> Report:
    verdict = over.get("verdict", concluded(rows))
    fields: dict[str, Any] = {
        "run_id": "20260102T030405-abcdef", "started_at": "2026-01-02T03:04:05.000+00:00",
        "finished_at": "2026-01-02T03:05:05.000+00:00", "kvops_version": "0", "profile": "smoke",
        "profile_hash": "0123456789ab", "not_run": (), "verdict": verdict, "exit_code": exit_code(verdict),
        "target": TargetFacts(url="http://127.0.0.1:1", name="n", engine="kvops", model="words"),
        "environment": Environment(host="here", cores=2),
    }  # fmt: skip
    return Report(checks=rows, **(fields | over))


def series(
    values: Sequence[float], *, lost: int = 0, unit: str = "seconds", direction: str = "lower"
) -> Samples:
    given = [*values, *[float("inf")] * lost]
    return Samples.of(given, unit=unit, direction=direction)  # type: ignore[arg-type]


def planned(name: str, run: Body, **entry: Any) -> PlannedCheck:
    made = {key: entry.pop(key) for key in ("area", "needs", "typical") if key in entry}
    check = Check(id=name, title=name, purpose="A test.", parameters=Parameters, run=run, **made)
    chosen = Entry.model_validate({"id": name} | entry)
    return PlannedCheck(check, chosen, Parameters.model_validate(chosen.parameters))


async def good(context: Context, parameters: Parameters) -> Outcome:
    return Outcome(verdict="pass", observed=1, expected=1)


@asynccontextmanager
async def listed(model: str = "words", engine: str = "kvops") -> AsyncIterator[str]:
    """URL of something that lists a model and does no more: all that a run asks of its own accord."""
    data = json.dumps({"data": [{"id": model, "owned_by": engine, "max_model_len": 512}]}).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + b"content-length: %d\r\n\r\n" % len(data) + data)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def run(*checks: PlannedCheck, terms: Terms = Terms(), engine: str = "kvops") -> Report:
    async def go() -> Report:
        async with listed(engine=engine) as url:
            return await runner.run(Target(name="n", url=url), None, "p", checks, terms=terms)

    return asyncio.run(go())
