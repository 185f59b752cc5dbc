"""A node of this machine as the target of a command: found by its name, spoken to through its control plane."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from kvops.errors import NodeNotFound
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
    """With those that do run, else how to start one."""
    from kvops import registry
    from kvops.errors import NodeNotFound

    names = ", ".join(record.name for record in registry.running())
    start = "start one: kvops node start --detach"
    return NodeNotFound(what, hint=f"those that run: {names}" if names else start)


def call(
    record: NodeRecord,
    method: str,
    path: str,
    body: dict[str, Any] | None = None,
    *,
    patience: float = 10,
) -> dict[str, Any]:
    """One call to a local control plane, whose answer may take `patience` seconds.

    Raises NodeUnreachable, NodeProtocolError.
    """
    import httpx

    from kvops import registry
    from kvops.errors import NodeProtocolError, NodeUnreachable

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
        raise NodeProtocolError(
            f"{record.name} answered {answer.status_code}: {said['error']['message']}",
            hint=f"see kvops node logs --node {record.name}",
        )
    return said
