"""The record of a gate run, schema-versioned; on disk before it is reported."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from kvops.verify.api import Refusal
from kvops.verify.beginning import Beginning
from kvops.verify.check import Area, Op, Samples, Value
from kvops.verify.facts import Facts
from kvops.verify.verdict import EXIT_CODES, RunVerdict, Severity, Verdict, overall
from kvops.verify.waivers import Waiver

SCHEMA_VERSION = 1
MAX_ROWS = 2000
"""Checks of a run and series compared with a baseline: far more than any run has, and as many as can be shown."""

MAX_REFUSALS = 200
"""Kinds of refusals that are kept."""

# Python's $ is also before a last newline, and JSON Schema has no \Z.
RunId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$(?!\n)")]
"""It names the run's folder."""
CheckId = Annotated[str, Meta(pattern=r"^[!-~]{1,200}$(?!\n)")]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A plot or file of a check."""

    title: str
    path: str
    """In the run's folder, or absolute."""
    plot: bool = False


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    id: CheckId
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
    n: Count
    """Requests or readings the verdict rests on; 0 where the check was not made."""
    min_samples: Count = 1
    """With a smaller `n` there is no pass."""
    started_at: str = ""
    """ISO 8601, UTC."""
    took_seconds: Seconds
    parameters: dict[str, Any]
    evidence: dict[str, Any]
    remedy: str
    waived: Waiver | None = None
    """Who answers for it that this check did not pass."""
    samples: dict[str, Samples] = {}
    artifacts: Annotated[tuple[Kept, ...], Meta(max_length=MAX_ROWS)] = ()


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

    run_id: RunId
    started_at: str
    model: str | None = None
    engine: str | None = None
    differences: tuple[str, ...] = ()
    """In what the two runs differ beside their measurements, each in words."""
    new: tuple[str, ...] = ()
    """Series of this run that the other does not have."""


class Compares(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison that a run was asked for: going on with it makes it, too."""

    baseline: str
    """As `--baseline` takes it."""
    force: bool = False
    required: bool = False


class Report(msgspec.Struct, frozen=True, kw_only=True):
    schema_version: int = SCHEMA_VERSION
    run_id: RunId
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
    checks: Annotated[tuple[CheckResult, ...], Meta(max_length=MAX_ROWS)]
    not_run: Annotated[tuple[CheckId, ...], Meta(max_length=MAX_ROWS)]
    """Ids of checks that an interrupt or a failed start left out."""
    left_out: Annotated[dict[CheckId, Literal["--only", "--skip"]], Meta(max_length=MAX_ROWS)] = {}
    """Checks of the profile that were not asked for, each with the option that left it out."""
    waivers: Annotated[tuple[Waiver, ...], Meta(max_length=MAX_ROWS)] = ()
    """All that were given, used or not."""
    baseline: BaselineFacts | None = None
    resumed_at: tuple[str, ...] = ()
    """When the run was taken up again, after each interruption."""
    beginning: Beginning | None = None
    """The node when the first part of the run began."""
    refusals: Annotated[tuple[Refusal, ...], Meta(max_length=MAX_REFUSALS)] = ()
    """Each kind of 429 and 503 that the node has given to the gate, in all parts of the run."""
    compares: Compares | None = None
    verdict: RunVerdict
    exit_code: int
    partial: bool = False
    """True: the verdict and the exit code speak of a part of the profile alone."""
    reason: str = ""
    """Why the run ended early; empty when it did not."""
    contradicts: str = ""
    """What the file that this was read from said, where its own rows say otherwise: they decide."""

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


def recomputed(report: Report) -> Report:
    """`report` with the verdict and the exit code that its rows have, and what it said instead, if it did.

    That a node could not be reached or that a run was stopped is in no row: it is believed, since it is no pass.
    """
    verdict = report.verdict
    if verdict not in ("unreachable", "interrupted"):
        verdict = concluded(report.checks)
        if report.not_run and EXIT_CODES[verdict] == 0:
            verdict = "inconclusive"
    if (verdict, exit_code(verdict)) == (report.verdict, report.exit_code):
        return report
    said = f"{report.verdict}, exit code {report.exit_code}"
    return msgspec.structs.replace(
        report, verdict=verdict, exit_code=exit_code(verdict), contradicts=said
    )


def encode(report: Report) -> bytes:
    """As JSON in which what could steer a terminal is escaped, so that it can be printed as it is."""
    text = msgspec.json.format(msgspec.json.encode(report), indent=2).decode()
    return _STEERING.sub(_escaped, text).encode() + b"\n"


_STEERING = re.compile(
    "[\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
"""DEL, C1, and what is invisible or turns the direction of writing; C0 is escaped in any JSON."""


def _escaped(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def decode(data: bytes) -> Report:
    """Raises msgspec.ValidationError, msgspec.DecodeError or RecursionError on anything that is not a report."""
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
