"""The control plane's view of the quarantine: which request shapes are suspected or refused, and how to forget them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import structlog
from fastapi import APIRouter
from pydantic import Field

from kvops.node.api.control import Node
from kvops.node.api.fields import Body
from kvops.node.api.jsonbody import JsonRoute
from kvops.node.quarantine import Standing, Suspect

router = APIRouter(prefix="/control/quarantine", route_class=JsonRoute)
log = structlog.get_logger("kvops.control")


class ClearRequest(Body):
    id: Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")] | None = None
    """One shape; without it, all."""


@router.get("")
async def suspects(node: Node) -> dict[str, Any]:
    """What was in flight when engines died, worst first. No content: lengths, parameters and times."""
    quarantine = node.admission.quarantine
    shapes = [_row(one, quarantine.standing(one)) for one in quarantine.all()]
    return {"refused": quarantine.refused, "shapes": shapes}


@router.post("/clear")
async def clear(body: ClearRequest, node: Node) -> dict[str, Any]:
    cleared = node.admission.quarantine.clear(body.id)
    log.info("quarantine_cleared", shape=body.id or "all", cleared=cleared)
    return {"cleared": cleared}


def _row(suspect: Suspect, standing: Standing) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(suspect)
    return {"standing": standing} | fields
