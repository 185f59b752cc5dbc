"""The record of a gate run, schema-versioned; on disk before it is reported."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from kvops.verify.check import Area, Op, Samples, Value
from kvops.verify.facts import Facts
from kvops.verify.verdict import EXIT_CODES, RunVerdict, Severity, Verdict, overall
from kvops.verify.waivers import Waiver

SCHEMA_VERSION = 1


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A plot or file of a check."""

    title: str
    path: str
    """In the run's folder, or absolute."""
    plot: bool = False


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    title: str
    purpose: str
    area: Area | None = None
    """Item of the go-live checklist."""
    severity: Severity
    verdict: Verdict
    observed: Value
    expected: Value
    op: Op = ""
    """How `observed` has to stand to `expected`."""
    unit: str
    n: int
    """Requests or readings the verdict rests on; 0 where the check was not made."""
    min_samples: int = 1
    """With a smaller `n` there is no pass."""
    started_at: str = ""
    """ISO 8601, UTC."""
    took_seconds: float
    parameters: dict[str, Any]
    evidence: dict[str, Any]
    remedy: str
    waived: Waiver | None = None
    """Who answers for it that this check did not pass."""
    samples: dict[str, Samples] = {}
    artifacts: tuple[Kept, ...] = ()


class TargetFacts(Facts, frozen=True, kw_only=True):
    url: str
    name: str


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """The machine that ran the gate, which need not be the node's."""

    host: str = ""
    cores: int = 0
    platform: str = ""


class BaselineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The run that this one was compared with."""

    run_id: str
    started_at: str
    model: str | None = None
    engine: str | None = None
    differences: tuple[str, ...] = ()
    """In what the two runs differ beside their measurements, each in words."""
    new: tuple[str, ...] = ()
    """Series of this run that the other does not have."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    schema_version: int = SCHEMA_VERSION
    run_id: str
    started_at: str
    """ISO 8601, UTC."""
    finished_at: str
    kvops_version: str
    target: TargetFacts
    profile: str
    profile_source: str = ""
    """The built-in name or the file that the profile came from."""
    profile_hash: str = ""
    """Of the checks and their thresholds."""
    environment: Environment = Environment()
    checks: tuple[CheckResult, ...]
    not_run: tuple[str, ...]
    """Ids of checks that an interrupt or a failed start left out."""
    left_out: dict[str, Literal["--only", "--skip"]] = {}
    """Checks of the profile that were not asked for, each with the option that left it out."""
    waivers: tuple[Waiver, ...] = ()
    """All that were given, used or not."""
    baseline: BaselineFacts | None = None
    resumed_at: tuple[str, ...] = ()
    """When the run was taken up again, after each interruption."""
    verdict: RunVerdict
    exit_code: int
    partial: bool = False
    """True: the verdict and the exit code speak of a part of the profile alone."""
    reason: str = ""
    """Why the run ended early; empty when it did not."""

    @property
    def waived(self) -> tuple[CheckResult, ...]:
        return tuple(check for check in self.checks if check.waived is not None)


def exit_code(verdict: RunVerdict) -> int:
    return EXIT_CODES[verdict]


def concluded(checks: Iterable[CheckResult]) -> RunVerdict:
    """The verdict of a run that came to its end. What is waived stays visible: it is a warning, never a pass."""
    return overall(
        (check.severity, "warn" if check.waived is not None else check.verdict) for check in checks
    )


def encode(report: Report) -> bytes:
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def decode(data: bytes) -> Report:
    """Raises msgspec.ValidationError or msgspec.DecodeError on anything that is not a report."""
    return msgspec.json.decode(data, type=Report)


def schema() -> bytes:
    """JSON Schema of a report, as docs/verdict.schema.json has it."""
    document = msgspec.json.schema(Report)
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Result of kvops verify",
        **document,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
