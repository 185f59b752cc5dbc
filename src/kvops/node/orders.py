"""What an engine is told when it starts or its tenants change: the part of the settings that is its own."""

from __future__ import annotations

from kvops.config.schema import NodeConfig, Tenant
from kvops.models.store import StoredModel, evaluations_of
from kvops.node.preflight import pool_plan
from kvops.node.wire import KvQuota, SetTenants, Start, TenantLimits


def start_message(config: NodeConfig, model: StoredModel) -> Start:
    tenants = set_tenants(config)
    return Start(
        model_path=str(model.path),
        model_name=model.name,
        revision=model.revision,
        max_context_length=config.model.max_context_length,
        weights_dtype=config.model.weights_dtype,
        pool=pool_plan(config),
        max_batch_size=config.runtime.max_running,
        max_batched_tokens=config.runtime.max_batched_tokens,
        threads=config.runtime.threads,
        device=config.runtime.device,
        max_prefill_tokens=config.runtime.max_prefill_tokens,
        batch_max_load=config.runtime.batch_admission.max_online_running,
        batch_window=config.runtime.batch_window,
        tenants=tenants.tenants,
        default_tenant=tenants.default_tenant,
        evaluations=() if model.manifest is None else evaluations_of(model.manifest),
    )


def set_tenants(config: NodeConfig) -> SetTenants:
    return SetTenants(
        tenants={name: _limits(tenant) for name, tenant in config.tenants.items()},
        default_tenant=_limits(config.tenant_defaults),
    )


def _limits(tenant: Tenant) -> TenantLimits:
    quota = tenant.kv_quota
    return TenantLimits(
        max_running=tenant.max_running,
        kv_quota=KvQuota()
        if quota is None
        else KvQuota(blocks=quota.blocks, bytes=quota.bytes, ratio=quota.ratio),
    )
