"""Does a tenant get what it was allowed and no more, and do the others go on meanwhile?"""

from __future__ import annotations

from typing import Any, NoReturn

import msgspec
from pydantic import Field

from kvops.telemetry.snapshot import Known, TenantUsage
from kvops.verify.api import Api, Reply
from kvops.verify.check import Check, Outcome, Parameters, inconclusive, require, skip
from kvops.verify.checks.claims import held_body
from kvops.verify.context import Context, pause
from kvops.verify.control import Claims, TenantClaims, claims
from kvops.verify.crowd import Crowd, gathered, until
from kvops.verify.judge import status_and_code
from kvops.verify.keys import as_tenant, tenant_keys

LOOKS = 20
"""At the tenant's running requests, while more of them wait."""


class QuotaParameters(Parameters):
    keys_file: str | None = None
    """File with a key of each tenant, one a line; default: what KVOPS_TENANT_KEYS_FILE names."""
    surplus: int = Field(default=4, ge=1, le=64)
    most: int = Field(default=256, ge=2, le=1000)
    """Streams that are opened at most."""
    within: float = Field(default=10.0, gt=0)
    """Seconds until the surplus must have been refused, and until another tenant must have a token."""


class Tenant(msgspec.Struct, frozen=True):
    name: str
    key: str
    allowed: TenantClaims
    slots: int
    """Requests of it that may run at once."""
    batch: int
    """Requests that run at once in all."""


async def tenant_quota(context: Context, parameters: QuotaParameters) -> Outcome:
    if context.node is None:
        skip("tenants' bounds are on the control plane, and none is known")
    keys = tenant_keys(context, parameters.keys_file)
    if not keys:
        skip(
            "needs a tenant's key",
            remedy="put a key of each tenant into a file, one a line, and name it in KVOPS_TENANT_KEYS_FILE",
        )
    tenant, others = await _bounded_tenant(context, keys)
    seen: dict[str, Any] = {}
    async with as_tenant(context, tenant.key) as api:
        if tenant.allowed.max_waiting is not None:
            seen |= await _crowded(context, api, tenant, others, parameters)
        elif tenant.allowed.max_running is not None:
            seen |= await _capped(context, api, tenant, parameters)
        if tenant.allowed.kv_quota is not None:
            seen |= await _too_many_blocks(context, api, tenant)
    return Outcome(
        verdict="pass",
        observed=f"{tenant.name}: " + ", ".join(f"{name} {value}" for name, value in seen.items()),
        expected="no more than the tenant is allowed; others answered",
        n=len(seen),
        evidence={"tenant": tenant.name, "seen": seen},
    )


async def _bounded_tenant(context: Context, keys: list[str]) -> tuple[Tenant, list[str]]:
    """The first key's tenant that has a bound, and the other keys. Skips where none has."""
    told = await claims(context)
    batch = told.runtime.max_batch_size or 1
    for key in keys:
        name = await _tenant_of(context, key)
        allowed = told.tenant(name)
        if allowed != TenantClaims():
            slots = min(batch, allowed.max_running or batch)
            return Tenant(name, key, allowed, slots, batch), [k for k in keys if k != key]
    return _no_bound(told)


def _no_bound(told: Claims) -> NoReturn:
    named = f"; bounded are {', '.join(sorted(told.tenants)[:5])}" if told.tenants else ""
    skip(
        f"no tenant of the keys has a bound{named}",
        remedy="set tenants or tenant_defaults where tenants do not trust each other",
    )


async def _tenant_of(context: Context, key: str) -> str:
    """As the node's table of requests has it, while one with this key is in flight."""
    assert context.node is not None
    async with as_tenant(context, key) as api, gathered(api) as crowd:
        (guest,) = crowd.invite(1, held_body(context))
        await until(lambda: guest.state != "sent", 30.0)
        rows = (await context.node.snapshot()).requests
        names = {row.tenant for row in rows.value} if isinstance(rows, Known) else set()
    if len(names) != 1:
        inconclusive(
            f"{len(names)} tenants have requests in flight, {guest.error or guest.state} for this key",
            expected="the tenant of a key",
            remedy="run the gate while nobody else uses the node, with keys that it accepts",
        )
    return names.pop()


async def _crowded(
    context: Context, api: Api, tenant: Tenant, others: list[str], parameters: QuotaParameters
) -> dict[str, Any]:
    places = tenant.slots + (tenant.allowed.max_waiting or 0)
    if places + parameters.surplus > parameters.most:
        return {"places": f"{places}, more than the profile fills"}
    async with gathered(api) as crowd:
        crowd.invite(places + parameters.surplus, held_body(context))
        await until(lambda: len(crowd.those("refused")) >= parameters.surplus, parameters.within)
        _require_tenant_limit(crowd, places, parameters.surplus)
        answered = await _others_go_on(context, tenant, others, parameters.within)
    return {"held": places, "refused": parameters.surplus} | answered


