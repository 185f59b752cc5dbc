"""Does a tenant get what it was allowed and no more, and do the others go on meanwhile?"""

from __future__ import annotations

from typing import Any, NoReturn

import msgspec
from pydantic import Field

from kvops.telemetry.snapshot import Known, TenantUsage
from kvops.verify.api import Api, Reply
from kvops.verify.check import Check, Outcome, Parameters, inconclusive, require, skip
from kvops.verify.checks.claims import HELD_TOKENS, held_body
from kvops.verify.context import Context, pause
from kvops.verify.control import Claims, TenantClaims, claims
from kvops.verify.crowd import Crowd, Guest, gathered, until
from kvops.verify.judge import status_and_code
from kvops.verify.keys import as_tenant, tenant_keys
from kvops.verify.occupancy import wait_until

SHORTER = (256, 64, 16)
"""Tokens of answers that are asked for where the tenant's quota does not hold the longer ones."""
IDLE_WITHIN = 5.0
"""Seconds in which the requests that were let go of must be gone."""
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
    held: int
    """Tokens of an answer for which there is room in its quota."""


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
    batch = told.runtime.max_running or 1
    for key in keys:
        name = await _tenant_of(context, key)
        allowed = told.tenant(name)
        if allowed != TenantClaims():
            slots = min(batch, allowed.max_running or batch)
            held = await _held(context, name)
            return Tenant(name, key, allowed, slots, batch, held), [k for k in keys if k != key]
    return _no_bound(told)


async def _held(context: Context, name: str) -> int:
    quota = await _quota_tokens(context, name)
    return HELD_TOKENS if quota is None else max(1, min(HELD_TOKENS, quota // 2))


def _no_bound(told: Claims) -> NoReturn:
    named = f"; bounded are {', '.join(sorted(told.tenants)[:5])}" if told.tenants else ""
    skip(
        f"no tenant of the keys has a bound{named}",
        remedy="set tenants or tenant_defaults where tenants do not trust each other",
    )


async def _tenant_of(context: Context, key: str) -> str:
    """As the node's table of requests has it, while one with this key is in flight."""
    async with as_tenant(context, key) as api:
        for tokens in (HELD_TOKENS, *SHORTER):
            await wait_until(context, lambda now: not now.running + now.waiting, IDLE_WITHIN)
            async with gathered(api) as crowd:
                (guest,) = crowd.invite(1, held_body(context, tokens))
                names = await _tenants_in_flight(context, guest)
            if guest.error != "kv_quota":
                break
    if len(names) != 1:
        inconclusive(
            f"{len(names)} tenants have requests in flight, {guest.error or guest.state} for this key",
            expected="the tenant of a key",
            remedy="run the gate while nobody else uses the node, with keys that it accepts",
        )
    return names.pop()


async def _tenants_in_flight(context: Context, guest: Guest) -> set[str]:
    """Looked at until there is one, or the request is gone."""
    assert context.node is not None
    while guest.in_flight:
        rows = (await context.node.snapshot()).requests
        if isinstance(rows, Known) and rows.value:
            return {row.tenant for row in rows.value}
        await pause()
    return set()


async def _crowded(
    context: Context, api: Api, tenant: Tenant, others: list[str], parameters: QuotaParameters
) -> dict[str, Any]:
    places = tenant.slots + (tenant.allowed.max_waiting or 0)
    if places + parameters.surplus > parameters.most:
        return {"places": f"{places}, more than the profile fills"}
    async with gathered(api) as crowd:
        crowd.invite(places + parameters.surplus, held_body(context, tenant.held))
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
        (guest,) = crowd.invite(1, held_body(context, SHORTER[-1]))
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
        crowd.invite(tenant.slots + parameters.surplus, held_body(context, tenant.held))
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
    quota, limit = await _quota_tokens(context, tenant.name), context.facts.max_model_len
    if quota is None or limit is None:
        return {"kv_quota": "not told in blocks"}
    tokens = quota + SHORTER[-1]
    if tokens >= limit:
        return {"kv_quota": "more than one request can need"}
    prompt = await context.prompts.fit(tokens)
    reply = await api.post("/v1/completions", context.completion(prompt.text, 1))
    _require_quota(reply, quota)
    return {"over kv_quota": status_and_code(reply)}


async def _quota_tokens(context: Context, name: str) -> int | None:
    """Tokens that the tenant's blocks hold; None without a quota."""
    assert context.node is not None
    usage, kv = await _usage(context, name), (await context.node.snapshot()).kv
    blocks = usage.kv_quota_blocks if usage else None
    return blocks * kv.value.block_size if blocks is not None and isinstance(kv, Known) else None


def _require_quota(reply: Reply, tokens: int) -> None:
    require(
        reply.status == 429 and reply.error.get("code") == "kv_quota",
        observed=f"a prompt over {tokens} tokens was answered {status_and_code(reply)}",
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
