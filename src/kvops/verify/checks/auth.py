"""Is everything refused that was not allowed? Walks the routes without a key, and the control plane without a token."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from kvops.telemetry.targets import Target
from kvops.verify.api import Api, Reply
from kvops.verify.check import Check, Outcome, Parameters, require, skip, warn
from kvops.verify.context import Context

KEYED_ROUTES = (
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/tokenize",
    "/invocations",
    "/generate",
)
"""Inference under every name that engines have had for it: a guard by path prefix misses some."""


async def default_deny(context: Context, parameters: Parameters) -> Outcome:
    control = await _control_plane(context)
    leaks = await _open_routes(context)
    keyed = (await context.api.get("/v1/models", keyed=False)).status in (401, 403)
    if keyed:
        require(
            not leaks,
            observed=f"answered without a key: {', '.join(leaks)}",
            expected="401 on every inference route",
            remedy="take the node off the network: its key check has a hole",
            leaks=leaks,
        )
        data = "data plane shut"
    elif is_loopback(context.target.url):
        data = "no keys, but loopback only"
        if control is None:
            skip(f"{data}, and no control plane is known", remedy="add keys: server.api_keys_file")
    else:
        _open_to_the_network(context)
    return Outcome(
        verdict="pass",
        observed=f"{data}; {control or 'control plane not known'}",
        expected="401 without a key or token",
        n=len(KEYED_ROUTES) + 1,
        evidence={"keys_configured": keyed, "control_plane_checked": control is not None},
    )


def _open_to_the_network(context: Context) -> None:
    observed = "answers anyone on the network without a key"
    remedy = "set server.api_keys_file, or bind to 127.0.0.1"
    if not context.is_kvops:
        warn(observed=observed, expected="401 without a key", remedy=remedy)
    require(False, observed=observed, expected="401 without a key", remedy=remedy)


async def _open_routes(context: Context) -> list[str]:
    """Inference routes that give an answer without a key."""
    body = context.completion("Hello", 1) | {"messages": [{"role": "user", "content": "Hello"}]}
    found = []
    for path in KEYED_ROUTES:
        sent = body if path == "/invocations" else _fitting(body, path)
        reply = await context.api.post(path, sent, keyed=False)
        if 200 <= reply.status < 300:
            found.append(path)
    return found


def _fitting(body: dict[str, object], path: str) -> dict[str, object]:
    wrong = "prompt" if path.startswith("/v1/chat") else "messages"
    kept = ("model", "prompt") if path == "/v1/tokenize" else tuple(body)
    return {name: value for name, value in body.items() if name in kept and name != wrong}


async def _control_plane(context: Context) -> str | None:
    """What was found, in words; None when no control plane is known. Raises a Finding for a hole."""
    url, token = context.target.control_url, context.target.token
    if url is None:
        return None
    attempts = {
        "without a token": {},
        "with a wrong token": {"Authorization": "Bearer wrong"},
    }
    if token:
        own = {"Authorization": f"Bearer {token}"}
        attempts["from a web page (Origin)"] = own | {"Origin": "http://evil.example"}
        attempts["under a foreign Host"] = own | {"Host": "evil.example"}
    api = Api(Target(name=context.target.name, url=url))
    try:
        replies = {
            name: await api.get("/control/snapshot", headers=h) for name, h in attempts.items()
        }
    finally:
        await api.aclose()
    _require_refused(replies)
    exposed = await context.api.get("/control/snapshot")
    require(
        exposed.status == 404,
        observed=f"the data plane answers /control/snapshot with {exposed.status}",
        expected="404",
        remedy="the control plane must have a listener of its own",
    )
    return f"control plane refused {len(replies)} wrong ways in"


def _require_refused(replies: dict[str, Reply]) -> None:
    for name, reply in replies.items():
        require(
            400 <= reply.status < 500,
            observed=f"the control plane answers {name}: {reply.status}",
            expected="401" if "token" in name else "403 or another 4xx",
            remedy="stop the node: anyone who reaches this port controls it",
        )


def is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


DEFAULT_DENY = Check(
    id="auth.default_deny",
    title="Default deny",
    purpose="Without a key no inference route answers, and without the token nothing on the control plane.",
    parameters=Parameters,
    run=default_deny,
    area="V2",
)
