"""When requests are sent: in a closed loop by users that wait for their answers, in an open loop by a clock.

An open-loop schedule is fixed before the first request and never looks at an answer, so that a slow node cannot slow
down its own test (coordinated omission, Tene 2013).
"""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["closed", "constant", "poisson", "gamma", "ramp", "burst", "trace"]


class Shot(msgspec.Struct, frozen=True):
    """One request to be sent."""

    number: int
    """Counts all requests of the run, over all workers."""
    at: float | None = None
    """When to send it, seconds from the start of the schedule; None in a closed loop."""
    input_tokens: int | None = None
    """Wanted length of the prompt where a trace says it; else the scenario draws it."""
    output_tokens: int | None = None


class Pacing(msgspec.Struct, frozen=True, kw_only=True):
    kind: Kind = "closed"
    rate: float | None = None
    """Requests a second, over all workers; of a ramp the first, of bursts that between them."""
    rate_end: float | None = None
    """Of a ramp: the last."""
    burstiness: float = 1.0
    """Of gamma arrivals: the shape of the gaps; 1 is Poisson, lower is burstier."""
    burst_size: int = 0
    burst_every: float = 0.0
    """Seconds from one burst to the next."""
    trace: str = ""
    """Path of a CSV with the columns `time`, `input_tokens`, `output_tokens`."""
    max_in_flight: int = 1000
    """A shot that is due while so many are in flight is not sent and recorded as `client_saturated`."""
