"""The control plane's view of the quarantine: which request shapes are suspected or refused, and how to forget them."""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec
import structlog
from fastapi import APIRouter, Request
from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from kvops.errors import ShapeUnknown
from kvops.node.api.audited import about
from kvops.node.api.control import Node
from kvops.node.api.fields import Body
from kvops.node.api.jsonbody import JsonRoute
from kvops.node.quarantine import Standing, Suspect

router = APIRouter(prefix="/control/quarantine", route_class=JsonRoute)
_ID = re.compile("[0-9a-f]{12}")

log = structlog.get_logger("kvops.control")


def _check_id(text: str) -> str:
    if not _ID.fullmatch(text):
        raise PydanticCustomError(
            "shape_id", "must be 12 hex digits, as kvops node quarantine list shows them"
        )
    return text


class ClearRequest(Body):
    id: Annotated[str, AfterValidator(_check_id)] | None = None
    """One shape; without it, all."""


@router.get("")
async def suspects(node: Node) -> dict[str, Any]:
    """What was in flight when engines died, worst first. No content: lengths, parameters and times."""
    quarantine = node.admission.quarantine
    shapes = [_row(one, quarantine.standing(one)) for one in quarantine.all()]
    return {"refused": quarantine.refused, "shapes": shapes}


@router.post("/clear")
async def clear(body: ClearRequest, node: Node, request: Request) -> dict[str, Any]:
    """Raises ShapeUnknown."""
    cleared = node.admission.quarantine.clear(body.id)
    about(request, shape=body.id or "all", cleared=cleared)
    if body.id is not None and not cleared:
        raise ShapeUnknown(
            f"{node.loaded.config.name} knows no shape {body.id}.",
            hint="kvops node quarantine list",
        )
    log.info("quarantine_cleared", shape=body.id or "all", cleared=cleared)
    return {"cleared": cleared}


def _row(suspect: Suspect, standing: Standing) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(suspect)
    return {"standing": standing} | fields
