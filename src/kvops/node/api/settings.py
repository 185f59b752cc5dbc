"""The control plane's way to the settings: what is in force, put others in force, go back to those of before."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field

from kvops.config.history import MAX_AUTHOR, MAX_NOTE
from kvops.config.masking import masked
from kvops.config.next_start import as_json, change_rows
from kvops.node.api.audited import about
from kvops.node.api.control import Node
from kvops.node.api.fields import Body
from kvops.node.api.jsonbody import JsonRoute
from kvops.node.reload import Outcome

router = APIRouter(prefix="/control", route_class=JsonRoute)

Author = Annotated[str, Field(min_length=1, max_length=MAX_AUTHOR)]
Note = Annotated[str, Field(max_length=MAX_NOTE)]


class ReloadRequest(Body):
    """`document`: all settings as a file gives them, paths absolute; what it leaves out has its default."""

    document: dict[str, Any]
    author: Author
    note: Note = ""


class RollbackRequest(Body):
    """Without `version`: the last good one before the current settings."""

    version: Annotated[int, Field(ge=1)] | None = None
    author: Author
    note: Note = ""


@router.get("/config")
async def config(node: Node) -> dict[str, Any]:
    """The settings in force and where each came from. The keys themselves are in none of them."""
    loaded = node.settings.loaded
    return {
        "config": masked(loaded.config.model_dump(mode="json", by_alias=True)),
        "origins": loaded.origins,
        "config_hash": loaded.config_hash,
        "version": node.reload.version.id,
        "version_hash": node.reload.version.config_hash,
        "restart_needed": change_rows(node.reload.restart_needed),
    }


@router.post("/reload")
async def reload(body: ReloadRequest, node: Node, request: Request) -> dict[str, Any]:
    """Put in force what can change live and say what needs a restart; or refuse it all."""
    outcome = await node.reload.apply(body.document, body.author, body.note)
    about(request, version=outcome.version.id)
    return _told(outcome)


@router.post("/rollback")
async def rollback(body: RollbackRequest, node: Node, request: Request) -> dict[str, Any]:
    """As `reload`, of a version that was applied before."""
    outcome = await node.reload.roll_back(body.version, body.author, body.note)
    about(request, version=outcome.version.id, restores=outcome.version.restores)
    return _told(outcome)


def _told(outcome: Outcome) -> dict[str, Any]:
    return {
        "version": outcome.version.id,
        "version_hash": outcome.version.config_hash,
        "previous_hash": outcome.previous.config_hash,
        "before": outcome.before,
        "after": outcome.after,
        "live": change_rows(outcome.live),
        "restart_needed": change_rows(outcome.restart_needed),
        "overridden": dict(outcome.overridden),
        "next_start": as_json(outcome.next_start),
    }
