from __future__ import annotations

import io

import pytest
from rich.console import Console

from kvops.verify.result import CheckResult, Report, TargetFacts
from kvops.verify.table import show


def result(verdict: str, **over: object) -> CheckResult:
    fields = {
        "id": "resp.short", "title": "Short answers", "purpose": "p", "severity": "required", "verdict": verdict,
        "observed": "8 + 4 = 13", "expected": "sums", "unit": "", "n": 1, "took_seconds": 0.25, "parameters": {},
        "evidence": {}, "remedy": "mend the counter",
    }  # fmt: skip
    return CheckResult(**(fields | over))  # type: ignore[arg-type]


def rendered(*checks: CheckResult, encoding: str = "utf-8", width: int = 100) -> str:
    report = Report(
        run_id="r", started_at="", finished_at="", kvops_version="0", profile="smoke", checks=checks, not_run=(),
        target=TargetFacts(url="http://127.0.0.1:1", name="t"), verdict="fail", exit_code=1,
    )  # fmt: skip
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
