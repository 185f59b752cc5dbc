"""Does the node keep its deadlines: in the queue, and for a whole request?"""

from __future__ import annotations

import math

from pydantic import Field

from kvops.units import format_duration
from kvops.verify.check import Check, Outcome, Parameters, inconclusive, require, skip
from kvops.verify.checks.claims import held_body
from kvops.verify.context import Context
from kvops.verify.control import claims
from kvops.verify.crowd import Guest, gathered, until

MOST_AHEAD = 128
"""Requests that wait in front of the one that is looked at, so that a fast model does not get to it."""


class DeadlineParameters(Parameters):
    queue_timeout: float | None = Field(default=None, gt=0)
    request_timeout: float | None = Field(default=None, gt=0)
    """Seconds: the node's deadlines, where it does not tell them."""
    running: int | None = Field(default=None, ge=1)
    """Requests that run at once, where the node does not tell."""
    longest: float = Field(default=35.0, gt=0)
    """Seconds: a deadline beyond is not waited for."""
    slack: float = Field(default=5.0, gt=0)
    """Seconds after a deadline by which the request must have ended."""


async def deadline(context: Context, parameters: DeadlineParameters) -> Outcome:
    told = (await claims(context)).runtime
    whole = parameters.request_timeout or told.request_timeout
    queue = parameters.queue_timeout or told.queue_timeout
    running = parameters.running or told.max_running
    room = MOST_AHEAD if told.max_queue is None else told.max_queue
    near = [s for s in (whole, queue) if s is not None and s <= parameters.longest]
    if not near:
        _none_to_try(whole, queue, parameters.longest)
    seen = {}
    if whole is not None and whole <= parameters.longest:
        guest = await _overstay(context, whole + parameters.slack)
        seen["request_timeout"] = _judged(
            context, guest, "request_timeout", whole, parameters.slack
        )
    if queue is not None and queue <= parameters.longest and running is not None and room:
        ahead = min(running, room - 1, MOST_AHEAD)
        guest = await _wait_in_vain(context, running, ahead, queue + parameters.slack)
        seen["queue_timeout"] = _judged(context, guest, "queue_timeout", queue, parameters.slack)
    if not seen:
        skip(
            "the node lets none wait"
            if not room
            else "how many requests run at once is not known, so none can be made to wait",
            remedy="" if not room else "name the control plane, or set running in the profile",
        )
    return Outcome(
        verdict="pass",
        observed=_observed(seen, {"request_timeout": whole, "queue_timeout": queue}),
        expected=f"ended at its deadline, at most {parameters.slack:g} s later",
        unit="seconds",
        n=len(seen),
        evidence={"seconds": seen, "request_timeout": whole, "queue_timeout": queue},
    )


def _observed(seen: dict[str, float], told: dict[str, float | None]) -> str:
    """What was waited for, and which deadline was not."""
    parts = [f"{name} after {format_duration(took)}" for name, took in seen.items()]
    parts += [
        f"{name} of {format_duration(seconds)} not waited for"
        for name, seconds in told.items()
        if seconds is not None and name not in seen
    ]
    return ", ".join(parts)


def _none_to_try(whole: float | None, queue: float | None, longest: float) -> None:
    if whole is None and queue is None:
        skip(
            "the node's deadlines are not known",
            remedy="name the control plane, or set queue_timeout and request_timeout in the profile",
        )
    known = [
        f"{name} {format_duration(seconds)}"
        for name, seconds in (("request_timeout", whole), ("queue_timeout", queue))
        if seconds is not None
    ]
    nearest = min(seconds for seconds in (whole, queue) if seconds is not None)
    skip(
        f"{' and '.join(known)}: longer than the {format_duration(longest)} that the profile waits",
        remedy=f"in a profile of your own: {{id: claims.deadline, parameters: {{longest: {math.ceil(nearest)}}}, "
        f"timeout: {math.ceil(nearest) + 60}s}}; or try it on a node with short deadlines",
    )


async def _overstay(context: Context, patience: float) -> Guest:
    """One request that cannot be done in its time."""
    async with gathered(context.api) as crowd:
        (guest,) = crowd.invite(1, held_body(context))
        await until(lambda: not guest.in_flight, patience)
    return guest


async def _wait_in_vain(context: Context, running: int, ahead: int, patience: float) -> Guest:
    """One request that waits behind `running` others, and behind `ahead` more that take the places of those."""
    body = held_body(context)
    async with gathered(context.api) as crowd:
        crowd.invite(running, body)
        await until(lambda: len(crowd.those("sent")) == 0, patience)
        crowd.invite(ahead, body)
        (guest,) = crowd.invite(1, body)
        await until(lambda: guest.state != "sent", patience)
        if guest.state in ("streaming", "ended"):
            inconclusive(
                f"a place came free before the deadline, {running} requests were held and {ahead} waited first",
                expected="a request that waits for its whole deadline",
                remedy="the model is too fast, or somebody else uses the node: run the gate on an idle node",
            )
    return guest


def _judged(context: Context, guest: Guest, code: str, seconds: float, slack: float) -> float:
    """Seconds after which the request ended by its deadline. Raises a Finding otherwise."""
    expected = f"{code} within {format_duration(seconds + slack)}"
    require(
        guest.seconds is not None,
        observed=f"still in flight {format_duration(slack)} after its deadline",
        expected=expected,
        remedy="requests can hold their place for ever: report the defect",
    )
    assert guest.seconds is not None
    if guest.state == "ended":
        inconclusive(
            f"done after {format_duration(guest.seconds)}, before its deadline",
            expected=expected,
            remedy="the model is too fast for this deadline: try it with a shorter one",
        )
    named = guest.error == code if context.is_kvops else guest.state in ("refused", "failed")
    require(
        named and guest.seconds >= 0.9 * seconds,
        observed=f"ended with {guest.error} after {format_duration(guest.seconds)}",
        expected=expected,
        remedy="the deadline does not do what it says: see kvops node logs",
    )
    return round(guest.seconds, 3)


DEADLINE = Check(
    id="claims.deadline",
    title="Deadlines kept",
    purpose="A request that cannot be done, or started, in its time ends with a timeout at its deadline.",
    parameters=DeadlineParameters,
    run=deadline,
    area="V5",
    typical=32.0,
    needs=("idle node",),
)
