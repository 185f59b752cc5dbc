"""Alert rules: what they may say, checked when they are read. A rule that could never fire is an error."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from kvops.alerts.readings import GAUGES, Counter, Gauge, Unit, counter, gauge, read_any
from kvops.units import format_bytes, format_duration, format_ratio, parse_duration, parse_size

Severity = Literal["info", "warning", "critical"]
Seconds = Annotated[float, BeforeValidator(parse_duration)]
WEEK = 7 * 86400.0
DAY = 86400.0
LONGEST_WINDOW = 6 * 3600.0
DRILL = "AlertDrill"
"""The built-in rule that a delivery drill goes through. It can be neither replaced nor left out."""

_WANTED = {
    "ratio": "a share such as 90% or 0.9",
    "seconds": "a time such as 500ms, 10s or 5m",
    "bytes": "a size such as 512MiB or 8GiB",
    "count": "a number of 0 or more",
}


class _Rule(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    name: Annotated[str, Field(pattern=r"^[A-Z][A-Za-z0-9]{1,63}$")]
    hold: Annotated[Seconds, Field(ge=0, le=WEEK, alias="for")] = 0.0
    """The condition must hold so long without a break."""
    severity: Severity = "warning"
    summary: Annotated[str, Field(min_length=1, max_length=300)]
    remedy: Annotated[str, Field(min_length=1, max_length=300)]
    """What whoever is called does next."""
    labels: Annotated[dict[str, str], Field(max_length=16)] = {}

    nothing: ClassVar[str] = "not looked at yet"
    """What is shown without a value."""


class _Bounded(_Rule):
    """A value held against a bound, above or below which it is bad, and another at which it is well again."""

    above: float | None = None
    below: float | None = None
    clear: float | None = None
    """A firing alert ends only when the value is past this. Default: the bound itself."""

    @model_validator(mode="before")
    @classmethod
    def _read_numbers(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(data.get("reading"), str):
            return data
        unit = cls._unit(data["reading"])
        given = {key: data[key] for key in ("above", "below", "clear") if data.get(key) is not None}
        return data | {key: _number(key, value, unit) for key, value in given.items()}

    @classmethod
    def _unit(cls, reading: str) -> Unit:
        return "count"

    @model_validator(mode="after")
    def _one_bound(self) -> Self:
        if (self.above is None) == (self.below is None):
            raise ValueError("give above or below, one of them")
        if self.clear is not None and self.bad(self.clear) and self.clear != self.bound:
            side = "at most" if self.above is not None else "at least"
            raise ValueError(f"clear must be {side} the bound, or a firing alert could flap")
        return self

    @property
    def bound(self) -> float:
        bound = self.above if self.above is not None else self.below
        assert bound is not None
        return bound

    def bad(self, value: float) -> bool:
        return value > self.bound if self.above is not None else value < self.bound

    def still_bad(self, value: float) -> bool:
        """Of an alert that fires."""
        edge = self.bound if self.clear is None else self.clear
        return value > edge if self.above is not None else value < edge


class ThresholdRule(_Bounded):
    kind: Literal["threshold"]
    reading: str

    @classmethod
    def _unit(cls, reading: str) -> Unit:
        unit: Unit = _known(gauge, reading).unit
        return unit

    @property
    def gauge(self) -> Gauge:
        return gauge(self.reading)

    def shown(self, value: float) -> str:
        return _shown(value, self.gauge.unit)


class RateRule(_Bounded):
    kind: Literal["rate"]
    reading: str
    window: Annotated[Seconds, Field(ge=10, le=LONGEST_WINDOW)]
    """The counter's rise over it, per second."""

    @model_validator(mode="after")
    def _is_counter(self) -> Self:
        _known(counter, self.reading)
        return self

    @property
    def counter(self) -> Counter:
        return counter(self.reading)

    def shown(self, value: float) -> str:
        return f"{value:.3g}/s"


