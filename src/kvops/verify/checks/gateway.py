"""Is the node reachable by the name that clients use, through the gateway before it?"""

from __future__ import annotations

import asyncio
import os
import socket
from urllib.parse import urlsplit

import httpx
import msgspec
from pydantic import Field

from kvops.errors import UsageError
from kvops.registry import check_url
from kvops.units import format_duration
from kvops.verify.api import Api
from kvops.verify.check import Check, Outcome, Parameters, fail, require, skip
from kvops.verify.context import Context
from kvops.verify.judge import answered, status_and_code

VARIABLE = "KVOPS_GATEWAY_URL"


class GatewayParameters(Parameters):
    url: str | None = None
    """http(s)://NAME[:PORT][/PATH] that clients use; default: KVOPS_GATEWAY_URL."""
    answer_within: float = Field(default=30.0, gt=0)
    """Seconds for one token through the gateway."""


async def gateway(context: Context, parameters: GatewayParameters) -> Outcome:
    url = parameters.url or os.environ.get(VARIABLE)
    if not url:
        skip(
            "no gateway is named",
            remedy=f"set {VARIABLE}, or url in the profile, to the address that clients use",
        )
    try:
        url = check_url(url)
    except UsageError as error:
        skip(error.message, remedy=f"mend {VARIABLE} or the profile: {error.hint}")
    addresses = await _resolved(url)
    api = Api(msgspec.structs.replace(context.target, url=url))
    try:
        took = await _through(context, api, parameters.answer_within)
    finally:
        context.api.refusals.extend(api.refusals)
        await api.aclose()
    host = urlsplit(url).hostname
    return Outcome(
        verdict="pass",
        observed=f"{host} leads to {context.model}; a token in {format_duration(took)}",
        expected=f"the model by its public name, a token within {parameters.answer_within:g} s",
        n=2,
        evidence={"host": host, "addresses": addresses, "token_seconds": round(took, 4)},
    )


async def _resolved(url: str) -> list[str]:
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        fail(
            observed=f"the name {host} is not known: {error.strerror or error}",
            expected="a name that resolves",
            remedy="mend the DNS entry or hosts file that clients use",
        )
    return sorted({str(entry[4][0]) for entry in found})


async def _through(context: Context, api: Api, within: float) -> float:
    try:
        listing = await api.get("/v1/models", within=within)
        _require_this_model(context, listing.status, _ids(listing.body), status_and_code(listing))
        body = context.completion("Hello", 1)
        reply = await api.post("/v1/completions", body, within=within)
    except httpx.TimeoutException:
        fail(
            observed=f"no answer through the gateway within {format_duration(within)}",
            expected="a token",
            remedy="does the gateway find the node? Look at its own log and health page",
        )
    except httpx.TransportError as error:
        fail(
            observed=f"the gateway cannot be reached: {type(error).__name__} {error}"[:200],
            expected="a connection",
            remedy="is it running, its port open, its certificate one that clients trust (SSL_CERT_FILE)?",
        )
    return answered(reply, "a token through the gateway").seconds


def _ids(body: dict[str, object]) -> list[str]:
    data = body.get("data")
    rows = data if isinstance(data, list) else []
    return [str(row.get("id")) for row in rows if isinstance(row, dict)]


def _require_this_model(context: Context, status: int, ids: list[str], spelled: str) -> None:
    require(
        status == 200,
        observed=f"/v1/models through the gateway: {spelled}",
        expected="200",
        remedy="is this node in the gateway's pool, and does the gateway take the same key?",
    )
    require(
        context.model in ids,
        observed=f"the gateway serves {', '.join(ids[:4]) or 'no model'}",
        expected=context.model,
        remedy="the gateway's name leads to other nodes: mend its routes",
    )


GATEWAY = Check(
    id="reach.gateway",
    title="By its public name",
    purpose="The name that clients use leads through the gateway to this model, and a token comes back.",
    parameters=GatewayParameters,
    run=gateway,
    area="V1",
)
