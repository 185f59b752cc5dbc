from __future__ import annotations

import io

import pytest
from rich.console import Console

from kvops.verify import words
from kvops.verify.display import InPlace, Lines
from kvops.verify.estimates import Estimates
from kvops.verify.result import BaselineFacts, CheckResult, Report, TargetFacts
from kvops.verify.table import show
from kvops.verify.waivers import Waiver


def result(verdict: str, **over: object) -> CheckResult:
    fields = {
        "id": "resp.short", "title": "Short answers", "purpose": "p", "severity": "required", "verdict": verdict,
        "observed": "8 + 4 = 13", "expected": "sums", "unit": "", "n": 1, "took_seconds": 0.25, "parameters": {},
        "evidence": {}, "remedy": "mend the counter",
    }  # fmt: skip
    return CheckResult(**(fields | over))  # type: ignore[arg-type]


def rendered(
    *checks: CheckResult, encoding: str = "utf-8", width: int = 100, **over: object
) -> str:
    fields = {
        "run_id": "r", "started_at": "", "finished_at": "", "kvops_version": "0", "profile": "smoke", "not_run": (),
        "target": TargetFacts(url="http://127.0.0.1:1", name="t"), "verdict": "fail", "exit_code": 1,
    }  # fmt: skip
    report = Report(checks=checks, **(fields | over))  # type: ignore[arg-type]
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding, errors="replace", write_through=True)
    show(report, Console(file=file, width=width, force_terminal=False))
    return raw.getvalue().decode(encoding)


def test_each_row_has_id_verdict_observed_expected_and_the_remedy_stands_below() -> None:
    text = rendered(result("pass", id="a.good", remedy=""), result("fail"))
    assert "✓ pass" in text
    assert "✗ fail" in text
    assert "8 + 4 = 13" in text
    assert "250 ms" in text
    assert "resp.short: mend the counter" in text
    assert text.rstrip().splitlines()[-1].endswith("exit code 1")


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_narrow_terminal_loses_no_name_no_verdict_and_no_finding(width: int) -> None:
    text = rendered(
        result("fail", id="disconnect.frees", observed="eight plus four is thirteen"), width=width
    )
    assert "✗ fail disconnect.frees" in text
    assert "eight plus four is thirteen" in text
    assert "expected: sums" in text
    assert "…" not in text


def test_of_a_node_that_was_not_reached_nothing_is_said() -> None:
    first = rendered().splitlines()[0]
    assert first == "verify smoke · http://127.0.0.1:1"


@pytest.mark.parametrize("verdict", ["pass", "fail", "warn", "skip", "inconclusive", "error"])
def test_verdicts_are_words_also_where_there_is_no_unicode(verdict: str) -> None:
    assert verdict in rendered(result(verdict, observed="x"), encoding="latin-1")


def test_what_a_node_says_cannot_draw_on_the_terminal() -> None:
    text = rendered(result("fail", observed="\x1b[2J[red]x[/red]\x07", remedy="\x1b]0;title\x07"))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[red]x[/red]" in text


def test_a_waiver_stands_with_its_finding_and_in_the_last_line() -> None:
    waived = result(
        "fail", waived=Waiver(id="resp.short", reason="known", by="ops", at="2026-01-02")
    )
    for width in (60, 120):
        text = " ".join(rendered(waived, width=width, verdict="warn", exit_code=0).split())
        assert "waived by ops on 2026-01-02: known" in text
        assert "passed with 1 waiver; 0 of 1 required checks passed · exit code 0" in text


def test_what_was_compared_and_what_was_left_out_stands_below() -> None:
    facts = BaselineFacts(
        run_id="r0", started_at="2026-01-01T10:00:00", differences=("model a then, b now",)
    )
    text = rendered(
        result("pass"),
        result("fail", id="baseline.ttft"),
        baseline=facts,
        left_out={"a.b": "--only"},
        not_run=("c.d",),
        partial=True,
    )
    for said in ("compared with run r0", "differs: model a then", "by --only: a.b", "not run: c.d"):
        assert said in text
    assert "partial: 1 of 3 checks run" in text


@pytest.mark.parametrize(
    ("over", "observed", "expected"),
    [
        ({"observed": 0.0171, "expected": 5, "op": "<=", "unit": "seconds"}, "17 ms", "≤ 5.00 s"),
        ({"observed": 2048, "expected": 4096, "op": "<", "unit": "bytes"}, "2.0 KiB", "< 4.0 KiB"),
        (
            {"observed": 12345, "expected": 9, "op": ">=", "unit": "tokens"},
            "12 345 tokens",
            "≥ 9 tokens",
        ),
        ({"observed": True, "expected": False, "op": "="}, "yes", "= no"),
        ({"observed": 0.123456, "expected": None}, "0.1235", "–"),
    ],
)
def test_numbers_are_said_with_their_unit_and_bound(
    over: dict[str, object], observed: str, expected: str
) -> None:
    made = result("pass", **over)
    assert (words.observed(made), words.expected(made)) == (observed, expected)


@pytest.mark.parametrize("width", [60, 120])
def test_a_file_gets_no_blanks_at_the_ends_of_lines(width: int) -> None:
    text = rendered(result("pass"), result("fail", observed="many words " * 20), width=width)
    assert [line for line in text.splitlines() if line != line.rstrip()] == []
    assert text.endswith("\n")


def test_a_line_of_progress_says_why() -> None:
    file = io.StringIO()
    console = Console(file=file, width=200, force_terminal=False)
    lines = Lines(console, 2, Estimates([], {}), 0)
    lines.ended(0, result("warn", observed="no channel is configured; " + "and more " * 40))
    lines.ended(1, result("pass"))
    told = file.getvalue().splitlines()[1:]
    assert "no channel is configured" in told[0]
    assert len(told[0]) < 160
    assert "8 + 4 = 13" not in told[1]


def test_under_the_bar_each_finding_says_why() -> None:
    file = io.StringIO()
    console = Console(file=file, width=80, force_terminal=True)
    shown = InPlace(console, 3, Estimates([], {}), 0)
    shown.ended(0, result("fail"))
    console.print(shown.render())
    assert "resp.short: " in file.getvalue()
    assert "8 + 4 = 13" in file.getvalue()
