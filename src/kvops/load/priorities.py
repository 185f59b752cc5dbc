"""Whether a node takes the `priority` field of kvops: other engines have none, or another one of that name."""

from __future__ import annotations

import http.client

from kvops.load.client import Client


def takes(client: Client, model: str, priority: str) -> bool:
    """Asks for one token with it."""
    body = {"model": model, "prompt": "Hello", "max_tokens": 1, "priority": priority}
    try:
        return client.fetch("POST", "/v1/completions", body, timeout=60).status == 200
    except (OSError, http.client.HTTPException, ValueError):
        return False


def fields(client: Client, model: str, priority: str | None) -> dict[str, str]:
    """For the body of a request: nothing where the node would refuse it."""
    return {"priority": priority} if priority and takes(client, model, priority) else {}
