"""What every request passes before a route sees it: an id, bounded headers, who it is. Plain ASGI, deny by default."""

from __future__ import annotations

import contextlib
import secrets
import socket
import time
from collections.abc import Callable
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvops.config.load import is_loopback
from kvops.errors import (
    BadFraming,
    Forbidden,
    InternalError,
    InvalidApiKey,
    RequestError,
    RouteUnknown,
    TooLarge,
)
from kvops.node.api.problems import log_defect, respond
from kvops.node.auth import AdminToken, Identifies

MAX_HEADER_BYTES = 32 * 1024
"""Of path, query, names and values together."""
MAX_HEADERS = 128
PUBLIC = frozenset({"/livez", "/readyz", "/health", "/metrics"})
_READ = frozenset({"GET", "HEAD"})
COUNTED = frozenset({"/v1/completions", "/v1/chat/completions", "/v1/tokenize"})


class Gate:
    """`admit` raises the RequestError that keeps a request out; `on_refused` gets the code of refused POSTs."""

    def __init__(
        self,
        app: ASGIApp,
        admit: Callable[[Scope, Headers], None],
        on_refused: Callable[[str], None],
    ) -> None:
        self._app = app
        self._admit = admit
        self._on_refused = on_refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        state: dict[str, Any] = scope.setdefault("state", {})
        state |= {"request_id": new_request_id(), "received_at": time.monotonic()}
        sender = _Sender(send, state["request_id"])
        try:
            self._check(scope)
            await self._app(scope, receive, sender)
        except RequestError as error:
            state["refused"] = error.code
            await respond(error)(scope, receive, sender)
        except Exception as error:
            state["refused"] = InternalError.code
            await self._failed(error, scope, receive, sender)
        self._count(scope, state)

    def _check(self, scope: Scope) -> None:
        _check_framing(Headers(scope=scope))
        size = sum(len(name) + len(value) for name, value in scope["headers"])
        size += len(scope.get("raw_path", b"")) + len(scope["query_string"])
        if size > MAX_HEADER_BYTES or len(scope["headers"]) > MAX_HEADERS:
            raise TooLarge(
                f"the headers are over the bound of {MAX_HEADER_BYTES} bytes or {MAX_HEADERS} fields.",
                status=431,
            )
        self._admit(scope, Headers(scope=scope))
        if b"%" in scope.get("raw_path", b""):
            # No route needs escapes; a proxy that decides by path must see the path that is served.
            raise RouteUnknown("there is no such route.")

    async def _failed(
        self, error: Exception, scope: Scope, receive: Receive, sender: _Sender
    ) -> None:
        """The application has answered 500 already, or dies here in the middle of an answer."""
        if not sender.started:
            log_defect(error, scope["state"]["request_id"])
            await respond(InternalError("the node failed on this request."))(scope, receive, sender)

    def _count(self, scope: Scope, state: dict[str, Any]) -> None:
        """A defect counts wherever it shows; an admitted request is counted by its outcome."""
        refused = state.get("refused")
        asks = scope["method"] == "POST" and scope["path"] in COUNTED
        if refused and not state.get("admitted") and (asks or refused == InternalError.code):
            self._on_refused(refused)


def _check_framing(headers: Headers) -> None:
    """Two statements of a body's length are how a request is smuggled past a proxy (RFC 9112 §6.3)."""
    if "transfer-encoding" in headers and "content-length" in headers:
        raise BadFraming("the request has both Content-Length and Transfer-Encoding.")


class _Sender:
    """Puts the request's id on the answer and remembers whether it began."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._header = (b"x-request-id", request_id.encode())
        self.started = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            message = {**message, "headers": [*message.get("headers", []), self._header]}
        await self._send(message)


def new_request_id() -> str:
    return f"req-{secrets.token_hex(12)}"


def by_api_key(keys: Identifies) -> Callable[[Scope, Headers], None]:
    """All but reading the four public routes needs a key, unknown paths too."""

    def admit(scope: Scope, headers: Headers) -> None:
        if scope["path"] in PUBLIC and scope["method"] in _READ:
            return
        scope["state"]["caller"] = keys.identify(headers.get("authorization"))

    return admit


def by_admin_token(token: AdminToken, host: str, port: int) -> Callable[[Scope, Headers], None]:
    """A known Host (against DNS rebinding), no Origin (no browser), then the token."""
    hosts = {f"{name}:{port}" for name in _names_of(host)}

    def admit(scope: Scope, headers: Headers) -> None:
        if len(headers.getlist("host")) != 1 or headers["host"].lower() not in hosts:
            raise Forbidden("the Host header names no address of this control plane.")
        if "origin" in headers or headers.get("sec-fetch-site") == "cross-site":
            raise Forbidden("the control plane takes no requests from web pages.")
        if not token.accepts(headers.get("authorization")):
            raise InvalidApiKey("the admin token is missing or wrong.")
        scope["state"]["operator"] = True

    return admit


def _names_of(host: str) -> set[str]:
    """What a client may call it: as the setting does, and by each of its addresses. An address cannot be rebound."""
    found = {host.lower()}
    with contextlib.suppress(OSError):
        found |= {str(row[4][0]) for row in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    if is_loopback(host):
        found |= {"localhost", "127.0.0.1", "::1"}
    return {f"[{name}]" if ":" in name else name for name in found}
