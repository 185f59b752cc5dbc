"""When requests are sent: in a closed loop by users that wait for their answers, in an open loop by a clock.

An open-loop schedule is fixed before the first request and never looks at an answer, so that a slow node cannot slow
down its own test (coordinated omission, Tene 2013).
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Iterator
from typing import Literal

import msgspec

from kvops.errors import UsageError
from kvops.load import trace

Kind = Literal["closed", "constant", "poisson", "gamma", "ramp", "burst", "trace"]
Unit = Literal["requests", "sessions"]
MAX_RATE = 10_000.0


class Shot(msgspec.Struct, frozen=True):
    """One request to be sent, or one session to be begun."""

    number: int
    """Counts all shots of the run, over all workers."""
    at: float | None = None
    """When to send it, seconds from the start of the schedule; None in a closed loop."""
    input_tokens: int | None = None
    """Wanted length of the prompt where a trace says it; else the scenario draws it."""
    output_tokens: int | None = None


class Pacing(msgspec.Struct, frozen=True, kw_only=True):
    kind: Kind = "closed"
    unit: Unit = "requests"
    """What comes at the rate and in bursts: a session is several requests, and only its first has a time."""
    rate: float | None = None
    """Of the unit a second, over all workers; of a ramp the first, of bursts that between them."""
    rate_end: float | None = None
    """Of a ramp: the last."""
    burstiness: float = 1.0
    """Of gamma arrivals: the shape of the gaps; 1 is Poisson, lower is burstier."""
    burst_size: int = 0
    burst_every: float = 0.0
    """Seconds from one burst to the next, and to the first."""
    trace: str = ""
    """Path of a CSV with the columns `time`, `input_tokens`, `output_tokens`."""
    max_in_flight: int = 1000
    """A shot that is due while so many are in flight is not sent and recorded as `client_saturated`."""

    @property
    def open(self) -> bool:
        return self.kind != "closed"

    @property
    def speed(self) -> str:
        """`2 sessions/s`, of a ramp both ends; empty without a rate."""
        if self.rate is None:
            return ""
        end = "" if self.rate_end is None else f" to {self.rate_end:g}"
        one = self.rate == 1 and not end
        return f"{self.rate:g}{end} {self.unit.removesuffix('s') if one else self.unit}/s"


def schedule(pacing: Pacing, seed: int, duration: float | None) -> Iterator[Shot]:
    """All shots before `duration` seconds, in order of time; the same ones for the same seed.

    The pacing has passed `check`. Raises UsageError for a trace that cannot be read.
    """
    if pacing.kind == "trace":
        shots: Iterator[Shot] = (
            Shot(number, row.time, row.input_tokens, row.output_tokens)
            for number, row in enumerate(trace.read(pacing.trace))
        )
    else:
        shots = (Shot(number, at) for number, at in enumerate(_times(pacing, seed, duration)))
    end = math.inf if duration is None else duration
    return itertools.takewhile(lambda shot: shot.at is not None and shot.at < end, shots)


def _times(pacing: Pacing, seed: int, duration: float | None) -> Iterator[float]:
    source, rate = random.Random(f"pacing {seed}"), pacing.rate or 0.0
    match pacing.kind:
        case "constant":
            return (number / rate for number in itertools.count())
        case "ramp":
            return _ramp(rate, pacing.rate_end or 0.0, duration or 0.0, source)
        case "burst":
            between = _renewals(source, 1.0, rate) if rate else iter(())
            return heapq.merge(between, _bursts(pacing.burst_size, pacing.burst_every))
        case "gamma":
            return _renewals(source, pacing.burstiness, rate)
        case _:
            return _renewals(source, 1.0, rate)


def _renewals(source: random.Random, shape: float, rate: float) -> Iterator[float]:
    """Times with gamma gaps of mean 1 / rate and coefficient of variation 1 / sqrt(shape)."""
    scale = 1 / (shape * rate)
    return itertools.accumulate(source.gammavariate(shape, scale) for _ in itertools.count())


def _ramp(first: float, last: float, duration: float, source: random.Random) -> Iterator[float]:
    """Poisson arrivals whose rate moves straight from `first` to `last`.

    Unit arrivals through the inverse of the mean count M(t) = first t + (last - first) t² / (2 duration)
    (inversion method, Çınlar 1975).
    """
    slope = (last - first) / duration
    whole = (first + last) / 2 * duration
    for count in _renewals(source, 1.0, 1.0):
        if count >= whole:
            return
        # The stable form of the quadratic's root: also right for a slope of 0.
        yield 2 * count / (first + math.sqrt(max(0.0, first * first + 2 * slope * count)))


def _bursts(size: int, every: float) -> Iterator[float]:
    return (number * every for number in itertools.count(1) for _ in range(size))


_NEEDED = {
    "constant": ("rate",), "poisson": ("rate",), "gamma": ("rate",), "ramp": ("rate", "rate_end"),
    "burst": ("burst_size", "burst_every"), "trace": ("trace",),
}  # fmt: skip
_ALLOWED = {"gamma": ("burstiness",), "burst": ("rate",)}
_BOUNDS: dict[str, tuple[float, float]] = {
    "rate": (0.001, MAX_RATE), "rate_end": (0.001, MAX_RATE), "burstiness": (0.01, 1000), "burst_size": (1, 100_000),
    "burst_every": (0.1, 86_400), "max_in_flight": (1, 100_000),
}  # fmt: skip
_EXAMPLES = {"rate": "2", "rate_end": "8", "burst_size": "20", "burst_every": "30s", "trace": "FILE"}  # fmt: skip
_UNSET = Pacing()


def check(pacing: Pacing, duration: float | None) -> None:
    """Raises UsageError for settings that do not go together, are missing or are out of bounds."""
    wanted = _NEEDED.get(pacing.kind, ())
    given = [name for name in _SETTINGS if getattr(pacing, name) != getattr(_UNSET, name)]
    stray = [name for name in given if name not in (*wanted, *_ALLOWED.get(pacing.kind, ()))]
    missing = [name for name in wanted if name not in given]
    if stray:
        raise UsageError(_stray(pacing.kind, stray[0]), hint=_homes(stray[0]))
    if missing:
        flags = " ".join(f"{flag(name)} {_EXAMPLES[name]}" for name in missing)
        raise UsageError(
            f"--arrivals {pacing.kind} needs {flag(missing[0])}", hint=f"for example {flags}"
        )
    for name in (*given, "max_in_flight"):
        _check_bounds(name, getattr(pacing, name))
    if pacing.open and pacing.kind != "trace" and duration is None:
        raise UsageError(f"--arrivals {pacing.kind} has no end", hint="give one: --duration 60s")


_SETTINGS = ("rate", "rate_end", "burstiness", "burst_size", "burst_every", "trace")


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _check_bounds(name: str, value: float | str) -> None:
    if name not in _BOUNDS:
        return
    low, high = _BOUNDS[name]
    if not low <= float(value) <= high:  # also refuses what is not a number
        raise UsageError(
            f"{flag(name)} {value:g} is out of bounds" if isinstance(value, float) else
            f"{flag(name)} {value} is out of bounds",
            hint=f"{flag(name)} takes {low:g} to {high:g}",
        )  # fmt: skip


def _stray(kind: Kind, name: str) -> str:
    what = "users that wait for their answers" if kind == "closed" else f"--arrivals {kind}"
    return f"{flag(name)} does not go with {what}"


def _homes(name: str) -> str:
    kinds = [kind for kind in _NEEDED if name in _NEEDED[kind] or name in _ALLOWED.get(kind, ())]
    return f"it belongs to --arrivals {' or '.join(kinds)}"