def _require_tenant_limit(crowd: Crowd, places: int, surplus: int) -> None:
    refused = crowd.those("refused")
    codes = sorted({str(guest.error) for guest in refused})
    expected = f"at most {places} in flight, the rest 429 tenant_limit"
    remedy = "one tenant can take the whole node: see tenants in kvops config show"
    require(
        crowd.in_flight <= places,
        observed=f"{crowd.in_flight} requests of one tenant in flight, {len(refused)} refused {codes}",
        expected=expected,
        remedy=remedy,
    )
    if len(refused) < surplus:
        inconclusive(
            f"{len(crowd.those('ended'))} requests ended before all places were taken",
            expected=expected,
            remedy="the model is too fast for this burst: set a larger surplus in the profile",
        )
    require(
        codes == ["tenant_limit"],
        observed=f"the surplus was refused with {codes}",
        expected=expected,
        remedy=remedy,
    )


async def _others_go_on(
    context: Context, tenant: Tenant, others: list[str], within: float
) -> dict[str, Any]:
    """A request of another tenant, while this one has all that it may have."""
    if not others or tenant.slots >= tenant.batch:
        return {}
    async with as_tenant(context, others[0]) as api, gathered(api) as crowd:
        (guest,) = crowd.invite(1, held_body(context))
        came = await until(lambda: guest.state != "sent", within)
    require(
        came and guest.error is None,
        observed=f"another tenant got {guest.error or 'no token'} while {tenant.name} is at its bound",
        expected="a token",
        remedy="a tenant at its bound holds up the others: report the defect",
    )
    return {"another tenant": "answered"}


async def _capped(
    context: Context, api: Api, tenant: Tenant, parameters: QuotaParameters
) -> dict[str, Any]:
    """More requests than may run: some wait, and never more run."""
    if tenant.slots + parameters.surplus > parameters.most:
        return {"max_running": f"{tenant.slots}, more than the profile fills"}
    most = 0
    async with gathered(api) as crowd:
        crowd.invite(tenant.slots + parameters.surplus, held_body(context))
        await until(lambda: len(crowd.those("streaming")) >= tenant.slots, parameters.within)
        for _ in range(LOOKS):
            usage = await _usage(context, tenant.name)
            most = max(most, usage.running if usage else 0)
            await pause()
    require(
        most <= tenant.slots,
        observed=f"{most} requests of {tenant.name} ran at once",
        expected=f"at most {tenant.slots}",
        remedy="max_running does not hold: report the defect",
    )
    return {"running at most": most}


async def _too_many_blocks(context: Context, api: Api, tenant: Tenant) -> dict[str, Any]:
    """A request that the tenant's quota can never hold."""
    assert context.node is not None
    usage, kv = await _usage(context, tenant.name), (await context.node.snapshot()).kv
    blocks = usage.kv_quota_blocks if usage else None
    limit = context.facts.max_model_len
    if blocks is None or not isinstance(kv, Known) or limit is None:
        return {"kv_quota": "not told in blocks"}
    tokens = (blocks + 1) * kv.value.block_size
    if tokens >= limit:
        return {"kv_quota": "more than one request can need"}
    prompt = await context.prompts.fit(tokens)
    reply = await api.post("/v1/completions", context.completion(prompt.text, 1))
    _require_quota(reply, blocks)
    return {"over kv_quota": status_and_code(reply)}


def _require_quota(reply: Reply, blocks: int) -> None:
    require(
        reply.status == 429 and reply.error.get("code") == "kv_quota",
        observed=f"a prompt over {blocks} blocks was answered {status_and_code(reply)}",
        expected="429 kv_quota",
        remedy="a tenant can hold more of the pool than its quota: report the defect",
    )


async def _usage(context: Context, name: str) -> TenantUsage | None:
    assert context.node is not None
    tenants = (await context.node.snapshot()).tenants
    rows = tenants.value if isinstance(tenants, Known) else ()
    return next((row for row in rows if row.tenant == name), None)


QUOTA = Check(
    id="claims.tenant_quota",
    title="Tenant bounds",
    purpose="A tenant at its bound is refused, within it served, and the others go on meanwhile.",
    parameters=QuotaParameters,
    run=tenant_quota,
    area="V5",
    typical=4.0,
    needs=("control plane", "idle node"),
)
