"""A gate run as JUnit XML, for CI: fail is a failure, error an error, skip and inconclusive are skipped, never passed.

Kept to what the XSDs of Ant, Jenkins and surefire have in common; measured values are properties. Text is printable
characters alone: XML 1.0 (§2.2) cannot hold most of the others.
"""

from __future__ import annotations

from junitparser import Error, Failure, JUnitXml, Properties, Property, Skipped, TestCase, TestSuite

from kvops.verify import words
from kvops.verify.result import CheckResult, Report
from kvops.verify.words import printable


def render(report: Report) -> bytes:
    suite = TestSuite(printable(f"kvops verify {report.profile}"))
    suite.timestamp = printable(report.started_at[:19])
    suite.hostname = printable(report.environment.host)
    for name, value in _facts(report).items():
        suite.add_property(name, printable(value))
    for check in report.checks:
        suite.add_testcase(_case(check))
    for name in report.not_run:
        suite.add_testcase(_not_run(name, report))
    document = JUnitXml(printable(f"kvops verify {report.profile}"))
    document.add_testsuite(suite)
    document.update_statistics()  # type: ignore[no-untyped-call]
    text: bytes = document.tostring()  # type: ignore[no-untyped-call]
    return text + b"\n"


def _facts(report: Report) -> dict[str, str]:
    facts = {
        "verdict": report.verdict,
        "exit_code": str(report.exit_code),
        "conclusion": words.conclusion(report),
        "partial": str(report.partial).lower(),
        "run_id": report.run_id,
        "target": report.target.url,
        "engine": f"{report.target.engine or ''} {report.target.engine_version or ''}".strip(),
        "model": report.target.model or "",
        "config_hash": report.target.config_hash or "",
        "profile_hash": report.profile_hash,
        "kvops_version": report.kvops_version,
        "baseline": report.baseline.run_id if report.baseline else "",
        "contradicts": report.contradicts,
    }
    return {name: value for name, value in facts.items() if value}


def _case(check: CheckResult) -> TestCase:
    case = TestCase(
        printable(check.id),
        classname=printable(f"kvops.verify.{check.id.split('.')[0]}"),
        time=check.took_seconds,
    )
    properties = Properties()  # type: ignore[no-untyped-call]
    for name, value in _measured(check).items():
        properties.add_property(Property(printable(name), printable(value)))
    case.append(properties)  # type: ignore[no-untyped-call]
    case.result = list(_result(check))
    return case


def _result(check: CheckResult) -> list[Failure | Error | Skipped]:
    message = printable(_message(check))
    if check.waived is not None:
        return [Skipped(printable(f"{words.waiver(check)}; {message}"))]
    if check.verdict == "fail" and check.severity == "required":
        return [Failure(message, "fail")]
    if check.verdict == "error":
        return [Error(message, "error")]
    if check.verdict in ("skip", "inconclusive"):
        return [Skipped(f"{check.verdict}: {message}")]
    return []


def _message(check: CheckResult) -> str:
    parts = [words.observed(check)]
    if check.expected is not None:
        parts.append(f"expected {words.expected(check)}")
    return "; ".join(filter(None, (*parts, words.next_step(check))))


def _measured(check: CheckResult) -> dict[str, str]:
    measured = {
        "verdict": check.verdict,
        "severity": check.severity,
        "area": check.area or "",
        "observed": words.observed(check),
        "expected": words.expected(check),
        "n": str(check.n),
        "waived": words.waiver(check),
    }
    evidence = {
        f"evidence.{name}": str(value)
        for name, value in check.evidence.items()
        if isinstance(value, str | int | float | bool)
    }
    return {name: value for name, value in (measured | evidence).items() if value}


def _not_run(name: str, report: Report) -> TestCase:
    room = name.split(".")[0]
    case = TestCase(printable(name), classname=printable(f"kvops.verify.{room}"), time=0.0)
    case.result = [Skipped(printable(f"not run: {words.conclusion(report)}"))]
    return case
