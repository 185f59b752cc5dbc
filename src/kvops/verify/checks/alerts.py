"""Does an alert fire, leave the node, and arrive? Shown by a drill, at the node's channels and at a sink of our own."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx
import msgspec
from pydantic import Field

from kvops.alerts.sink import Sink, open_sink
from kvops.config.load import is_loopback
from kvops.units import format_duration
from kvops.verify.api import Reply
from kvops.verify.check import Check, Outcome, Parameters, fail, inconclusive, require, skip, warn
from kvops.verify.context import Context
from kvops.verify.control import control_plane
from kvops.verify.judge import status_and_code

EXPECTED = "the drill's message at every channel and at the gate's own sink"
SINK = "drill-sink"
"""As a node names the receiver that a drill brings along."""
ADD_CHANNEL = "add one under alerts.channels: as it is nobody is told, whatever happens"

PROVE = (
    "look whether the message of the nonce in the evidence is there, or run the gate on the node's machine, where it "
    "has a receiver of its own"
)


class DrillParameters(Parameters):
    within: float = Field(default=20.0, ge=1, le=120)
    """Seconds from asking for the drill to its message at the last channel."""
    without_channel: Literal["warn", "fail"] = "warn"
    """What a node is that has no channel: its alerts are right and reach nobody."""
    own_sink: bool = True
    """Have the drill tell a receiver of the gate, too. Off where the control plane is reached by a tunnel: then a
    delivery is the node's own word, and a remark."""


class Row(msgspec.Struct, frozen=True):
    channel: str
    delivered: bool
    seconds: float | None = None
    error: str | None = None


class Drill(msgspec.Struct, frozen=True):
    """A node's answer to POST /control/drill."""

    nonce: str
    fired_after_seconds: float | None
    channels: tuple[Row, ...]


async def drill(context: Context, parameters: DrillParameters) -> Outcome:
    with contextlib.ExitStack() as stack:
        sink = stack.enter_context(open_sink()) if _near(context, parameters) else None
        began = time.monotonic()
        done = await _run(context, parameters, sink)
        arrived = sink.seen.get(done.nonce) if sink is not None else None
    faults = drill_faults(done, sink is not None, arrived is not None)
    evidence: dict[str, Any] = {
        "nonce": done.nonce,
        "fired_after_seconds": done.fired_after_seconds,
        "channels": [msgspec.structs.asdict(row) for row in done.channels],
        "arrived_after_seconds": None if arrived is None else round(arrived - began, 3),
    }
    require(
        not faults,
        observed="; ".join(faults),
        expected=EXPECTED,
        remedy="mend the receiver or its URL: kvops alerts list names the last error, kvops alerts test tries again",
        **evidence,
    )
    own = [row for row in done.channels if row.channel != SINK]
    at_sink = (
        "" if arrived is None else f"; at the gate's sink after {format_duration(arrived - began)}"
    )
    if not own:
        _nobody(parameters, at_sink, evidence)
    took = f"{', '.join(row.channel for row in own)} took it"
    if arrived is None:
        warn(
            observed=f"{took}, by the node's own word alone",
            expected=EXPECTED,
            remedy=PROVE,
            n=len(done.channels),
            **evidence,
        )
    return Outcome(
        verdict="pass",
        observed=f"{took}{at_sink}",
        expected=EXPECTED,
        n=len(done.channels),
        evidence=evidence,
    )


def _near(context: Context, parameters: DrillParameters) -> bool:
    """A node takes only a sink on its own machine, so the gate's is of use where the node is here."""
    host = urlsplit(context.target.control_url or "").hostname or ""
    return parameters.own_sink and is_loopback(host)


async def _run(context: Context, parameters: DrillParameters, sink: Sink | None) -> Drill:
    within = parameters.within
    body = {"timeout": within, "sink": sink.url if sink else None}
    async with control_plane(context) as control:
        try:
            reply = await control.post("/control/drill", body, within=within + 10)
        except httpx.TimeoutException:
            fail(
                observed=f"the drill was not over after {format_duration(within + 10)}",
                expected=EXPECTED,
                remedy="the node's alerting hangs: see kvops node logs",
            )
    if reply.status != 200:
        _refused(reply, parameters)
    try:
        return msgspec.convert(reply.body, Drill)
    except msgspec.ValidationError as error:
        fail(
            observed=f"no result of a drill: {error}",
            expected=EXPECTED,
            remedy="which version runs there?",
        )


def _refused(reply: Reply, parameters: DrillParameters) -> None:
    """Why a node would not make a drill, by what it says."""
    said = str(reply.error.get("message", ""))
    if reply.status == 404:
        skip(
            "this node knows no drill of its alerts",
            remedy="test its alerting as its own manual says",
        )
    if "no channel" in said:
        _nobody(parameters, "", {})
    if "another drill" in said:
        inconclusive("another drill is on", expected=EXPECTED, remedy="try again when it is over")
    fail(
        observed=f"the node refused the drill: {status_and_code(reply)}",
        expected=EXPECTED,
        remedy="are its alerts on? kvops alerts list",
    )


def drill_faults(done: Drill, with_sink: bool, arrived: bool) -> list[str]:
    """A message has arrived when the receiver says so, not when the node does."""
    faults = []
    if done.fired_after_seconds is None:
        faults.append("the rule did not fire in time")
    faults += [
        f"{row.channel}: {row.error or 'not delivered'}"
        for row in done.channels
        if not row.delivered
    ]
    if with_sink and not arrived and not faults:
        faults.append(
            "the node says that it was delivered, and it did not arrive at the gate's sink"
        )
    return faults


def _nobody(parameters: DrillParameters, at_sink: str, evidence: dict[str, Any]) -> None:
    end = fail if parameters.without_channel == "fail" else warn
    end(
        observed=f"no channel is configured{at_sink}",
        expected=EXPECTED,
        remedy=ADD_CHANNEL,
        **evidence,
    )


DRILL = Check(
    id="alerts.drill",
    title="Alerts arrive",
    purpose="A real rule fires, and its message arrives at every channel and at a receiver of the gate.",
    parameters=DrillParameters,
    run=drill,
    area="V6",
    typical=3.0,
    needs=("control plane",),
)
