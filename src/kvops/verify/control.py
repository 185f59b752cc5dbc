"""The control plane by its routes, for checks that need more of it than the snapshot."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from kvops.batching import most_running
from kvops.telemetry.targets import Target
from kvops.verify.api import Api
from kvops.verify.check import skip
from kvops.verify.context import Context


@asynccontextmanager
async def control_plane(context: Context) -> AsyncIterator[Api]:
    """A client with the admin token. Skips the check where no control plane is known."""
    target = context.target
    if target.control_url is None:
        skip("no control plane is known", remedy="name it with --control-url and --token-file")
    api = Api(Target(name=target.name, url=target.control_url, api_key=target.token))
    try:
        yield api
    finally:
        await api.aclose()


class KvQuota(msgspec.Struct, frozen=True, kw_only=True):
    """The first that is set decides."""

    blocks: int | None = None
    bytes: int | None = None
    ratio: float | None = None


class TenantClaims(msgspec.Struct, frozen=True, kw_only=True):
    """What the configuration allows one tenant; None: no bound."""

    max_running: int | None = None
    max_waiting: int | None = None
    kv_quota: KvQuota | None = None


class Runtime(msgspec.Struct, frozen=True, kw_only=True):
    max_batch_size: int | None = None
    max_batched_tokens: int | None = None
    max_queue: int | None = None
    queue_timeout: float | None = None
    request_timeout: float | None = None
    """Seconds."""

    @property
    def max_running(self) -> int | None:
        """Requests that run at once."""
        if self.max_batch_size is None or self.max_batched_tokens is None:
            return self.max_batch_size
        return most_running(self.max_batch_size, self.max_batched_tokens)


class KvCache(msgspec.Struct, frozen=True, kw_only=True):
    prefix_caching: bool | None = None


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """Those settings of a node that say what a client may count on. What it does not tell is None."""

    runtime: Runtime = Runtime()
    kv_cache: KvCache = KvCache()
    tenants: dict[str, TenantClaims] = {}
    tenant_defaults: TenantClaims = TenantClaims()

    def tenant(self, name: str) -> TenantClaims:
        return self.tenants.get(name, self.tenant_defaults)


class _Config(msgspec.Struct):
    config: Claims


async def claims(context: Context) -> Claims:
    """The settings in force, from `/control/config`; all None where there is none to ask."""
    if context.target.control_url is None:
        return Claims()
    async with control_plane(context) as control:
        reply = await control.get("/control/config")
    try:
        return msgspec.json.decode(reply.text, type=_Config).config
    except (msgspec.DecodeError, RecursionError):
        return Claims()
