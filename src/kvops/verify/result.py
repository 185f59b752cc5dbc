"""The record of a gate run, schema-versioned; on disk before it is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from kvops import paths
from kvops.verify.check import Value
from kvops.verify.facts import Facts
from kvops.verify.verdict import EXIT_CODES, RunVerdict, Severity, Verdict

SCHEMA_VERSION = 1


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    title: str
    purpose: str
    severity: Severity
    verdict: Verdict
    observed: Value
    expected: Value
    unit: str
    n: int
    took_seconds: float
    parameters: dict[str, Any]
    evidence: dict[str, Any]
    remedy: str


class TargetFacts(Facts, frozen=True, kw_only=True):
    url: str
    name: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    schema_version: int = SCHEMA_VERSION
    run_id: str
    started_at: str
    """ISO 8601, UTC."""
    finished_at: str
    kvops_version: str
    target: TargetFacts
    profile: str
    checks: tuple[CheckResult, ...]
    not_run: tuple[str, ...]
    """Ids of checks that an interrupt or a failed start left out."""
    left_out: dict[str, Literal["--only", "--skip"]] = {}
    """Checks of the profile that were not asked for, each with the option that left it out."""
    verdict: RunVerdict
    exit_code: int
    partial: bool = False
    """True: the verdict and the exit code speak of a part of the profile alone."""
    reason: str = ""
    """Why the run ended early; empty when it did not."""


def exit_code(verdict: RunVerdict) -> int:
    return EXIT_CODES[verdict]


def encode(report: Report) -> bytes:
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def decode(data: bytes) -> Report:
    """Raises msgspec.ValidationError or msgspec.DecodeError on anything that is not a report."""
    return msgspec.json.decode(data, type=Report)


def save(report: Report) -> Path:
    """Write `result.json` into a run folder of its own; its real path. Raises OSError."""
    path = paths.runs_dir().resolve() / f"verify-{report.run_id}" / "result.json"
    paths.write_atomic(path, encode(report))
    return path
