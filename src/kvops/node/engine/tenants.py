"""What each tenant may hold of the engine, and which blocks it holds. A block counts once a tenant, however many
of its requests share it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from kvops.errors import ConfigError
from kvops.node.engine.request import Request
from kvops.node.wire import EngineInfo, KvQuota, Start, TenantLimits


@dataclass(frozen=True, slots=True)
class Limits:
    """None: no bound."""

    max_running: int | None = None
    kv_blocks: int | None = None


class Tenants:
    def __init__(
        self, limits: Mapping[str, Limits] | None = None, default: Limits | None = None
    ) -> None:
        self._limits = dict(limits or {})
        self._default = default or Limits()
        self._references: dict[str, Counter[int]] = {}

    @classmethod
    def of(cls, start: Start, info: EngineInfo) -> Tenants:
        """Quotas as blocks of the pool that `info` describes. Raises ConfigError."""
        size = (info.pool_blocks, info.bytes_per_block)
        named = {
            tenant: _resolve(limits, f"tenants.{tenant}", *size)
            for tenant, limits in start.tenants.items()
        }
        return cls(named, _resolve(start.default_tenant, "tenant_defaults", *size))

    def told(self, info: EngineInfo) -> EngineInfo:
        """`info` with the quotas in blocks."""
        return msgspec.structs.replace(
            info,
            kv_quota_blocks={tenant: one.kv_blocks for tenant, one in self._limits.items()},
            default_kv_quota_blocks=self._default.kv_blocks,
        )

    def limits(self, tenant: str) -> Limits:
        """Of a tenant; the nameless one is the engine itself, which has none."""
        return self._limits.get(tenant, self._default) if tenant else Limits()

    def hold(self, tenant: str, blocks: Iterable[int]) -> None:
        self._references.setdefault(tenant, Counter()).update(blocks)

    def drop(self, tenant: str, blocks: Iterable[int]) -> None:
        references = self._references.get(tenant, Counter())
        for block in blocks:
            references[block] -= 1
            if not references[block]:
                del references[block]
        if not references:
            self._references.pop(tenant, None)

    def references(self, tenant: str) -> Mapping[int, int]:
        """How many of the tenant's requests hold each block that it holds."""
        return self._references.get(tenant, {})

    def held(self) -> dict[str, int]:
        """Blocks by tenant, of those that hold any."""
        return {tenant: len(blocks) for tenant, blocks in self._references.items()}

    def check(self, requests: Iterable[Request]) -> list[str]:
        """What is broken, in words: the account against the tables, the quotas against the account."""
        counted: dict[str, Counter[int]] = {}
        for request in requests:
            if request.table:
                counted.setdefault(request.tenant, Counter()).update(request.table)
        faults = []
        if counted != self._references:
            faults.append("the tenants' accounts and the tables differ")
        for tenant, blocks in counted.items():
            quota = self.limits(tenant).kv_blocks
            if quota is not None and len(blocks) > quota:
                faults.append(f"tenant {tenant!r}: {len(blocks)} blocks over its quota of {quota}")
        return faults


def _resolve(limits: TenantLimits, tenant: str, total_blocks: int, bytes_per_block: int) -> Limits:
    """A quota as blocks of this pool. Raises ConfigError where that is not one block."""
    blocks = _blocks(limits.kv_quota, total_blocks, bytes_per_block)
    if blocks is not None and blocks < 1:
        raise ConfigError(
            f"{tenant}: kv_quota is less than one block of {bytes_per_block} bytes",
            hint="raise the quota, or the pool (kv_cache)",
        )
    return Limits(limits.max_running, None if blocks is None else min(blocks, total_blocks))


def _blocks(quota: KvQuota, total_blocks: int, bytes_per_block: int) -> int | None:
    if quota.blocks is not None:
        return quota.blocks
    if quota.bytes is not None:
        return quota.bytes // bytes_per_block
    return None if quota.ratio is None else int(total_blocks * quota.ratio)
