"""Is every route of the control plane shut to those without its token, to web pages, and to foreign names?"""

from __future__ import annotations

import msgspec

from kvops.telemetry.targets import Target
from kvops.verify.api import Api
from kvops.verify.check import Check, Outcome, Parameters, require, skip
from kvops.verify.context import Context

READS = (
    "/control/snapshot", "/control/requests", "/control/kv/map", "/control/config", "/control/alerts",
    "/control/quarantine",
)  # fmt: skip
STREAMS = ("/control/stream",)
"""Open, they never end: only knocked at."""
ACTS = (
    "/control/drain", "/control/resume", "/control/cancel", "/control/flush", "/control/warmup", "/control/shutdown",
    "/control/reload", "/control/rollback", "/control/alerts/silence", "/control/alerts/ack", "/control/drill",
    "/control/quarantine/clear",
)  # fmt: skip
"""Knocked at by GET, which none of them takes: who is let in so far could as well have acted."""
SHUT = (401, 403, 404)
WAYS: dict[str, dict[str, str]] = {
    "without a token": {},
    "with a wrong token": {"Authorization": "Bearer wrong"},
    "with an empty token": {"Authorization": "Bearer"},
}


class Way(msgspec.Struct, frozen=True):
    name: str
    path: str
    headers: dict[str, str]


async def control(context: Context, parameters: Parameters) -> Outcome:
    url, token = context.target.control_url, context.target.token
    if url is None:
        skip("no control plane is known", remedy="name it with --control-url and --token-file")
    ways = _ways(token)
    api = Api(Target(name=context.target.name, url=url))
    try:
        let_in = await _let_in(api, ways)
    finally:
        await api.aclose()
    require(
        not let_in,
        observed="; ".join(f"{name}: {status}" for name, status in list(let_in.items())[:4]),
        expected="401 or 403",
        remedy="stop the node: anyone who reaches this port controls it",
        n=len(ways),
        let_in=let_in,
    )
    await _require_apart(context)
    skipped = "" if token else "; Host and Origin not tried: no token is known"
    return Outcome(
        verdict="pass",
        observed=f"{len(ways)} wrong ways in refused on {len({way.path for way in ways})} routes{skipped}",
        expected="401 or 403",
        n=len(ways),
        evidence={"ways": len(ways), "token_known": token is not None},
    )


def _ways(token: str | None) -> list[Way]:
    paths = (*READS, *STREAMS, *ACTS)
    found = [Way(name, path, headers) for path in paths for name, headers in WAYS.items()]
    if token:
        own = {"Authorization": f"Bearer {token}"}
        foreign = {
            "from a web page": own | {"Origin": "http://evil.example"},
            "from another site": own | {"Sec-Fetch-Site": "cross-site"},
            "under a foreign Host": own | {"Host": "evil.example"},
        }
        found += [Way(name, path, headers) for path in READS for name, headers in foreign.items()]
    return found


async def _let_in(api: Api, ways: list[Way]) -> dict[str, int]:
    """Ways that got more than a refusal. A 405 is one: the guard had let it pass."""
    found = {}
    for way in ways:
        # HEAD of a stream ends at its head, where GET of one that is open would not.
        method = "HEAD" if way.path in STREAMS else "GET"
        reply = await api.request(method, way.path, headers=way.headers, keyed=False)
        if reply.status not in SHUT:
            found[f"{way.path} {way.name}"] = reply.status
    return found


async def _require_apart(context: Context) -> None:
    reply = await context.api.get(READS[0])
    require(
        reply.status == 404,
        observed=f"the data plane answers {READS[0]} with {reply.status}",
        expected="404",
        remedy="the control plane must have a listener of its own",
    )


CONTROL = Check(
    id="auth.control",
    title="Control plane shut",
    purpose="No route of the control plane answers without its token, to a web page, or under a foreign Host.",
    parameters=Parameters,
    run=control,
    area="V2",
    needs=("control plane",),
)
