"""Is there any path, method or spelling that gets past the keys? Also those by which other engines were left open."""

from __future__ import annotations

from typing import Literal

import httpx
import msgspec

from kvops.verify.api import Api, Reply
from kvops.verify.check import Check, Outcome, Parameters, fail, require, skip
from kvops.verify.checks.auth import is_loopback
from kvops.verify.context import Context

INFERENCE = ("/v1/completions", "/v1/chat/completions", "/v1/tokenize", "/v1/models")
"""Routes of which each spelling is tried."""
FOREIGN_INFERENCE = (
    "/invocations", "/generate", "/generate_stream", "/completion", "/completions", "/chat/completions", "/infill",
    "/v1/embeddings", "/embeddings", "/v1/responses", "/v1/messages", "/v1/rerank", "/rerank", "/v1/score", "/score",
    "/pooling", "/classify", "/encode", "/tokenize", "/detokenize", "/apply-template", "/chat_tokenize",
    "/api/generate", "/api/chat", "/inference/v1/generate", "/v2/models",
)  # fmt: skip
OPERATING = (
    "/server_info", "/get_server_info", "/get_model_info", "/slots", "/props", "/lora-adapters", "/models/load",
    "/start_profile", "/stop_profile", "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/collective_rpc",
    "/update_weights", "/update_weights_from_disk", "/init_weights_update_group", "/flush_cache", "/reset_prefix_cache",
    "/sleep", "/wake_up", "/pause", "/resume", "/abort_requests", "/abort_request", "/scale_elastic_ep",
    "/release_memory_occupation", "/configure_logging", "/set_internal_state", "/open_session", "/api/pull",
    "/api/delete", "/control/snapshot", "/control/shutdown", "/control/config",
)  # fmt: skip
"""They act or tell, so they are only knocked at: a method they do not take, or a body that cannot be read."""
REFUSED = (401, 403, 404)
OTHER_METHODS = ("GET", "HEAD", "OPTIONS", "PUT", "DELETE")
BROKEN = b'{"broken": '
Kind = Literal["inference", "knock"]


class Knock(msgspec.Struct, frozen=True):
    method: str
    target: str
    body: bytes | None = None

    @property
    def name(self) -> str:
        return f"{self.method} {self.target}"


def spellings(path: str) -> list[str]:
    """Other ways to write a path, by each of which some guard was passed."""
    return [
        path,
        f"/{path}",
        path.upper(),
        f"{path}/",
        f"/.{path}",
        f"/health/..{path}",
        f"/metrics/..{path}",
        path.replace("/v1/", "/v1%2f"),
        path.replace("/v1/", "/%761/"),
        f"{path}?key=",
        f"{path};.css",
        f"{path}%00",
    ]


def knocks(model: str) -> list[Knock]:
    """Every request that is sent without a key. None of them acts on a node, whatever it answers."""
    good = msgspec.json.encode(
        {"model": model, "prompt": "Hello", "inputs": "Hello", "text": "Hello", "max_tokens": 1}
    )
    chat = msgspec.json.encode(
        {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
    )
    found = []
    for path in INFERENCE:
        body = None if path == "/v1/models" else chat if "chat" in path else _tokens(path, model)
        method = "GET" if body is None else "POST"
        found += [Knock(method, target, body) for target in spellings(path)]
        found += [Knock(other, path) for other in OTHER_METHODS if other != method]
    found += [Knock("POST", path, good) for path in FOREIGN_INFERENCE]
    for path in OPERATING:
        found += [Knock(method, path) for method in ("GET", "HEAD", "OPTIONS")]
        found.append(Knock("POST", path, BROKEN))
    return found


def _tokens(path: str, model: str) -> bytes:
    body = {"model": model, "prompt": "Hello"}
    return msgspec.json.encode(body if path.endswith("tokenize") else body | {"max_tokens": 1})


async def routes(context: Context, parameters: Parameters) -> Outcome:
    keyed = (await context.api.get("/v1/models", keyed=False)).status in (401, 403)
    if not keyed and not context.is_kvops:
        skip("no keys are in force, so every route is open", remedy="see auth.default_deny")
    if not keyed and not is_loopback(context.target.url):
        fail(
            observed="answers anyone on the network without a key",
            expected="401 without a key",
            remedy="set server.api_keys_file, or bind to 127.0.0.1",
        )
    own = () if keyed else INFERENCE
    asked = [knock for knock in knocks(context.model) if not _allowed(knock, own)]
    open_to = await _open(context.api, asked)
    require(
        not open_to,
        observed=f"without a key: {', '.join(list(open_to)[:4])}",
        expected="401, 403 or 404 for every path, method and spelling",
        remedy="shut these paths at the gateway and take the node off the network until it refuses them",
        n=len(asked),
        routes=open_to,
    )
    paths = len({knock.target for knock in asked})
    guarded = "" if keyed else "; no keys, so its own routes are open on loopback"
    return Outcome(
        verdict="pass",
        observed=f"{len(asked)} requests to {paths} paths without a key: none let in{guarded}",
        expected="401, 403 or 404 for every path, method and spelling",
        n=len(asked),
        evidence={"requests": len(asked), "paths": paths, "keys_configured": keyed},
    )


def _allowed(knock: Knock, own: tuple[str, ...]) -> bool:
    """Without keys a node's own routes are open, under whatever spelling its router takes for them."""
    return any(knock.target.startswith(path) for path in own)


async def _open(api: Api, asked: list[Knock]) -> dict[str, int]:
    """Requests that were answered by something else than the guard, with the status of each."""
    found = {}
    for knock in asked:
        try:
            reply = await api.request(
                knock.method, "/", target=knock.target, content=knock.body, keyed=False
            )
        except httpx.RemoteProtocolError:
            continue  # Hung up on a path that it cannot read: nothing was let in.
        if is_open(knock, reply):
            found[knock.name] = reply.status
    return found


def is_open(knock: Knock, reply: Reply) -> bool:
    """Whether more than a guard has looked at the request.

    A 405, or a 400 or 422 about the body, is given by a route: who sends it what it wants gets in. A redirect only
    says another spelling, and is judged there. A 400 about an odd path comes from the server before the guard, and
    an answer to OPTIONS (CORS) lets nobody in, unless it tells something.
    """
    if knock.method == "OPTIONS":
        return 200 <= reply.status < 300 and bool(reply.body)
    if reply.status in REFUSED or 300 <= reply.status < 400:
        return False
    if reply.status == 400 and ("%" in knock.target or "//" in knock.target):
        return False
    return reply.status < 500 or reply.status == 503


ROUTES = Check(
    id="auth.routes",
    title="No way round the keys",
    purpose="Without a key no path, method or spelling gets past the guard, incl. known leaks of other engines.",
    parameters=Parameters,
    run=routes,
    area="V2",
    typical=2.0,
)
