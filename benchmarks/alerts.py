"""How long it takes until an alert that fires is in a receiver's hands: a drill, end to end."""

from __future__ import annotations

from statistics import median

import httpx

from benchmarks.node import Node
from benchmarks.table import Row
from kvops.alerts.sink import Sink, open_sink

DRILLS = 5
BAR = 5.0


def drill_row(node: Node) -> Row:
    """The slowest of some drills, each from the request for it to the receiver that saw its nonce."""
    with open_sink() as sink:
        seconds = [_drill(node, sink) for _ in range(DRILLS)]
    return Row(
        what="alert drill, end to end",
        measured=f"{median(seconds):.2f} s median, {max(seconds):.2f} s slowest of {DRILLS}",
        against="a look at the rules every 2 s, then one webhook",
        value=max(seconds),
        bar=BAR,
        at_least=False,
        unit=" s",
    )


def _drill(node: Node, sink: Sink) -> float:
    """Seconds. Raises RuntimeError for a drill that did not arrive, httpx.HTTPError."""
    reply = httpx.post(
        node.control_url + "/control/drill",
        headers={"Authorization": f"Bearer {node.token}"},
        json={"sink": sink.url, "timeout": 30},
        timeout=60,
        trust_env=False,
    )
    reply.raise_for_status()
    outcome = reply.json()
    if not outcome["passed"] or outcome["nonce"] not in sink.seen:
        raise RuntimeError(f"the drill did not arrive: {outcome['channels']}")
    return max(float(row["seconds"]) for row in outcome["channels"])
