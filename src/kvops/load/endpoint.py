"""A node as a load run sees it: the URL, the model it serves and its limit, asked once before the first request."""

from __future__ import annotations

import http.client
from typing import Any

import msgspec

from kvops.errors import NodeProtocolError, NodeUnauthorized, NodeUnreachable
from kvops.load.client import Answer, Client, Timeouts


class Endpoint(msgspec.Struct, frozen=True):
    client: Client
    model: str
    max_model_len: int | None
    """Longest prompt + output, tokens; None when the node does not say."""


def discover(url: str, api_key: str | None, timeouts: Timeouts | None = None) -> Endpoint:
    """Ask `GET /v1/models`. Raises NodeUnreachable, NodeUnauthorized, NodeProtocolError."""
    try:
        client = Client(url, api_key=api_key, timeouts=timeouts)
        answer = client.fetch("GET", "/v1/models")
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NodeUnreachable(
            f"cannot reach {url}: {error}", hint="kvops node status lists what runs here"
        ) from error
    if answer.status in (401, 403):
        raise NodeUnauthorized(
            f"{url} refuses the API key"
            if api_key
            else f"{url} asks for an API key, and none was given",
            hint="name the file that holds one: --api-key-file FILE",
        )
    model = _first_model(answer, url)
    limit = model.get("max_model_len")
    return Endpoint(client, str(model["id"]), limit if isinstance(limit, int) else None)


def _first_model(answer: Answer, url: str) -> dict[str, Any]:
    body = answer.json()
    if answer.status == 503:
        reason = body.get("error", {}).get("message") if isinstance(body, dict) else None
        raise NodeUnreachable(
            f"{url} is not ready: {reason or 'HTTP 503'}", hint="kvops node status says when it is"
        )
    models = body.get("data") if isinstance(body, dict) else None
    if (
        answer.status != 200
        or not models
        or not isinstance(models[0], dict)
        or "id" not in models[0]
    ):
        raise NodeProtocolError(
            f"{url}/v1/models answered HTTP {answer.status} without a model", hint="is it ready?"
        )
    found: dict[str, Any] = models[0]
    return found
