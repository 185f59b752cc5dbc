"""A node of this machine as the target of a command: found by its name, spoken to through its control plane."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from kvops.errors import KvopsError, NodeNotFound
    from kvops.registry import NodeRecord

NodeOption = Annotated[
    str | None,
    typer.Option(
        "--node", metavar="NAME", help="Name of a node; default: the only one that runs here."
    ),
]


def find(node: str | None) -> NodeRecord:
    """The node named, or the only one. Raises NodeNotFound, UsageError."""
    from kvops import registry

    record = registry.the_only_one() if node is None else registry.read(node)
    if record is None or not record.alive():
        raise nothing_runs(f"no node {node!r} runs on this machine")
    return record


def nothing_runs(what: str) -> NodeNotFound:
    from kvops import registry

    return registry.nothing_found(what)


def call(
    record: NodeRecord,
    method: str,
    path: str,
    body: dict[str, Any] | None = None,
    *,
    patience: float = 10,
) -> dict[str, Any]:
    """One call to a local control plane, whose answer may take `patience` seconds.

    Raises NodeUnreachable, what the node refuses with as it was meant, and NodeProtocolError for any other answer.
    """
    import httpx

    from kvops import registry
    from kvops.errors import NodeUnreachable

    try:
        token = registry.token_file(record.name).read_text().strip()
        answer = httpx.request(
            method,
            record.control_url + path,
            headers={"Authorization": f"Bearer {token}"},
            json=body,
            timeout=patience,
            trust_env=False,
        )
        said: dict[str, Any] = answer.json()
    except (OSError, httpx.HTTPError, ValueError) as error:
        raise NodeUnreachable(
            f"{record.name} does not answer at {record.control_url}: {type(error).__name__}",
            hint=f"see kvops node logs --node {record.name}",
        ) from None
    if not answer.is_success:
        raise _refusal(record, answer.status_code, said)
    return said


def _refusal(record: NodeRecord, status: int, said: Any) -> KvopsError:
    """A route that is not there is no refusal: the node is of another version."""
    from kvops.errors import MethodNotAllowed, NodeProtocolError, RouteUnknown, refusal

    error = said.get("error") if isinstance(said, dict) else None
    refused = refusal(error)
    if refused is not None and not isinstance(refused, RouteUnknown | MethodNotAllowed):
        return refused
    words = refused.message if refused is not None else str(error)[:200]
    return NodeProtocolError(
        f"{record.name} answered {status}: {words}",
        hint=f"see kvops node logs --node {record.name}",
    )
