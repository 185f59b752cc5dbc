"""The control plane: look at the node, drain it, cancel, flush, stop. No prompt or completion text passes here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

import structlog
from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import Field

from kvops.node.api.audited import about
from kvops.node.api.fields import Body, Within
from kvops.node.api.jsonbody import JsonRoute
from kvops.node.services import Services
from kvops.node.warmup import warm_up
from kvops.telemetry.snapshot import encode

router = APIRouter(prefix="/control", route_class=JsonRoute)
log = structlog.get_logger("kvops.control")


async def _services(request: Request) -> Services:
    # A plain function would cross a thread pool with every request.
    services: Services = request.app.state.services
    return services


Node = Annotated[Services, Depends(_services)]


class CancelRequest(Body):
    request_id: Annotated[str, Field(min_length=1, max_length=64)]


@router.get("/snapshot", response_model=None)
async def snapshot(node: Node) -> Response:
    return Response(encode(node.view.snapshot()), media_type="application/json")


@router.get("/stream", response_model=None)
async def stream(node: Node, hz: Annotated[float, Query(), Within(0.05, 20)] = 2.0) -> Response:
    """Snapshots as server-sent events, `hz` a second, until the client or the node goes."""

    async def events() -> AsyncIterator[bytes]:
        while not node.closing:
            yield b"data: " + encode(node.view.snapshot()) + b"\n\n"
            await asyncio.sleep(1 / hz)

    return StreamingResponse(
        events(), media_type="text/event-stream", headers={"Cache-Control": "no-store"}
    )


@router.get("/requests", response_model=None)
async def requests(node: Node) -> Response:
    rows = node.view.snapshot().requests
    return Response(encode(rows), media_type="application/json")


@router.get("/kv/map", response_model=None)
async def kv_map(node: Node, cells: Annotated[int, Query(), Within(1, 100_000)] = 1000) -> Response:
    return Response(encode(await node.supervisor.kv_map(cells)), media_type="application/json")


@router.post("/drain")
async def drain(node: Node) -> dict[str, Any]:
    """Take no new requests; those in flight go on."""
    if node.admission.door == "open":
        node.admission.door = "draining"
        log.info("draining", in_flight=node.admission.in_flight)
    return _door(node)


@router.post("/resume")
async def resume(node: Node) -> dict[str, Any]:
    if node.admission.door == "draining":
        node.admission.door = "open"
        log.info("resumed")
    return _door(node)


@router.post("/cancel")
async def cancel(body: CancelRequest, node: Node, request: Request) -> dict[str, Any]:
    """`cancelled` is false when no such request is in flight."""
    cancelled = node.admission.cancel(body.request_id)
    # What names no request of the node may be anything, and is not written down.
    known = body.request_id if cancelled else None
    about(request, request_id=known, cancelled=cancelled)
    log.info("cancel", request_id=known, cancelled=cancelled)
    return {"cancelled": cancelled}


@router.post("/flush")
async def flush(node: Node) -> dict[str, Any]:
    """Forget the cached prefixes that no request holds, and all kept results."""
    results = node.admission.results.flush()
    blocks = await node.supervisor.flush()
    log.info("flushed", blocks=blocks, results=results)
    return {"blocks": blocks, "results": results}


@router.post("/warmup")
async def warmup(node: Node) -> dict[str, Any]:
    """Compute the listed prefixes that are no longer in the cache; returns when they are."""
    node.serving()
    counts = await warm_up(node.prefixes, node.supervisor)
    log.info("warmed_up", **counts)
    return counts


@router.post("/shutdown", response_model=None)
async def shutdown(node: Node) -> Response:
    """As SIGTERM: answers at once, then drains and exits."""
    node.shut_down()
    return JSONResponse(
        {"state": "stopping", "in_flight": node.admission.in_flight}, status_code=202
    )


def _door(node: Services) -> dict[str, Any]:
    state, reason = node.view.state()
    return {"state": state, "reason": reason, "in_flight": node.admission.in_flight}
