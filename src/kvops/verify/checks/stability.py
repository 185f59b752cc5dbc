"""Does the node stay as fast under a load that goes on, and alive whatever is thrown at it?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from kvops.load.records import RequestRecord
from kvops.load.reports.base import RunData
from kvops.load.statistics import Trend, after_warm_up, tpot, trend, warm_up
from kvops.units import format_duration, format_ratio
from kvops.verify.check import Check, Outcome, Parameters, Samples, fail, inconclusive
from kvops.verify.checks.injected import judge_injection
from kvops.verify.context import Context
from kvops.verify.driven import artifact, drive, excused, kept
from kvops.verify.restarts import engine_restarts
from kvops.verify.soaked import SoakParameters, soak, soaked

WINDOWS = 20
FIRST, PACE = "first token", "time a token"
AGAIN = 0.25
"""Share of the drift that is allowed which, in a second soak, confirms that of the first."""


class DriftParameters(SoakParameters):
    drift: float = Field(default=0.5, gt=0)
    """Share by which the median first token or pace may surely grow over the soak."""
    floor: float = Field(default=0.02, ge=0)
    """Seconds of the first token that are never a drift; of the pace a tenth."""
    max_errors: float = Field(default=0.0, ge=0, le=1)


async def steady(context: Context, parameters: DriftParameters) -> Outcome:
    restarts = await engine_restarts(context)
    data = (await soaked(context, parameters)).data
    require_answers(data, parameters)
    drifts = drifting(data.records, parameters, parameters.drift)
    noisy = bool(drifts)
    if noisy:
        # A machine that others begin to use slows down once; a node that wears out goes on with it, though from a
        # slower start its growth is a smaller share.
        data = (await soak(context, parameters)).data
        again = drifting(data.records, parameters, AGAIN * parameters.drift)
        drifts = {
            name: f"{drifts[name]}; once more: {text}"
            for name, text in again.items()
            if name in drifts
        }
    now = await engine_restarts(context)
    if drifts or now != restarts:
        died = [] if now == restarts else [f"engine restarts went from {restarts} to {now}"]
        if drifts and not died:
            excused(data, "; ".join(drifts.values()), "load.soak")
        fail(
            observed="; ".join([*drifts.values(), *died]),
            expected=f"no growth over {format_ratio(parameters.drift)}, no restart",
            remedy="something piles up: see memory and KV over the time of the run, `kvops load show` of its folder, "
            "and kvops node logs",
            n=len(data.records),
            **kept(data),
            **evidence_of(data.records, parameters),
        )
    return judge_steady(data, noisy, parameters)


def require_answers(data: RunData, parameters: DriftParameters) -> None:
    asked = [one for one in data.records if not one.cancelled]
    failed = [one for one in asked if one.failed]
    if not asked:
        inconclusive(
            "no request came to an end",
            expected="answers",
            remedy="see load.concurrency",
            n=0,
            **kept(data),
        )
    if len(failed) > parameters.max_errors * len(asked):
        classes = sorted({str(one.error_class) for one in failed})
        fail(
            observed=f"{len(failed)} of {len(asked)} requests failed: {', '.join(classes)}",
            expected=f"at most {format_ratio(parameters.max_errors)}",
            remedy="see kvops node logs for the requests' errors",
            n=len(asked),
            **kept(data),
        )


def drifting(
    records: Sequence[RequestRecord], parameters: DriftParameters, allowed: float
) -> dict[str, str]:
    """First-token time and pace, where either surely grew by more than the share that is allowed."""
    floors = {FIRST: parameters.floor, PACE: parameters.floor / 10}
    found = {}
    for name, one in trends_of(records).items():
        surely = one.surest_change
        if surely is not None and surely > allowed and one.end - one.start > floors[name]:
            found[name] = f"{name} grew {ends(one)}, surely by {format_ratio(surely)}"
    return found


def trends_of(records: Sequence[RequestRecord]) -> dict[str, Trend]:
    """Of first-token time and pace, the warm-up left out; what has too few answers is missing."""
    typical = after_warm_up(records, warm_up(records))
    good = [one for one in typical if one.expected and one.ttft is not None]
    points = {
        FIRST: [(one.t_send, one.ttft or 0.0) for one in good],
        PACE: [(one.t_send, pace) for one in good if (pace := tpot(one)) is not None],
    }
    found = {
        name: trend([at for at, _ in some], [value for _, value in some], points=WINDOWS)
        for name, some in points.items()
    }
    return {name: one for name, one in found.items() if one is not None}


def ends(one: Trend) -> str:
    """`from 270 ms to 670 ms (+148 %)`: medians of the first and of the last quarter."""
    told = f"from {format_duration(one.start)} to {format_duration(one.end)}"
    change = one.change
    if change is None:
        return told
    return f"{told} ({'+' if change >= 0 else '-'}{format_ratio(abs(change))})"


def evidence_of(records: Sequence[RequestRecord], parameters: DriftParameters) -> dict[str, Any]:
    """What the observed value says, in seconds."""
    return {
        "drift": {
            name: {
                "first_quarter_median": one.start,
                "last_quarter_median": one.end,
                "change": one.change,
                "surely": one.surest_change,
                "allowed": parameters.drift,
                "span": one.span,
            }
            for name, one in trends_of(records).items()
        }
    }


def judge_steady(data: RunData, noisy: bool, parameters: DriftParameters) -> Outcome:
    """Of a soak that nothing speaks against; `noisy`: an earlier one drifted, this one did not."""
    good = [one for one in data.records if one.expected and one.ttft is not None]
    found = trends_of(data.records)
    if FIRST not in found:
        inconclusive(
            f"{len(good)} answers are too few for a trend",
            expected="answers over the whole soak",
            remedy="raise seconds in the profile",
            n=len(good),
            **kept(data),
        )
    told = [f"{name} {ends(one)}{_fell(one, parameters)}" for name, one in found.items()]
    return Outcome(
        verdict="pass",
        observed=f"{', '.join(told)} in {format_duration(found[FIRST].span)} and {len(data.records)} requests; "
        "none failed",
        expected=f"no growth over {format_ratio(parameters.drift)}, no failure",
        n=len(data.records),
        evidence=kept(data) | evidence_of(data.records, parameters) | {"noisy": noisy},
        samples={
            "ttft.soak": Samples.of(
                (r.ttft or 0.0 for r in good), unit="seconds", direction="lower"
            )
        },
        artifacts=(artifact(data),),
    )


def _fell(one: Trend, parameters: DriftParameters) -> str:
    """A node that gets faster is not steady either, though it fails nobody."""
    surely = one.surest_change
    if surely is None or surely >= 0 or -(one.change or 0.0) <= parameters.drift:
        return ""
    return ": no growth, but not steady, it was slow at first"


class InjectionParameters(Parameters):
    max_prompt_tokens: int = Field(default=4096, ge=16)
    """Of prompts that are within the limit and must be computed; longer ones are left to resp.near_limit."""


async def injection(context: Context, parameters: InjectionParameters) -> Outcome:
    restarts = await engine_restarts(context)
    options = {"max_prompt_tokens": parameters.max_prompt_tokens}
    runs = [
        await drive(context, "oversize_injection", users=1, duration=None, options=options),
        await drive(context, "malformed_input", users=1, duration=None),
    ]
    return judge_injection(runs, restarts, await engine_restarts(context), ours=context.is_kvops)


SOAK = Check(
    id="load.soak",
    title="Steady under load",
    purpose="Under a load that goes on neither first tokens nor pace get slower, and no request fails.",
    parameters=DriftParameters,
    run=steady,
    area="V10",
    typical=50.0,
    needs=("idle node", "load"),
)
INJECTION = Check(
    id="stability.injection",
    title="Survives injections",
    purpose="Prompts far too long and malformed requests are refused rightly, and the node answers on as before.",
    parameters=InjectionParameters,
    run=injection,
    area="V10",
    typical=20.0,
    needs=("load",),
)
