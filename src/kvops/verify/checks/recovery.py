"""Is the node its old self again, and soon, after a burst far over its capacity?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import msgspec
from pydantic import Field

from kvops.load.records import ErrorClass, RequestRecord
from kvops.load.reports import recovery
from kvops.load.reports.base import RunData
from kvops.load.statistics import client_health
from kvops.telemetry.snapshot import Known
from kvops.units import format_duration, format_ratio
from kvops.verify.check import Check, Outcome, Parameters, Samples, fail, inconclusive
from kvops.verify.context import Context
from kvops.verify.driven import artifact, drive, kept, trusted
from kvops.verify.judge import BUSY

SCENARIO = "burst_and_recover"
SHORTEST = 0.5
"""Seconds of a phase."""
SETTLED = 2 * recovery.RUN
"""Answers after the burst of which the last few must be as before; twice as many as in the baseline, up to MOST."""
MOST = 40


class RecoversParameters(Parameters):
    users: int | None = Field(default=None, ge=2, le=10_000)
    """In the burst. Default: half as many again as the node runs and lets wait, up to `max_users`."""
    max_users: int = Field(default=160, ge=2, le=10_000)
    baseline: float = Field(default=2.0, ge=SHORTEST)
    """Seconds of one user alone before the burst."""
    burst: float = Field(default=2.0, ge=SHORTEST)
    """Seconds for which the crowd asks."""
    within: float = Field(default=8.0, gt=0)
    """Seconds after the burst until first tokens and throughput must be back."""
    tolerance: float = Field(default=2.0, gt=1)
    """Times the first token of before."""
    throughput: float = Field(default=0.6, gt=0, le=1)
    """Share of the answers a second of before."""
    prompt_tokens: int = Field(default=48, ge=16)
    max_tokens: int = Field(default=8, ge=2)


async def recovers(context: Context, parameters: RecoversParameters) -> Outcome:
    users = await _crowd(context, parameters)
    data = trusted(await _burst(context, parameters, users))
    if recovery.judge(data).outcome == "fail":
        # Once more, against what the node was before the first: it may have been slow in between for other reasons.
        before = [one for one in data.records if one.name == recovery.BASELINE]
        hurried = parameters.model_copy(update={"baseline": SHORTEST})
        again = trusted(await _burst(context, hurried, users, before))
        data = with_baseline(again, before)
    return judge(data, parameters)


def with_baseline(data: RunData, before: Sequence[RequestRecord]) -> RunData:
    """The run, judged by the baseline of an earlier one."""
    return msgspec.structs.replace(data, records=_after(data.records, before))


def _after(
    records: Sequence[RequestRecord], before: Sequence[RequestRecord]
) -> list[RequestRecord]:
    if not before:
        return list(records)
    return [*before, *(one for one in records if one.name != recovery.BASELINE)]


async def _crowd(context: Context, parameters: RecoversParameters) -> int:
    if parameters.users is not None:
        return parameters.users
    if context.node is not None:
        queue = (await context.node.snapshot()).queue
        if isinstance(queue, Known):
            capacity = queue.value.max_running + queue.value.max_waiting
            return min(parameters.max_users, max(8, capacity * 3 // 2))
    return parameters.max_users


async def _burst(
    context: Context,
    parameters: RecoversParameters,
    users: int,
    before: Sequence[RequestRecord] = (),
) -> RunData:
    """Ends when the node is as it was in the baseline, that of an earlier run where one is given."""
    p = parameters
    options = {
        "base_users": 1,
        "baseline_seconds": p.baseline,
        "burst_seconds": p.burst,
        "recovery_seconds": p.within + 5,
        "recover_within": p.within,
        "tolerance": p.tolerance,
        "min_throughput": p.throughput,
        "prompt_tokens": str(p.prompt_tokens),
        "max_tokens": str(p.max_tokens),
    }
    data = await drive(
        context,
        SCENARIO,
        users=users,
        duration=None,
        options=options,
        enough=lambda records: is_back(_after(records, before), p),
    )
    return data if context.is_kvops else without_promise(data)


def without_promise(data: RunData) -> RunData:
    """Of an engine that never promised Retry-After: refusals without it are right ones, see claims.retry_after."""
    return msgspec.structs.replace(data, records=[_excused(one) for one in data.records])


def _excused(record: RequestRecord) -> RequestRecord:
    if record.status in BUSY and record.error_class is ErrorClass.WRONG_STATUS:
        return msgspec.structs.replace(record, expected=True, error_class=None, error=None)
    return record


def is_back(records: Sequence[RequestRecord], parameters: RecoversParameters) -> bool:
    """The last answers after the burst come as soon, and are as soon over, as those before it."""
    before, after = (
        [one for one in records if one.name == phase and one.expected and one.ttft is not None]
        for phase in (recovery.BASELINE, recovery.RECOVERY)
    )
    if len(before) < recovery.RUN or len(after) < max(SETTLED, min(2 * len(before), MOST)):
        return False
    after = sorted(after, key=lambda one: one.t_send)[-recovery.RUN :]
    first, usual = (median(one.ttft or 0.0 for one in some) for some in (after, before))
    whole, usually = (median(one.e2e for one in some) for some in (after, before))
    return first <= parameters.tolerance * usual and whole * parameters.throughput <= usually


def judge(data: RunData, parameters: RecoversParameters) -> Outcome:
    found, verdict = recovery.facts(data), recovery.judge(data)
    phases = {one["name"]: one for one in found["phases"]}
    n = len(data.records)
    evidence = kept(data) | found
    expected = (
        f"first tokens within {parameters.tolerance:g} × and {format_ratio(parameters.throughput)} of the "
        f"throughput of before, {format_duration(parameters.within)} after"
    )
    if verdict.outcome == "fail":
        fail(
            observed="; ".join(verdict.reasons[:3]),
            expected=expected,
            remedy="an overload leaves the node slow: see queue and KV over the time of the run, and whether waiting "
            "work of clients that have gone is dropped (runtime.queue_timeout, disconnect.frees)",
            n=n,
            **evidence,
        )
    if verdict.outcome == "inconclusive":
        inconclusive(
            "; ".join(_unoptioned(reason) for reason in verdict.reasons),
            expected=expected,
            remedy=_next_step(data, parameters, found["overloaded"]),
            n=n,
            **evidence,
        )
    burst, back = phases[recovery.BURST], found["recovered_after"]
    after = [one for one in data.records if one.name == recovery.RECOVERY and one.expected]
    return Outcome(
        verdict="pass",
        observed=f"back {format_duration(back)} after a burst of {data.info.users} users ({burst['answered']} "
        f"answered, {burst['refused']} refused): {_rates(phases, found['throughput_share'])}",
        expected=expected,
        unit="seconds",
        n=n,
        evidence=evidence,
        samples={
            "ttft.recovered": Samples.of(
                (one.ttft for one in after if one.ttft is not None),
                unit="seconds",
                direction="lower",
            )
        },
        artifacts=(artifact(data),),
    )


def _rates(phases: Mapping[str, Mapping[str, Any]], share: float) -> str:
    """`1.31 → 1.58 answers/s (n 12 and 14), 120 %`, as the phases of the evidence have them."""
    before, after = phases[recovery.BASELINE], phases[recovery.SETTLED]
    return (
        f"{before['per_second']:.2f} answers/s before, {after['per_second']:.2f} from then on "
        f"(n {before['answered']} and {after['answered']}), {format_ratio(share)}"
    )


def _unoptioned(reason: str) -> str:
    """Without the options of a load run, which are not those of a profile."""
    return reason.split(": raise --")[0]


def _next_step(data: RunData, parameters: RecoversParameters, overloaded: bool) -> str:
    if client_health(data.client, data.records).crowd is not None:
        return "stop what else runs there, and let the check run again: --only load.recovers"
    if not overloaded:
        return (
            "the burst was too small: in a profile of your own "
            f"{{id: load.recovers, parameters: {{users: {2 * data.info.users}, burst: {2 * parameters.burst:g}}}}}"
        )
    return (
        "too few answers: in a profile of your own "
        f"{{id: load.recovers, parameters: {{baseline: {4 * parameters.baseline:g}}}}}, on an idle machine"
    )


RECOVERS = Check(
    id="load.recovers",
    title="Recovers from overload",
    purpose="After a burst far over capacity first tokens and throughput come back to what they were.",
    parameters=RecoversParameters,
    run=recovers,
    area="V5",
    typical=25.0,
    needs=("idle node", "load"),
)
