"""A tenant's quota as blocks of a pool. Daemon and engine count alike: what the one takes the other takes."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kvops.errors import ConfigError
from kvops.node.wire import EngineInfo, KvQuota, TenantLimits


def with_quotas(
    info: EngineInfo, tenants: Mapping[str, TenantLimits], default: TenantLimits
) -> EngineInfo:
    """`info` with the quotas in blocks. Raises ConfigError where one is not one block."""
    return msgspec.structs.replace(
        info,
        kv_quota_blocks={
            tenant: _blocks(limits.kv_quota, f"tenants.{tenant}", info)
            for tenant, limits in tenants.items()
        },
        default_kv_quota_blocks=_blocks(default.kv_quota, "tenant_defaults", info),
    )


def _blocks(quota: KvQuota, tenant: str, info: EngineInfo) -> int | None:
    blocks = _wanted(quota, info)
    if blocks is not None and blocks < 1:
        raise ConfigError(
            f"{tenant}: kv_quota is less than one block of {info.bytes_per_block} bytes",
            hint="raise the quota, or the pool (kv_cache)",
        )
    return None if blocks is None else min(blocks, info.pool_blocks)


def _wanted(quota: KvQuota, info: EngineInfo) -> int | None:
    if quota.blocks is not None:
        return quota.blocks
    if quota.bytes is not None:
        return quota.bytes // info.bytes_per_block
    return None if quota.ratio is None else int(info.pool_blocks * quota.ratio)
