"""What `scripts/gpu-check` compares on a GPU, here in the interpreter on little."""

from __future__ import annotations

from benchmarks.gpu import FORMATS, agreement, kernel_checks, weight_checks
from tests.paged import CPU


def test_kernels_and_weights_pass_its_checks() -> None:
    rows = [*kernel_checks(CPU, [17, 3], [1, 3]), *weight_checks(CPU)]
    assert len(rows) == len(FORMATS) + 1
    assert [row.what for row in rows if row.verdict == "NOT MET"] == []


def test_agreement_counts_equal_tokens() -> None:
    assert agreement([[1, 2], [3, 4]], [[1, 2], [3, 4]], 2) == 1
    assert agreement([[1, 2], [3, 4]], [[1, 9], [3, 4]], 2) == 0.75
