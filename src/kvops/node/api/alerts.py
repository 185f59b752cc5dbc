"""The control plane's alert routes: how the rules stand, silences, acknowledgements, and the delivery drill."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from pydantic import Field

from kvops.node.alerting import Alerting
from kvops.node.api.audited import about
from kvops.node.api.fields import Body, Within
from kvops.node.api.jsonbody import JsonRoute

router = APIRouter(prefix="/control", route_class=JsonRoute)
MAX_DRILL_SECONDS = 120
MAX_SILENCE_SECONDS = 30 * 86400

_Rule = Annotated[str, Field(min_length=1, max_length=64)]
_Words = Annotated[str, Field(min_length=1, max_length=200)]


async def _alerting(request: Request) -> Alerting:
    # A plain function would cross a thread pool with every request.
    alerting: Alerting = request.app.state.services.alerting
    return alerting


Alerts = Annotated[Alerting, Depends(_alerting)]


class SilenceRequest(Body):
    rule: _Rule
    seconds: Annotated[float, Within(0, MAX_SILENCE_SECONDS)]
    """0 ends a silence."""
    reason: _Words
    by: _Words


class AckRequest(Body):
    rule: _Rule
    by: _Words


class DrillRequest(Body):
    timeout: Annotated[float, Within(1, MAX_DRILL_SECONDS)] = 20.0
    sink: Annotated[str, Field(max_length=512)] | None = None
    """A URL on the node's machine that is told as well."""


@router.get("/alerts")
async def alerts(alerting: Alerts) -> dict[str, Any]:
    return alerting.report()


@router.post("/alerts/silence")
async def silence(body: SilenceRequest, alerting: Alerts, request: Request) -> dict[str, Any]:
    until = await alerting.silence(body.rule, body.seconds, body.reason, body.by)
    about(request, rule=body.rule, seconds=body.seconds)
    return {"rule": body.rule, "until": until}


@router.post("/alerts/ack")
async def acknowledge(body: AckRequest, alerting: Alerts, request: Request) -> dict[str, Any]:
    await alerting.acknowledge(body.rule, body.by)
    about(request, rule=body.rule)
    return {"rule": body.rule, "acknowledged": True}


@router.post("/drill")
async def drill(body: DrillRequest, alerting: Alerts) -> dict[str, Any]:
    """Returns when every channel took the drill's message, or `timeout` seconds have passed."""
    return await alerting.drill(body.timeout, body.sink)
