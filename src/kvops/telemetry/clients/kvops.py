"""Client of our own node: everything comes from its control plane, bounded in time and in size."""

from __future__ import annotations

import asyncio
import os
from typing import Any, TypeVar

import httpx
import msgspec

from kvops.errors import NodeProtocolError, NodeUnauthorized, NodeUnreachable, UsageError
from kvops.telemetry.clients.base import Capabilities
from kvops.telemetry.snapshot import (
    SCHEMA_VERSION,
    Known,
    KvMap,
    NodeSnapshot,
    NotExposed,
    Reading,
)
from kvops.telemetry.targets import Target, trust

MAX_REPLY = 8 * 2**20
"""Bytes. A snapshot with a thousand requests is about 300 KB."""
DEFAULT_TIMEOUT = 5.0

S = TypeVar("S", bound=msgspec.Struct)


class _ErrorObject(msgspec.Struct):
    message: str = ""
    code: str | None = None


class _ErrorBody(msgspec.Struct):
    error: _ErrorObject


class _Version(msgspec.Struct):
    schema_version: int = 0


class _Cancelled(msgspec.Struct):
    cancelled: bool


class _NotNow(NodeProtocolError):
    """The node's own reason why it cannot do this now is `said`."""

    def __init__(self, message: str, said: str) -> None:
        super().__init__(f"{message}: {said}", hint="see the node's log")
        self.said = said


class KvopsClient:
    """`timeout` bounds each whole call in seconds, however slowly the reply drips in."""

    capabilities = Capabilities(memory_ledger=True, kv_map=True, request_table=True, control=True)

    def __init__(self, target: Target, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        self.target = target
        self._timeout = timeout
        self._base = _control_url(target)
        token = {"Authorization": f"Bearer {target.token}"} if target.token else {}
        # No proxy from the environment: the admin token goes to the node and nowhere else.
        self._http = httpx.AsyncClient(
            headers={"Accept-Encoding": "identity"} | token,
            verify=trust(self._base),
            trust_env=False,
            timeout=timeout,
            limits=httpx.Limits(max_connections=4, max_keepalive_connections=2),
        )

    async def snapshot(self) -> NodeSnapshot:
        body = await self._call("GET", "/control/snapshot")
        if _decode(body, _Version, self._base).schema_version != SCHEMA_VERSION:
            raise NodeProtocolError(
                f"{self._base} speaks another snapshot version than {SCHEMA_VERSION}",
                hint="use the same kvops version here and on the node",
            )
        return _decode(body, NodeSnapshot, self._base)

    async def kv_map(self, cells: int) -> Reading[KvMap]:
        """At most `cells` cells. NotExposed while the engine is not there to be asked."""
        try:
            body = await self._call("GET", "/control/kv/map", params={"cells": cells})
        except _NotNow as error:
            return NotExposed(error.said)
        except NodeProtocolError as error:
            return NotExposed(error.message)
        kv_map = _decode(body, KvMap, self._base)
        return Known(kv_map, kv_map.at)

    async def drain(self) -> None:
        await self._call("POST", "/control/drain")

    async def resume(self) -> None:
        await self._call("POST", "/control/resume")

    async def cancel(self, request_id: str) -> bool:
        body = await self._call("POST", "/control/cancel", json={"request_id": request_id})
        return _decode(body, _Cancelled, self._base).cancelled

    async def aclose(self) -> None:
        await self._http.aclose()

    async def _call(self, method: str, path: str, **kwargs: Any) -> bytes:
        try:
            async with asyncio.timeout(self._timeout):
                status, body = await self._exchange(method, path, **kwargs)
        except (TimeoutError, httpx.TimeoutException):
            raise NodeUnreachable(
                f"{self._base} gave no answer within {self._timeout:g} s",
                hint="the node may be overloaded or hung: see its log",
            ) from None
        except httpx.RemoteProtocolError as error:
            raise NodeProtocolError(
                f"{self._base} does not speak HTTP rightly: {_short(error)}",
                hint="is this the control plane of a kvops node?",
            ) from None
        except (httpx.TransportError, httpx.InvalidURL, OSError) as error:
            raise NodeUnreachable(
                f"cannot reach {self._base}: {_root_cause(error)}",
                hint="kvops node status lists what runs here",
            ) from None
        _raise_for_status(status, body, self._base, path)
        return body

    async def _exchange(self, method: str, path: str, **kwargs: Any) -> tuple[int, bytes]:
        async with self._http.stream(method, self._base + path, **kwargs) as reply:
            body = bytearray()
            async for chunk in reply.aiter_raw():
                body += chunk
                if len(body) > MAX_REPLY:
                    raise NodeProtocolError(
                        f"{self._base}{path} sent more than {MAX_REPLY} bytes",
                        hint="is this the control plane of a kvops node?",
                    )
            return reply.status_code, bytes(body)


def _control_url(target: Target) -> str:
    if target.control_url is None:
        raise UsageError(
            f"the control plane of {target.url} is not known: no node of this machine listens there",
            hint="add --control-url, or control_url in the fleet file: its node printed it as control plane",
        )
    return target.control_url.rstrip("/")


def _decode(body: bytes, kind: type[S], base: str) -> S:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise NodeProtocolError(
            f"{base} sent no {kind.__name__.lstrip('_')}: {_short(error)}",
            hint="is this the control plane of a kvops node of this version?",
        ) from None


def _raise_for_status(status: int, body: bytes, base: str, path: str) -> None:
    if 200 <= status < 300:
        return
    if status in (401, 403):
        raise NodeUnauthorized(
            f"{base} refused the admin token ({status})",
            hint="give the node's admin.token with --token-file or KVOPS_ADMIN_TOKEN",
        )
    answered, said = f"{base}{path} answered {status}", _error_message(body)
    if status == 503:
        raise _NotNow(answered, said)
    raise NodeProtocolError(
        f"{answered}: {said}",
        hint="is this the control plane of a kvops node?"
        if status == 404
        else "see the node's log",
    )


def _error_message(body: bytes) -> str:
    try:
        return _one_line(msgspec.json.decode(body, type=_ErrorBody).error.message)
    except (msgspec.DecodeError, RecursionError):
        return _one_line(body[:200].decode(errors="replace")) or "empty reply"


def _root_cause(error: BaseException) -> str:
    """The operating system's word for it: the libraries above only say that it failed."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno is not None:
            return os.strerror(cause.errno)
        cause = cause.__cause__ or cause.__context__
    return _short(error)


def _short(error: BaseException) -> str:
    return _one_line(str(error) or type(error).__name__)


def _one_line(text: str) -> str:
    printable = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(printable.split())[:200]
