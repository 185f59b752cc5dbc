"""Every error of every route as the OpenAI-shaped object. Nothing of a request's content gets into it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from kvops.errors import (
    BadFraming,
    BodyTimeout,
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    RequestError,
    RouteUnknown,
)
from kvops.node.secrecy import facts_of

_FIELD = re.compile(r"[a-z][a-z0-9_]*")
_NO_FIELD = {"str", "int", "float", "bool", "body", "query", "none"}
_CLIENT_CLOSED = 499

log = structlog.get_logger("kvops.api")


def install(app: FastAPI) -> None:
    app.add_exception_handler(RequestError, _on_request_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_exception_handler(Exception, _on_defect)


def respond(error: RequestError, headers: dict[str, str] | None = None) -> JSONResponse:
    """A body that is late or of unclear length stays unread, so its connection is of no more use."""
    closing = {"Connection": "close"} if isinstance(error, BadFraming | BodyTimeout) else {}
    return JSONResponse(
        error.body(), error.http_status, error.headers() | closing | (headers or {})
    )


async def _on_request_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    request.state.refused = error.code
    if error.hint and request.scope["path"].startswith("/control/"):  # for whoever shows it apart
        error.extra = {"hint": error.hint, **error.extra}
    return respond(error)


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    request.state.refused = InvalidRequest.code
    return respond(invalid_field(error.errors()))


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == HTTPStatus.NOT_FOUND:
        return respond(RouteUnknown("there is no such route."))
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        return respond(
            MethodNotAllowed(f"{request.method} is not allowed here."), dict(error.headers or {})
        )
    request.state.refused = InvalidRequest.code
    return respond(InvalidRequest("the request cannot be read."))


async def _on_disconnect(request: Request, error: Exception) -> Response:
    """Nobody is there to read it; the status is for the log."""
    return Response(status_code=_CLIENT_CLOSED)


async def _on_defect(request: Request, error: Exception) -> Response:
    log_defect(error, request.state.request_id)
    return respond(
        InternalError(
            "the node failed on this request.", hint=f"Its log has {request.state.request_id}."
        )
    )


def log_defect(error: BaseException, request_id: str) -> None:
    """Where it happened, never with which values: an exception's text may quote the request."""
    log.error("request_failed", request_id=request_id, **facts_of(error))


def invalid_field(errors: Sequence[Any]) -> InvalidRequest:
    """The first error, with the path of the field it is about."""
    first = errors[0]
    path = _path(first.get("loc", ()))
    field = first.get("ctx", {}).get("field") if first.get("type") == "unknown_field" else None
    if field is not None:
        path = f"{path}.{field}" if path else str(field)
    message = str(first.get("msg", "is not valid"))
    message = message[0].lower() + message[1:]
    end = "" if message.endswith(("?", ".", "!")) else "."
    return InvalidRequest(f"{path or 'the body'}: {message}{end}", param=path or None)


def _path(location: Sequence[Any]) -> str:
    """`("body", "messages", 0, "content")` → `messages[0].content`."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif _FIELD.fullmatch(part) and part not in _NO_FIELD:
            path += f".{part}" if path else part
    return path
