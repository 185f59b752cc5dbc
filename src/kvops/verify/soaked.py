"""A steady load for a while, with the node watched meanwhile: sent once, for all checks of drift and growth."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
from pydantic import Field

from kvops.load.records import RequestRecord
from kvops.load.reports.base import RunData
from kvops.verify.check import Parameters
from kvops.verify.context import Context
from kvops.verify.driven import drive, trusted
from kvops.verify.timing import once
from kvops.verify.watch import Readings, levels, look, watched

SCENARIO = "soak"


class SoakParameters(Parameters):
    """Alike for all checks that look at the soak, so that it is sent once."""

    users: int = Field(default=4, ge=1, le=10_000)
    seconds: float = Field(default=15.0, ge=5)
    """At most."""
    requests: int = Field(default=120, ge=100)
    """With so many answers it ends early, though not before `least_seconds`."""
    least_seconds: float = Field(default=8.0, ge=5)
    prompt_tokens: int = Field(default=64, ge=16)
    max_tokens: int = Field(default=16, ge=4)


class Soaked(msgspec.Struct, frozen=True):
    data: RunData
    readings: Readings
    idle: dict[str, float]
    """Readings before it, while nothing ran; empty where the node shows none."""


async def soaked(context: Context, parameters: SoakParameters) -> Soaked:
    """Sends the load, or gives that of an earlier check."""
    return await once(
        context, ("soak", parameters_key(parameters)), lambda: soak(context, parameters)
    )


def parameters_key(p: SoakParameters) -> tuple[float, ...]:
    return (p.users, p.seconds, p.requests, p.least_seconds, p.prompt_tokens, p.max_tokens)


async def soak(context: Context, parameters: SoakParameters) -> Soaked:
    p = parameters
    started = time.monotonic()

    def enough(records: Sequence[RequestRecord]) -> bool:
        return len(records) >= p.requests and time.monotonic() - started >= p.least_seconds

    options = {"prompt_tokens": str(p.prompt_tokens), "max_tokens": str(p.max_tokens)}
    page = await look(context)
    async with watched(context) as readings:
        data = await drive(
            context, SCENARIO, users=p.users, duration=p.seconds, options=options, enough=enough
        )
    return Soaked(trusted(data), readings, {} if page is None else levels(page))
