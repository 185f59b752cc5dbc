"""From what a user types (`--rate`, `--arrivals` …) and a scenario's defaults to the pacing of a run."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, NoReturn, get_args

import msgspec

from kvops.errors import UsageError
from kvops.load import pacing, scenarios, trace
from kvops.load.pacing import Kind, Pacing
from kvops.load.scenarios import Scenario
from kvops.units import format_duration, parse_duration

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
    if kind == "trace":
        check_replays(scenario)
    if kind != base.kind:
        # The defaults of one kind of arrivals mean nothing to another.
        base = Pacing(unit=base.unit)
    if "burst_every" in typed:
        typed["burst_every"] = _seconds(typed["burst_every"])
    if "trace" in typed:
        typed["trace"] = str(Path(typed["trace"]).expanduser().absolute())
    if kind == "trace":
        typed["unit"] = "requests"  # a row is a request, whatever the scenario draws else
    made = msgspec.structs.replace(base, **typed | {"kind": kind})
    pacing.check(made, duration)
    if made.kind == "trace":
        trace.read(made.trace)  # its faults are known before the run
    return made


def check_taken(scenario: Scenario, pacing: Pacing) -> None:
    """Raises UsageError for a pacing that the scenario does not take."""
    if pacing.open and scenario.pacing is None:
        refuse(scenario)
    if pacing.kind == "trace":
        check_replays(scenario)


def refuse(scenario: Scenario) -> NoReturn:
    """Raises UsageError."""
    rising = ", and ramp_to_knee raises a rate by itself: --by rate"
    raise UsageError(
        f"{scenario.name} decides itself when to send: it takes no --rate and no --arrivals",
        hint=f"{_those(paced())} take them{rising if scenario.name.startswith('ramp') else ''}",
    )


def check_replays(scenario: Scenario) -> None:
    """Raises UsageError for one whose requests cannot be those of a trace."""
    if scenario.replays:
        return
    replaying = [name for name in paced() if scenarios.find(name).replays]
    raise UsageError(
        f"{scenario.name} has a list of requests of its own: it replays no --trace",
        hint=f"{_those(replaying)} replay one; {scenario.name} takes --rate and the other --arrivals",
    )


def paced() -> list[str]:
    """The scenarios whose requests the run may send at a rate."""
    return [name for name in scenarios.names() if scenarios.find(name).pacing is not None]


def _those(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def bound(pacing: Pacing, scenario: Scenario, typed: float | None) -> float | None:
    """Seconds after which nothing more is sent: a trace is replayed whole unless a duration is `typed`."""
    return typed if typed is not None or pacing.trace else scenario.duration


def notes(pacing: Pacing, duration: float | None) -> list[str]:
    """What a user should know of a trace before it is replayed. Raises UsageError."""
    if not pacing.trace:
        return []
    rows = trace.read(pacing.trace)
    due = [row for row in rows if duration is None or row.time < duration]
    count = f"{len(rows)} row{'' if len(rows) == 1 else 's'} over {format_duration(rows[-1].time)}"
    if len(due) == len(rows):
        return [f"{pacing.trace}: {count}, one request each"]
    return [
        f"{pacing.trace}: {count}, of which {len(due)} come within {format_duration(duration or 0.0)}: "
        "leave --duration out to replay all"
    ]


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
