"""What each tenant may hold of the engine, and which blocks it holds. A block counts once a tenant, however many
of its requests share it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kvops.node.engine.request import Request
from kvops.node.wire import EngineInfo, Start, TenantLimits


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
        """`info` has the quotas in blocks."""
        made = cls()
        made.set(start.tenants, start.default_tenant, info)
        return made

    def set(
        self, tenants: Mapping[str, TenantLimits], default: TenantLimits, info: EngineInfo
    ) -> None:
        """From now on. `info` has the quotas in blocks."""
        self._limits = {
            tenant: Limits(limits.max_running, info.kv_quota_blocks[tenant])
            for tenant, limits in tenants.items()
        }
        self._default = Limits(default.max_running, info.default_kv_quota_blocks)

    def limits(self, tenant: str) -> Limits:
        """Of a tenant; the nameless one is the engine itself, which has none."""
        return self._limits.get(tenant, self._default) if tenant else Limits()

    def quota_of(self, request: Request) -> int | None:
        """Blocks that its tenant may hold for it: what it was admitted under, or what holds now if that is more."""
        now = self.limits(request.tenant).kv_blocks
        if now is None or request.kv_quota is None:
            return None
        return max(now, request.kv_quota)

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
        quotas: dict[str, list[int | None]] = {}
        for request in requests:
            if request.table:
                counted.setdefault(request.tenant, Counter()).update(request.table)
                quotas.setdefault(request.tenant, []).append(self.quota_of(request))
        faults = []
        if counted != self._references:
            faults.append("the tenants' accounts and the tables differ")
        for tenant, blocks in counted.items():
            known = [quota for quota in quotas[tenant] if quota is not None]
            bounded = len(known) == len(quotas[tenant])
            if bounded and len(blocks) > max(known):
                faults.append(
                    f"tenant {tenant!r}: {len(blocks)} blocks over its quota of {max(known)}"
                )
        return faults
