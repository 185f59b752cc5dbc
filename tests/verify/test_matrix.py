"""For each defect that the gate is there to find, the check that is named for it fails, and says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvops.testing import DEFECTS, Defect, serve
from kvops.verify.checks import CHECKS
from tests.verify.gate import gate, one_by_one, the_check

BEFORE = {"logs.clean": ["resp.short"]}
"""What must have been asked of the node so that there is something to see."""
LOADS = {check.id for check in CHECKS if "load" in check.needs}


def _row(defect: Defect) -> object:
    """A load run takes seconds of both cores."""
    heavy = [pytest.mark.long] if defect.check in LOADS else []
    return pytest.param(defect, id=defect.name, marks=heavy)


@pytest.mark.parametrize("defect", [_row(defect) for defect in DEFECTS])
def test_a_defect_fails_the_check_that_is_named_for_it(
    defect: Defect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve(defect.name, keys=defect.keys) as node:
        monkeypatch.setenv("KVOPS_TENANT_KEYS_FILE", str(node.tenant_keys_file))
        monkeypatch.setenv("KVOPS_NODE_LOG", str(node.log_file))
        ids = (*BEFORE.get(defect.check, ()), defect.check)
        report = gate(node, one_by_one(*ids), folder=tmp_path)
    result = the_check(report, defect.check)
    assert (result.verdict, report.exit_code) == ("fail", 1), result
    assert defect.says in str(result.observed)
    assert result.remedy
