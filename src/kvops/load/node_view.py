"""A blocking look at a node's snapshot, for run.json and for scenarios; works under gevent too."""

from __future__ import annotations

import http.client

from kvops.load.client import Client
from kvops.telemetry.snapshot import Known, NodeSnapshot, decode_snapshot


def snapshot(control_url: str | None, token: str | None) -> NodeSnapshot | None:
    """None when the node has no control plane, refuses the token or does not answer."""
    if control_url is None:
        return None
    try:
        answer = Client(control_url, api_key=token).fetch("GET", "/control/snapshot", timeout=5)
        return decode_snapshot(answer.body) if answer.status == 200 else None
    except (OSError, http.client.HTTPException, RecursionError, ValueError):
        return None


def steps(control_url: str | None, token: str | None) -> int | None:
    """Steps the engine has finished since start; None when that is not known."""
    seen = snapshot(control_url, token)
    return (
        seen.progress.value.steps if seen is not None and isinstance(seen.progress, Known) else None
    )
