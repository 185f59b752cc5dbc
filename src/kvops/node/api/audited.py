"""What the audit is told of HTTP: a line when a request is taken or refused and when it has ended, and one for each act
on the control plane. Of what a client sent only what the node knows by itself is named: a route, never a path.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import structlog
from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvops.node.api.gate import PUBLIC
from kvops.node.audit import AuditLog
from kvops.node.auth import Caller
from kvops.node.generation import Generation
from kvops.node.peer_uid import uid_behind

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_READ = frozenset({"GET", "HEAD", "OPTIONS"})
_BY_STATUS = {404: "not_found", 405: "method_not_allowed", 499: "client_gone", None: "client_gone"}

log = structlog.get_logger("kvops.requests")


class Recorder(Protocol):
    def watch(self, scope: Scope) -> AbstractContextManager[list[int]]:
        """Around a request; the list gets the status of its answer, if one is begun."""


class Audited:
    """Plain ASGI around the gate, so that what the gate refuses is told too."""

    def __init__(self, app: ASGIApp, recorder: Recorder) -> None:
        self._app = app
        self._recorder = recorder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        scope.setdefault("state", {})
        with self._recorder.watch(scope) as status:

            async def watched(message: Message) -> None:
                if message["type"] == "http.response.start":
                    status.append(message["status"])
                await send(message)

            await self._app(scope, receive, watched)


class RequestAudit:
    """The data plane."""

    def __init__(self, audit: AuditLog) -> None:
        self._audit = audit

    @contextmanager
    def watch(self, scope: Scope) -> Iterator[list[int]]:
        status: list[int] = []
        try:
            yield status
        finally:
            self._tell(scope, status[0] if status else None)

    def _tell(self, scope: Scope, status: int | None) -> None:
        """Looking at the node's health is no decision."""
        if scope["path"] in PUBLIC and scope["method"] in _READ:
            return
        generation: Generation | None = scope["state"].get("generation")
        if generation is not None:
            self._audit.record("finished", **_ended(scope, generation))
        elif status is not None and status < 400:
            self._audit.record("answered", **self._facts(scope), status=status)
        else:
            self._refused(scope, status)

    def _refused(self, scope: Scope, status: int | None) -> None:
        code = scope["state"].get("refused") or _BY_STATUS.get(status, "invalid_request")
        facts = self._facts(scope) | {"status": status}
        log.debug("refused", code=code, **facts)
        if "caller" in scope["state"]:
            self._audit.record("refused", code=code, **facts)
        else:
            self._audit.refused_stranger(code, **facts)

    def _facts(self, scope: Scope) -> dict[str, Any]:
        return _who(scope) | _what(scope)


class ActionAudit:
    """The control plane."""

    def __init__(self, audit: AuditLog, config_hash: Callable[[], str]) -> None:
        self._audit = audit
        self._config_hash = config_hash

    @contextmanager
    def watch(self, scope: Scope) -> Iterator[list[int]]:
        """Looking is no act; being refused a look is told."""
        status: list[int] = []
        before = self._config_hash()
        try:
            yield status
        finally:
            answer = status[0] if status else None
            code = scope["state"].get("refused") or _BY_STATUS.get(answer)
            facts = {"client": _client(scope), **_what(scope), "status": answer}
            if not scope["state"].get("operator"):
                self._audit.refused_stranger(code or "forbidden", **facts)
            elif scope["method"] not in _READ:
                self._act(scope, before, code, facts)

    def _act(self, scope: Scope, before: str, code: str | None, facts: dict[str, Any]) -> None:
        path, after = facts["route"] or "unknown", self._config_hash()
        self._audit.action(
            path.removeprefix("/control/"),
            _operator(scope),
            before=before,
            after=after,
            code=code,
            **facts,
            **scope["state"].get("about", {}),
        )


def about(request: Request, **facts: str | float | None) -> None:
    """What an act was on, for its line: names that the node knows, and numbers; never words of the client's own."""
    request.scope["state"]["about"] = facts


def accepted(request: Request, audit: AuditLog, generation: Generation) -> None:
    """To be called once it is admitted, before a byte of its answer."""
    state = request.scope["state"]
    state["generation"] = generation
    choices = generation.choices
    audit.record(
        "accepted",
        **_who(request.scope),
        **_what(request.scope),
        priority=generation.priority,
        prompt_tokens=generation.prompt_tokens,
        choices=len(choices),
        max_tokens=sum(choice.submit.params.max_tokens for choice in choices),
    )


def _ended(scope: Scope, generation: Generation) -> dict[str, Any]:
    first = generation.first_event_at
    return _who(scope) | {
        "outcome": generation.outcome,
        "code": generation.error_code,
        "prompt_tokens": generation.prompt_tokens,
        "cached_tokens": generation.cached_tokens,
        "output_tokens": generation.output_tokens,
        "stored": generation.stored or None,
        "first_token_seconds": None if first is None else round(first - generation.received_at, 4),
        "seconds": round(time.monotonic() - generation.received_at, 4),
    }


def _who(scope: Scope) -> dict[str, Any]:
    caller: Caller | None = scope["state"].get("caller")
    return {
        "request_id": scope["state"].get("request_id"),
        "tenant": None if caller is None else caller.tenant,
        "key_id": None if caller is None else caller.key_id,
        "client": _client(scope),
    }


def _what(scope: Scope) -> dict[str, Any]:
    method = scope["method"]
    return {
        "method": method if method in _METHODS else "other",
        "route": getattr(scope.get("route"), "path", None),
    }


def _client(scope: Scope) -> str | None:
    return scope["client"][0] if scope.get("client") else None


def _operator(scope: Scope) -> str:
    uid = uid_behind(scope.get("client"), scope.get("server"))
    return "control token" if uid is None else f"control token, uid {uid}"
