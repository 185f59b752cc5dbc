"""From what a user types (`--rate`, `--arrivals` …) and a scenario's defaults to the pacing of a run."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, NoReturn, get_args

import msgspec

from kvops.errors import UsageError
from kvops.load import pacing, trace
from kvops.load.pacing import Kind, Pacing
from kvops.load.scenarios import Scenario
from kvops.units import parse_duration

_DRAWN_AT_A_RATE = ("constant", "poisson", "gamma", "ramp", "burst")


def combined(scenario: Scenario, duration: float | None, **given: Any) -> Pacing:
    """`given`: the fields of a Pacing as typed, None where left out.

    A rate without a kind of arrivals is Poisson. Raises UsageError.
    """
    typed = {name: value for name, value in given.items() if value is not None}
    base = scenario.pacing or Pacing()
    if typed and scenario.pacing is None:
        refuse(scenario)
    kind = _kind(typed, base)
    if kind != base.kind:
        base = Pacing()  # the defaults of one kind of arrivals mean nothing to another
    if "burst_every" in typed:
        typed["burst_every"] = _seconds(typed["burst_every"])
    if "trace" in typed:
        typed["trace"] = str(Path(typed["trace"]).expanduser().absolute())
    made = msgspec.structs.replace(base, **typed | {"kind": kind})
    pacing.check(made, duration)
    if made.kind == "trace":
        trace.read(made.trace)  # its faults are known before the run
    return made


def refuse(scenario: Scenario) -> NoReturn:
    """Raises UsageError."""
    raise UsageError(
        f"{scenario.name} decides itself when to send: it takes no --rate and no --arrivals",
        hint="kvops load list names the scenarios that do",
    )


def _kind(typed: dict[str, Any], base: Pacing) -> Any:
    if "kind" in typed:
        return _known(typed["kind"])
    if "trace" in typed:
        return "trace"
    if "rate" in typed and base.kind not in _DRAWN_AT_A_RATE:
        return "poisson"
    return base.kind


def _known(kind: str) -> str:
    kinds = get_args(Kind)
    if kind not in kinds:
        near = difflib.get_close_matches(kind, kinds, 1, 0.5)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(kinds)}"
        raise UsageError(f"--arrivals {kind} is no kind of arrivals", hint=hint)
    return kind


def _seconds(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(
            f"--burst-every {text}: {error}", hint="for example --burst-every 30s"
        ) from error
