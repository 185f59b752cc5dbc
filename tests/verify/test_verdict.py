from __future__ import annotations

import pytest

from kvops.verify.verdict import EXIT_CODES, RunVerdict, Severity, Verdict, overall


@pytest.mark.parametrize(
    ("verdicts", "expected", "code"),
    [
        ([("required", "pass"), ("required", "pass")], "pass", 0),
        ([("required", "pass"), ("required", "skip")], "pass", 0),
        ([("required", "pass"), ("required", "warn")], "warn", 0),
        ([("required", "pass"), ("advisory", "fail")], "warn", 0),
        ([("required", "pass"), ("advisory", "error")], "warn", 0),
        ([("required", "fail"), ("required", "error")], "fail", 1),
        ([("required", "fail"), ("required", "inconclusive")], "fail", 1),
        ([("required", "pass"), ("required", "inconclusive")], "inconclusive", 3),
        ([("required", "pass"), ("required", "error")], "inconclusive", 3),
        ([("required", "skip"), ("advisory", "skip")], "inconclusive", 3),
        ([], "inconclusive", 3),
    ],
)
def test_no_data_is_never_a_pass(
    verdicts: list[tuple[Severity, Verdict]], expected: RunVerdict, code: int
) -> None:
    assert overall(verdicts) == expected
    assert EXIT_CODES[expected] == code