class AbsenceRule(_Rule):
    """Fires when a reading is not exposed, or older than `stale_after`."""

    kind: Literal["absence"]
    reading: str
    stale_after: Annotated[Seconds, Field(ge=5, le=DAY)] = 60.0

    nothing: ClassVar[str] = "not there"

    @model_validator(mode="after")
    def _is_reading(self) -> Self:
        _known(gauge if self.reading in GAUGES else counter, self.reading)
        return self

    def shown(self, value: float) -> str:
        return f"{format_duration(value)} old"


class BurnRule(_Rule):
    """The share of bad requests, over a long and a short window, is `factor` times what the objective allows.

    The long window says that it matters, the short one that it goes on (SRE Workbook, "Alerting on SLOs").
    """

    kind: Literal["burn"]
    total: Annotated[tuple[str, ...], Field(min_length=1, max_length=8)]
    """Counters, added up."""
    bad: Annotated[tuple[str, ...], Field(max_length=8)] = ()
    good: Annotated[tuple[str, ...], Field(max_length=8)] = ()
    """Counters of the bad requests, or of the good ones: one of the two."""
    objective: Annotated[float, Field(gt=0, lt=1)]
    """Share of requests that shall be good."""
    factor: Annotated[float, Field(gt=0, le=1000)]
    long: Annotated[Seconds, Field(ge=60, le=LONGEST_WINDOW)]
    short: Annotated[Seconds, Field(ge=10, le=LONGEST_WINDOW)]
    least_requests: Annotated[float, Field(ge=1, le=1e9)] = 20
    """In the long window; fewer say nothing."""

    nothing: ClassVar[str] = "no requests"

    @model_validator(mode="before")
    @classmethod
    def _read_objective(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("objective") is not None:
            return data | {"objective": _number("objective", data["objective"], "ratio")}
        return data

    @model_validator(mode="after")
    def _can_fire(self) -> Self:
        for name in (*self.total, *self.bad, *self.good):
            _known(counter, name)
        if bool(self.bad) == bool(self.good):
            raise ValueError("give bad or good, one of them")
        if self.short >= self.long:
            raise ValueError("short must be shorter than long")
        if self.limit >= 1:
            raise ValueError(
                f"factor × (1 - objective) is {self.limit:.2f}, more than all requests: it could never fire"
            )
        return self

    @property
    def limit(self) -> float:
        """Share of bad requests above which it fires."""
        return self.factor * (1 - self.objective)

    def shown(self, value: float) -> str:
        return f"{format_ratio(value)} bad"


Rule = ThresholdRule | RateRule | AbsenceRule | BurnRule


def watched(rule: Rule) -> tuple[str, ...]:
    """Names of the readings that it looks at."""
    if isinstance(rule, BurnRule):
        return tuple(dict.fromkeys((*rule.total, *rule.bad, *rule.good)))
    return (rule.reading,)


def reader(rule: AbsenceRule) -> Any:
    return read_any(rule.reading)


def _known(find: Any, name: str) -> Any:
    try:
        return find(name)
    except KeyError as error:
        raise ValueError(error.args[0]) from None


def _number(field: str, value: Any, unit: Unit) -> float:
    try:
        return _parse(value, unit)
    except ValueError:
        raise ValueError(f"{field} = {value!r}: expected {_WANTED[unit]}") from None


def _parse(value: Any, unit: Unit) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError
    if unit == "seconds":
        return parse_duration(value)
    if unit == "bytes":
        return float(parse_size(value))
    text = str(value).strip()
    number = float(text.removesuffix("%")) / 100 if text.endswith("%") else float(text)
    if not 0 <= number < (1.0001 if unit == "ratio" else 1e18):
        raise ValueError
    return number


def _shown(value: float, unit: Unit) -> str:
    if unit == "ratio":
        return format_ratio(value)
    if unit == "bytes":
        return format_bytes(value)
    return format_duration(value) if unit == "seconds" else f"{value:g}"
