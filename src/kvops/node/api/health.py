"""Liveness is forward progress; readiness is whether a new request would be taken. Open to everyone."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from kvops.errors import NotReady
from kvops.node.api.metrics import exposition
from kvops.node.services import Services
from kvops.node.state import NodeView

router = APIRouter()


@router.head("/livez", include_in_schema=False)
@router.get("/livez")
async def livez(request: Request) -> Response:
    """503 only if the engine finished no step or said nothing for `runtime.stall_after`, or is gone for good."""
    state, reason = _view(request).state()
    return _report(state, reason, 503 if state in ("stalled", "failed") else 200)


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz")
@router.head("/health", include_in_schema=False)
@router.get("/health")
async def readyz(request: Request) -> Response:
    """200 ready; 404 draining, so that a balancer takes the node out without an alarm, also when its engine dies
    meanwhile; 503 otherwise."""
    view = _view(request)
    state, reason = view.state()
    open_to_all = view.admission.door == "open"
    return _report(state, reason, (200 if state == "ready" else 503) if open_to_all else 404)


@router.head("/metrics", include_in_schema=False)
@router.get("/metrics")
async def metrics(request: Request) -> Response:
    services: Services = request.app.state.services
    body, content_type = exposition(services.view, services.audit)
    return Response(body, headers={"Content-Type": content_type})


def _view(request: Request) -> NodeView:
    services: Services = request.app.state.services
    return services.view


def _report(state: str, reason: str, status: int) -> JSONResponse:
    body: dict[str, object] = {"status": state, "reason": reason}
    if status == 200:
        return JSONResponse(body)
    error = NotReady(f"the node is {state}: {reason}." if reason else f"the node is {state}.")
    headers = error.headers() if status == 503 else {}
    return JSONResponse(error.body() | body, status, headers)
