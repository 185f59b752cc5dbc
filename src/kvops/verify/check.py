"""What a check is: a name, a purpose, typed parameters, and a coroutine from what it may touch to an outcome.

Evidence holds numbers, codes and names, never the text of a prompt or an answer.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NoReturn

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from kvops.verify.context import Context
from kvops.verify.verdict import Verdict

Value = str | int | float | bool | None
Op = Literal["", "<", "<=", "=", ">=", ">"]
"""How `observed` has to stand to `expected`; empty where `expected` is said in words."""
Area = Literal["V1", "V2", "V3", "V4", "V5", "V6", "V7", "V8", "V9", "V10"]
"""Item of the go-live checklist: reachable, responses, logs, resources, concurrency, alerts, recall, performance,

peak memory, stability.
"""
Need = Literal["control plane", "idle node", "load"]
MAX_SAMPLES = 2000


class Parameters(BaseModel):
    """Thresholds of one check, from the profile; unknown names are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    min_samples: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """An outcome whose `n` is below is inconclusive, however well it looks. A check may set a default of its own."""


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    """Readings of one quantity, kept with the result so that a later run can be compared with it."""

    values: tuple[float, ...]
    unit: str
    direction: Literal["lower", "higher"]
    """Which way is better."""
    lost: int = 0
    """Attempts that gave no value, because they failed: the comparison counts each as the worst there is."""
    total: int = 0
    """Attempts measured, before `values` and `lost` were thinned to MAX_SAMPLES."""

    def __post_init__(self) -> None:
        if len(self.values) > MAX_SAMPLES or not all(map(math.isfinite, self.values)):
            raise ValueError(f"more than {MAX_SAMPLES} values, or one not finite: use Samples.of")

    @classmethod
    def of(
        cls, values: Iterable[float], *, unit: str, direction: Literal["lower", "higher"]
    ) -> Samples:
        """From readings in the order they were made; a failed attempt is an infinity or NaN.

        More than MAX_SAMPLES are thinned evenly over that order, so that no part of the run is preferred.
        """
        everything = list(values)
        kept = _thinned(everything, MAX_SAMPLES)
        finite = tuple(value for value in kept if math.isfinite(value))
        return cls(
            values=finite,
            unit=unit,
            direction=direction,
            lost=len(kept) - len(finite),
            total=len(everything),
        )


def _thinned(values: list[float], most: int) -> list[float]:
    if len(values) <= most:
        return values
    return [values[index * len(values) // most] for index in range(most)]


class Artifact(msgspec.Struct, frozen=True, kw_only=True):
    """Something to look at: a plot that goes into the reports, or a file or folder that is named there."""

    title: str
    svg: str = ""
    """A whole `<svg>` document; it is kept beside the result."""
    path: str = ""
    """What is on disk already, such as the folder of a load run."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    verdict: Verdict
    observed: Value
    expected: Value
    unit: str = ""
    n: int = 1
    """Requests or readings the verdict rests on."""
    evidence: dict[str, Any] = {}
    remedy: str = ""
    """The next step for an operator; empty on a pass."""
    op: Op = ""
    samples: dict[str, Samples] = {}
    """Series that `--baseline` compares, by a name that is the same in every run, such as `ttft.short`."""
    artifacts: tuple[Artifact, ...] = ()


class Finding(Exception):
    """Ends a check early with its outcome."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(str(outcome.observed))
        self.outcome = outcome


@dataclass(frozen=True)
class Check:
    id: str
    title: str
    purpose: str
    parameters: type[Parameters]
    run: Callable[[Context, Any], Awaitable[Outcome]]
    """Called with the context and an instance of `parameters`."""
    area: Area | None = None
    typical: float = 1.0
    """Seconds it takes on a small node; only for telling how long the rest will take."""
    needs: tuple[Need, ...] = ()
    """`control plane`: skipped without one. `idle node`: waits until nothing is in flight. `load`: sends a load,

    so another machine has to be named with --allow-remote."""
    closing: bool = False
    """It judges what all others have caused, so it comes after them, wherever a profile names it."""


def require(holds: bool, *, observed: Value, expected: Value, remedy: str, **evidence: Any) -> None:
    """Raises a failing Finding unless `holds`. `n` among the evidence, here as below, is that of the outcome."""
    if not holds:
        fail(observed=observed, expected=expected, remedy=remedy, **evidence)


def fail(*, observed: Value, expected: Value, remedy: str, **evidence: Any) -> NoReturn:
    _end("fail", observed, expected, remedy, evidence)


def warn(*, observed: Value, expected: Value, remedy: str, **evidence: Any) -> NoReturn:
    _end("warn", observed, expected, remedy, evidence)


def skip(reason: str, *, remedy: str = "") -> NoReturn:
    _end("skip", reason, None, remedy, {"n": 0})


def inconclusive(reason: str, *, expected: Value, remedy: str, **evidence: Any) -> NoReturn:
    _end("inconclusive", reason, expected, remedy, evidence)


def _end(
    verdict: Verdict, observed: Value, expected: Value, remedy: str, evidence: dict[str, Any]
) -> NoReturn:
    raise Finding(
        Outcome(
            verdict=verdict,
            observed=observed,
            expected=expected,
            remedy=remedy,
            n=int(evidence.pop("n", 1)),
            evidence=evidence,
        )
    )
