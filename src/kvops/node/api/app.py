"""The two ASGI applications of a node: the data plane for everyone with a key, the control plane for its operator."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.types import ASGIApp

from kvops.node.api import alerts, control, health, openai, problems, quarantine, settings
from kvops.node.api.audited import ActionAudit, Audited, RequestAudit
from kvops.node.api.gate import Gate, by_admin_token, by_api_key
from kvops.node.auth import AdminToken
from kvops.node.services import Services


def create_data_app(services: Services) -> FastAPI:
    """The routes of the data plane without the gate; `.openapi()` is their schema, which no route exposes."""
    app = _bare("kvops data plane", services)
    app.include_router(health.router)
    app.include_router(openai.router)
    return app


def create_control_app(services: Services) -> FastAPI:
    app = _bare("kvops control plane", services)
    app.include_router(control.router)
    app.include_router(settings.router)
    app.include_router(alerts.router)
    app.include_router(quarantine.router)
    return app


def data_plane(services: Services) -> ASGIApp:
    gate = Gate(create_data_app(services), by_api_key(services.keys), services.meter.rejected)
    return Audited(gate, RequestAudit(services.audit))


def control_plane(services: Services, token: AdminToken, host: str, port: int) -> ASGIApp:
    app = create_control_app(services)
    gate = Gate(app, by_admin_token(token, host, port), lambda code: None)
    return Audited(gate, ActionAudit(services.audit, lambda: services.loaded.config_hash))


def _bare(title: str, services: Services) -> FastAPI:
    app = FastAPI(
        title=title, docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False
    )
    app.state.services = services
    app.state.settings = services.settings
    problems.install(app)
    return app
