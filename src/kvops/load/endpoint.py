"""A node as a load run sees it: the URL, the model it serves and its limit, asked once before the first request."""

from __future__ import annotations

import http.client
from typing import Annotated, TypeVar

import msgspec

from kvops.errors import NodeProtocolError, NodeUnauthorized, NodeUnreachable
from kvops.load.client import Answer, Client, Timeouts

MAX_NAME = 512
"""Characters of a model's name."""

S = TypeVar("S", bound=msgspec.Struct)


class _Model(msgspec.Struct, frozen=True):
    id: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME)]
    max_model_len: Annotated[int, msgspec.Meta(ge=1)] | None = None


class _Listing(msgspec.Struct, frozen=True):
    data: list[_Model]


class _Error(msgspec.Struct, frozen=True):
    message: str = ""


class _Refusal(msgspec.Struct, frozen=True):
    error: _Error


class Endpoint(msgspec.Struct, frozen=True):
    client: Client
    model: str
    max_model_len: int | None
    """Longest prompt + output, tokens; None when the node does not say."""


def discover(url: str, api_key: str | None, timeouts: Timeouts | None = None) -> Endpoint:
    """Ask `GET /v1/models`. Raises NodeUnreachable, NodeUnauthorized, NodeProtocolError."""
    hint = "kvops node status lists what runs here"
    try:
        client = Client(url, api_key=api_key, timeouts=timeouts)
    except ValueError as error:
        raise NodeUnreachable(f"cannot reach {url}: {error}", hint=hint) from error
    try:
        answer = client.fetch("GET", "/v1/models")
    except (OSError, http.client.HTTPException, ValueError) as error:
        # Without its cause, whose words may hold the key.
        raise NodeUnreachable(
            f"cannot reach {url}: {client.clean(str(error))}", hint=hint
        ) from None
    if answer.status in (401, 403):
        raise NodeUnauthorized(
            f"{url} refuses the API key"
            if api_key
            else f"{url} asks for an API key, and none was given",
            hint="name the file that holds one: --api-key-file FILE",
        )
    model = _first_model(client, answer, url)
    return Endpoint(client, model.id, model.max_model_len)


def _first_model(client: Client, answer: Answer, url: str) -> _Model:
    if answer.status == 503:
        refusal = _decoded(answer, _Refusal)
        reason = client.clean(refusal.error.message) if refusal is not None else ""
        raise NodeUnreachable(
            f"{url} is not ready: {reason or 'HTTP 503'}", hint="kvops node status says when it is"
        )
    listing = _decoded(answer, _Listing)
    if answer.status != 200 or listing is None or not listing.data:
        raise NodeProtocolError(
            f"{url}/v1/models answered HTTP {answer.status} without a model", hint="is it ready?"
        )
    return listing.data[0]


def _decoded(answer: Answer, kind: type[S]) -> S | None:
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except (msgspec.DecodeError, RecursionError):
        return None
