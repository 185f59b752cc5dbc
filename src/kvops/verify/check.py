"""What a check is: a name, a purpose, typed parameters, and a coroutine from what it may touch to an outcome.

Evidence holds numbers, codes and names, never the text of a prompt or an answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec
from pydantic import BaseModel, ConfigDict

from kvops.verify.context import Context
from kvops.verify.verdict import Verdict

Value = str | int | float | bool | None


class Parameters(BaseModel):
    """Thresholds of one check, from the profile; unknown names are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


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


def require(holds: bool, *, observed: Value, expected: Value, remedy: str, **evidence: Any) -> None:
    """Raises a failing Finding unless `holds`."""
    if not holds:
        fail(observed=observed, expected=expected, remedy=remedy, **evidence)


def fail(*, observed: Value, expected: Value, remedy: str, **evidence: Any) -> NoReturn:
    _end("fail", observed, expected, remedy, evidence)


def warn(*, observed: Value, expected: Value, remedy: str, **evidence: Any) -> NoReturn:
    _end("warn", observed, expected, remedy, evidence)


def skip(reason: str, *, remedy: str = "") -> NoReturn:
    _end("skip", reason, None, remedy, {})


def inconclusive(reason: str, *, expected: Value, remedy: str, **evidence: Any) -> NoReturn:
    _end("inconclusive", reason, expected, remedy, evidence)


def _end(
    verdict: Verdict, observed: Value, expected: Value, remedy: str, evidence: dict[str, Any]
) -> NoReturn:
    raise Finding(
        Outcome(
            verdict=verdict, observed=observed, expected=expected, remedy=remedy, evidence=evidence
        )
    )
