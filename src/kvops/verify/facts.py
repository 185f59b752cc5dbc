"""What a node says about itself before the checks begin. What it does not say stays None."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec

from kvops.errors import NodeError, NodeProtocolError, NodeUnauthorized, NodeUnreachable
from kvops.telemetry import prometheus
from kvops.telemetry.clients.base import NodeClient
from kvops.telemetry.snapshot import Known, NodeSnapshot
from kvops.verify.api import Api, Reply, token_count

_PREFIXES = {"kvops_": "kvops", "vllm:": "vllm", "sglang:": "sglang", "llamacpp:": "llamacpp"}
_PROBE_TIMEOUT = 5.0


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    engine: str | None = None
    engine_version: str | None = None
    model: str | None = None
    revision: str | None = None
    max_model_len: int | None = None
    kv_dtype: str | None = None
    config_hash: str | None = None
    gpus: tuple[str, ...] = ()


async def discover(api: Api, node: NodeClient | None) -> Facts:
    """Ask `/v1/models`, the control plane and `/metrics`; what does not answer in time is left out.

    Raises NodeUnreachable when no node answers, NodeUnauthorized when the API key is refused.
    """
    listing = await _listing(api)
    if listing is not None and listing.status in (401, 403):
        raise NodeUnauthorized(
            "the node refuses the API key"
            if api.sends_key
            else "the node asks for an API key, and none was given",
            hint="name the file that holds one: --api-key-file FILE",
        )
    model = first_model(listing) if listing is not None else {}
    snapshot = await _snapshot(node)
    page = await _metrics(api)
    if listing is not None and not _is_node(listing, snapshot, page):
        raise NodeUnreachable(
            f"what answers there is no inference node: /v1/models gave HTTP {listing.status} without a list",
            hint="check the address: kvops node status lists what runs here",
        )
    limit = model.get("max_model_len")
    facts = Facts(
        engine=_engine(snapshot, model, page),
        engine_version=page.labels("kvops_build_info").get("version") if page else None,
        model=_text(model.get("id")),
        max_model_len=token_count(limit) or None,
    )
    return facts if snapshot is None else _from_snapshot(facts, snapshot)


def first_model(listing: Reply) -> dict[str, Any]:
    """The first entry of a `/v1/models` answer; empty when there is none."""
    data = listing.body.get("data")
    first = data[0] if isinstance(data, list) and data else {}
    return first if isinstance(first, dict) else {}


async def _listing(api: Api) -> Reply | None:
    """None from a node that is too slow; who hangs up or speaks no HTTP is none."""
    try:
        return await api.get("/v1/models", within=_PROBE_TIMEOUT)
    except (httpx.ReadTimeout, httpx.WriteTimeout, httpx.PoolTimeout, NodeProtocolError):
        return None
    except (httpx.TransportError, httpx.InvalidURL) as error:
        raise NodeUnreachable(
            f"no HTTP answer there: {error or type(error).__name__}",
            hint="is the node running? kvops node status",
        ) from None


def _is_node(
    listing: Reply, snapshot: NodeSnapshot | None, page: prometheus.Exposition | None
) -> bool:
    """It lists models, or says in an error object why not, or is known by what else it shows."""
    speaks = isinstance(listing.body.get("data"), list) or bool(listing.error)
    return speaks or _engine(snapshot, {}, page) is not None


async def _ask(api: Api, path: str) -> Reply | None:
    try:
        return await api.get(path, within=_PROBE_TIMEOUT)
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise NodeUnreachable(
            f"nothing answers there: {error}", hint="is the node running? kvops node status"
        ) from None
    except (httpx.HTTPError, NodeProtocolError):
        return None


async def _snapshot(node: NodeClient | None) -> NodeSnapshot | None:
    try:
        return await node.snapshot() if node is not None else None
    except NodeError:
        return None


async def _metrics(api: Api) -> prometheus.Exposition | None:
    reply = await _ask(api, "/metrics")
    try:
        return prometheus.parse(reply.text) if reply is not None and reply.status == 200 else None
    except NodeProtocolError:
        return None


def _engine(
    snapshot: NodeSnapshot | None, model: dict[str, Any], page: prometheus.Exposition | None
) -> str | None:
    if snapshot is not None:
        return snapshot.engine
    if model.get("owned_by") in _PREFIXES.values():
        return str(model["owned_by"])
    names = page.types if page is not None else {}
    return next((e for p, e in _PREFIXES.items() if any(n.startswith(p) for n in names)), None)


def _from_snapshot(facts: Facts, snapshot: NodeSnapshot) -> Facts:
    config, gpus = snapshot.config_hash, snapshot.gpus
    facts = msgspec.structs.replace(
        facts,
        engine_version=snapshot.engine_version,
        config_hash=config.value if isinstance(config, Known) else None,
        gpus=tuple(gpu.name for gpu in gpus.value) if isinstance(gpus, Known) else (),
    )
    if not isinstance(snapshot.model, Known):
        return facts
    model = snapshot.model.value
    return msgspec.structs.replace(facts, revision=model.revision, kv_dtype=model.kv_dtype)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
